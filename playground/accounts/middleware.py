"""Keeps visitors out while sign-in is required, and gives the admin the policy that its scripts need."""

from urllib.parse import quote

from asgiref.sync import sync_to_async
from django.http import HttpRequest, HttpResponse, HttpResponseRedirect, JsonResponse

from playground.accounts.selectors import check_may_use
from playground.exceptions import SignInRequired
from playground.middleware import Middleware

# Paths that everybody may always see; keys of /v1 are checked there.
OPEN = ("/accounts/", "/admin/", "/static/", "/s/", "/v1/", "/healthz", "/readyz", "/metrics", "/sandbox/")
# The admin's own scripts (Alpine) compile expressions and set styles.
ADMIN_POLICY = (
    "default-src 'self'; script-src 'self' 'unsafe-inline' 'unsafe-eval'; style-src 'self' 'unsafe-inline'; img-src 'self' data:; "
    "font-src 'self'; object-src 'none'; base-uri 'none'; form-action 'self'; frame-ancestors 'none'"
)


class AccessMiddleware(Middleware):
    """Stands after ``OwnerMiddleware``."""

    def before(self, request: HttpRequest) -> HttpResponse | None:
        return _refusal(request) if _is_guarded(request) else None

    async def abefore(self, request: HttpRequest) -> HttpResponse | None:
        return await sync_to_async(_refusal)(request) if _is_guarded(request) else None

    def after(self, request: HttpRequest, response: HttpResponse) -> HttpResponse:
        if request.path.startswith("/admin/"):
            response.headers["Content-Security-Policy"] = ADMIN_POLICY
        return response


def _is_guarded(request: HttpRequest) -> bool:
    return request.owner.user is None and not request.path.startswith(OPEN)


def _refusal(request: HttpRequest) -> HttpResponse | None:
    try:
        check_may_use(request.owner)
    except SignInRequired as error:
        if request.path.startswith("/api/"):
            return JsonResponse(error.body, status=error.status)
        return HttpResponseRedirect(f"/accounts/login/?next={quote(request.get_full_path())}")
    return None
