"""What every answer under ``/v1`` has, also where Django refuses before a view runs: a request id, and errors in OpenAI's form."""

from channels.db import database_sync_to_async
from django.http import HttpRequest, HttpResponse

from playground.api.errors import ApiError, request_id
from playground.chat.models import Generation
from playground.middleware import Middleware
from playground.usage.services import refusal_count


class ApiMiddleware(Middleware):
    """Stands inside of the CORS headers and around everything that may refuse. Counts what was refused (``request.refused``)."""

    async def aafter(self, request: HttpRequest, response: HttpResponse) -> HttpResponse:
        if code := getattr(request, "refused", ""):
            caller = getattr(request, "auth", None)
            facts = {"owner": caller and caller.owner, "source": Generation.Source.API, "model": getattr(request, "asked_model", "")}
            await database_sync_to_async(refusal_count)(code=code, **facts)
        return self.after(request, response)

    def after(self, request: HttpRequest, response: HttpResponse) -> HttpResponse:
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
