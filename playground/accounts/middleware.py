"""Keeps visitors out while sign-in is required, and gives the admin the policy that its scripts need."""

from collections.abc import Awaitable, Callable
from urllib.parse import quote

from asgiref.sync import iscoroutinefunction, markcoroutinefunction, sync_to_async
from django.http import HttpRequest, HttpResponse, HttpResponseRedirect, JsonResponse

from playground.accounts.selectors import check_may_use
from playground.exceptions import SignInRequired

# Paths that everybody may always see; keys of /v1 are checked there.
OPEN = ("/accounts/", "/admin/", "/static/", "/s/", "/v1/", "/healthz", "/readyz", "/metrics", "/sandbox/")
# The admin's own scripts (Alpine) compile expressions and set styles.
ADMIN_POLICY = (
    "default-src 'self'; script-src 'self' 'unsafe-inline' 'unsafe-eval'; style-src 'self' 'unsafe-inline'; img-src 'self' data:; "
    "font-src 'self'; object-src 'none'; base-uri 'none'; form-action 'self'; frame-ancestors 'none'"
)


class AccessMiddleware:
    """Stands after ``OwnerMiddleware``."""

    sync_capable = True
    async_capable = True

    def __init__(self, get_response: Callable[[HttpRequest], HttpResponse | Awaitable[HttpResponse]]):
        self.get_response = get_response
        if iscoroutinefunction(get_response):
            markcoroutinefunction(self)

    def __call__(self, request: HttpRequest) -> HttpResponse | Awaitable[HttpResponse]:
        if iscoroutinefunction(self):
            return self._acall(request)
        return _refusal(request) or _with_policy(request, self.get_response(request))

    async def _acall(self, request: HttpRequest) -> HttpResponse:
        refusal = await sync_to_async(_refusal)(request) if _is_guarded(request) else None
        return refusal or _with_policy(request, await self.get_response(request))


def _is_guarded(request: HttpRequest) -> bool:
    return request.owner.user is None and not request.path.startswith(OPEN)


def _refusal(request: HttpRequest) -> HttpResponse | None:
    if not _is_guarded(request):
        return None
    try:
        check_may_use(request.owner)
    except SignInRequired as error:
        if request.path.startswith("/api/"):
            return JsonResponse(error.body, status=error.status)
        return HttpResponseRedirect(f"/accounts/login/?next={quote(request.get_full_path())}")
    return None


def _with_policy(request: HttpRequest, response: HttpResponse) -> HttpResponse:
    if request.path.startswith("/admin/"):
        response.headers["Content-Security-Policy"] = ADMIN_POLICY
    return response
