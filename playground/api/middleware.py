"""What every answer under ``/v1`` has, also where Django refuses before a view runs: a request id, and errors in OpenAI's form."""

from collections.abc import Awaitable, Callable

from asgiref.sync import iscoroutinefunction, markcoroutinefunction
from django.http import HttpRequest, HttpResponse

from playground.api.errors import ApiError, request_id


class ApiMiddleware:
    """Stands inside of the CORS headers and around everything that may refuse."""

    sync_capable = True
    async_capable = True

    def __init__(self, get_response: Callable[[HttpRequest], HttpResponse | Awaitable[HttpResponse]]):
        self.get_response = get_response
        if iscoroutinefunction(get_response):
            markcoroutinefunction(self)

    def __call__(self, request: HttpRequest) -> HttpResponse | Awaitable[HttpResponse]:
        if iscoroutinefunction(self):
            return self._acall(request)
        return _finished(request, self.get_response(request))

    async def _acall(self, request: HttpRequest) -> HttpResponse:
        return _finished(request, await self.get_response(request))


def _finished(request: HttpRequest, response: HttpResponse) -> HttpResponse:
    if request.path != "/v1" and not request.path.startswith("/v1/"):
        return response
    if response.status_code >= 400 and not response.get("Content-Type", "").startswith("application/json"):
        allowed = response.get("Allow")
        response = _error(request, response.status_code).response(request)
        if allowed:
            response.headers["Allow"] = allowed
    response.headers.setdefault("x-request-id", request_id(request))
    return response


def _error(request: HttpRequest, status: int) -> ApiError:
    called = f"{request.method} {request.path[:200]}"
    if status == 404:
        return ApiError(404, f"Unknown request URL: {called}.", "unknown_url")
    if status == 405:
        return ApiError(405, f"Not allowed: {called}.", "method_not_allowed")
    return ApiError(status, "The server cannot take this request." if status < 500 else "The server failed on this request.")
