"""The sandbox document. It knows nothing: the page around it sends the script that turns it into a preview or a runner."""

from django.http import HttpRequest, HttpResponse
from django.views.decorators.clickjacking import xframe_options_exempt
from django.views.decorators.http import require_safe

# `sandbox` makes the origin opaque even when the address is opened by hand. Nothing may be fetched: the interpreter's files come
# from the page by message. Scripts of a preview are inline by nature; `eval` stays forbidden so that the loop guard sees all code.
POLICY = (
    "sandbox allow-scripts; default-src 'none'; script-src 'unsafe-inline' 'wasm-unsafe-eval' blob:; worker-src blob:; "
    "style-src 'unsafe-inline'; img-src data: blob:; media-src data: blob:; font-src data:; "
    "base-uri 'none'; form-action 'none'; frame-ancestors 'self'; webrtc 'block'"
)

DOCUMENT = """<!doctype html>
<meta charset="utf-8">
<title>Sandbox</title>
<script>
addEventListener("message", function start(event) {
  if (event.source !== parent || !event.ports[0]) return;
  removeEventListener("message", start);
  window.sandboxPort = event.ports[0];
  const script = document.createElement("script");
  script.textContent = event.data;
  document.head.append(script);
});
</script>
"""


@require_safe
@xframe_options_exempt
def frame(request: HttpRequest) -> HttpResponse:
    """The document for `<iframe sandbox="allow-scripts">`; it holds no state and may be cached."""
    response = HttpResponse(DOCUMENT)
    response["Content-Security-Policy"] = POLICY
    response["Cache-Control"] = "private, max-age=3600"
    response["X-DNS-Prefetch-Control"] = "off"
    response["Referrer-Policy"] = "no-referrer"
    return response
