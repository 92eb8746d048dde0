"""The base of our middlewares, security headers of every page, and the files of the bundle."""

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


class Middleware:
    """Base of middlewares that stand in sync and async chains alike: ``before`` the view, which an answer skips, and ``after`` it."""

    sync_capable = True
    async_capable = True

    def __init__(self, get_response: Callable[[HttpRequest], HttpResponse | Awaitable[HttpResponse]]):
        self.get_response = get_response
        if iscoroutinefunction(get_response):
            markcoroutinefunction(self)

    def __call__(self, request: HttpRequest) -> HttpResponse | Awaitable[HttpResponse]:
        if iscoroutinefunction(self):
            return self._acall(request)
        return self.before(request) or self.after(request, self.get_response(request))

    async def _acall(self, request: HttpRequest) -> HttpResponse:
        return await self.abefore(request) or await self.aafter(request, await self.get_response(request))

    def before(self, request: HttpRequest) -> HttpResponse | None:
        return None

    async def abefore(self, request: HttpRequest) -> HttpResponse | None:
        """``before`` in an async chain; overridden, as ``aafter`` is, where that one waits for the database."""
        return self.before(request)

    def after(self, request: HttpRequest, response: HttpResponse) -> HttpResponse:
        return response

    async def aafter(self, request: HttpRequest, response: HttpResponse) -> HttpResponse:
        return self.after(request, response)


class SecurityHeadersMiddleware(Middleware):
    """Content security policy with a nonce (``request.csp_nonce``). A view that sets its own policy keeps it."""

    def before(self, request: HttpRequest) -> None:
        request.csp_nonce = secrets.token_urlsafe(16)

    def after(self, request: HttpRequest, response: HttpResponse) -> HttpResponse:
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
