"""Security headers of every page, and the files of the bundle."""

import os
import secrets
from collections.abc import Awaitable, Callable

from asgiref.sync import iscoroutinefunction, markcoroutinefunction
from django.http import HttpRequest, HttpResponse, HttpResponseNotFound
from servestatic.middleware import ServeStaticMiddleware
from servestatic.responders import Redirect, StaticFile

POLICY = (
    "default-src 'self'; script-src 'self' 'nonce-{nonce}'; style-src 'self' 'nonce-{nonce}'; img-src 'self' data: blob:; "
    "connect-src 'self'; worker-src 'self' blob:; frame-src 'self'; font-src 'self'; object-src 'none'; base-uri 'none'; "
    "form-action 'self'; frame-ancestors 'none'"
)


class SecurityHeadersMiddleware:
    """Content security policy with a nonce (``request.csp_nonce``). A view that sets its own policy keeps it."""

    sync_capable = True
    async_capable = True

    def __init__(self, get_response: Callable[[HttpRequest], HttpResponse | Awaitable[HttpResponse]]):
        self.get_response = get_response
        if iscoroutinefunction(get_response):
            markcoroutinefunction(self)

    def __call__(self, request: HttpRequest) -> HttpResponse | Awaitable[HttpResponse]:
        request.csp_nonce = secrets.token_urlsafe(16)
        if iscoroutinefunction(self):
            return self._acall(request)
        return self._with_headers(request, self.get_response(request))

    async def _acall(self, request: HttpRequest) -> HttpResponse:
        return self._with_headers(request, await self.get_response(request))

    @staticmethod
    def _with_headers(request: HttpRequest, response: HttpResponse) -> HttpResponse:
        if response.get("Content-Type", "").startswith("text/html"):
            response.headers.setdefault("Content-Security-Policy", POLICY.format(nonce=request.csp_nonce))
        response.headers.setdefault("Permissions-Policy", "camera=(), geolocation=(), microphone=(), payment=(), usb=()")
        return response


class StaticFilesMiddleware(ServeStaticMiddleware):
    """The list of files is made at the start. One that has gone since, because the bundle was built anew, is a 404 at once."""

    @staticmethod
    async def aserve(static_file: StaticFile | Redirect, request: HttpRequest) -> HttpResponse:
        if isinstance(static_file, StaticFile) and not os.path.exists(static_file.get_path_and_headers(request.META)[0]):
            return HttpResponseNotFound("This file is gone: the bundle was built anew. Restart the server.", content_type="text/plain")
        return await ServeStaticMiddleware.aserve(static_file, request)
