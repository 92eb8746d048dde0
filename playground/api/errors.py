"""Errors in OpenAI's form: what its clients turn into their exception classes. Those of ``playground.exceptions`` have words in every
language of the browser; the classes here never reach it."""

import json
import math
from uuid import uuid4

from django.http import HttpRequest, HttpResponse

from playground.exceptions import PlaygroundError

RETRY_SECONDS = 5  # when nothing better is known


class InvalidApiKey(PlaygroundError):
    """No key, or none that works here."""

    code = "invalid_api_key"
    status = 401


class ScopeMissing(PlaygroundError):
    """The key may not do this."""

    code = "permission_denied"
    status = 403


class NoEngine(PlaygroundError):
    """No engine for this model answers now."""

    code = "engine_unavailable"
    status = 503


# Codes of the playground and of the engine: (HTTP status, OpenAI's code). What is not listed keeps its own.
CODES = {
    "unknown_model": (404, "model_not_found"),
    "prompt_too_long": (400, "context_length_exceeded"),
    "rate_limited": (429, "rate_limit_exceeded"),
    "invalid_request": (400, None),
    "malformed": (400, None),
    "empty_prompt": (400, None),
    "cancelled": (400, "cancelled"),
}
SERVER_CODES = ("queue_full", "unavailable", "engine_stopped", "engine_unavailable")  # try again later


class ApiError(Exception):
    """``param`` names the field that is wrong. ``limited`` (429 only): requests, tokens or concurrent."""

    def __init__(self, status: int, message: str, code: str | None = None, param: str | None = None, retry_after_s: float | None = None):
        super().__init__(message)
        self.status, self.message, self.code, self.param, self.retry_after_s = status, message, code, param, retry_after_s
        self.limited: str | None = None
        self.headers: dict[str, str] = {}

    @classmethod
    def of(cls, code: str, message: str) -> "ApiError":
        """From a stream's ``error`` frame."""
        status, name = CODES.get(code, (503 if code in SERVER_CODES else 500, code))
        return cls(status, message, name, retry_after_s=RETRY_SECONDS if status == 503 else None)

    @classmethod
    def from_playground(cls, error: PlaygroundError) -> "ApiError":
        status, name = CODES.get(error.code, (error.status, error.code))
        made = cls(status, error.message, name, "model" if error.code == "unknown_model" else None)
        made.retry_after_s = getattr(error, "retry_after_s", RETRY_SECONDS if status == 503 else None)
        made.limited = getattr(error, "limited", None)
        return made

    @property
    def body(self) -> dict:
        return {"error": {"message": self.message, "type": self._type, "param": self.param, "code": self.code}}

    @property
    def _type(self) -> str:
        if self.status == 429:
            return "tokens" if self.limited == "tokens" else "requests"
        return "server_error" if self.status >= 500 else "invalid_request_error"

    def response(self, request: HttpRequest) -> HttpResponse:
        headers = {"x-request-id": request_id(request), **self.headers}
        if self.retry_after_s is not None:
            headers["Retry-After"] = str(max(1, math.ceil(self.retry_after_s)))
        if self.status == 401:
            headers["WWW-Authenticate"] = "Bearer"
        return HttpResponse(json.dumps(self.body), status=self.status, content_type="application/json", headers=headers)


def request_id(request: HttpRequest) -> str:
    """Of this request; in its headers and in the log."""
    if not hasattr(request, "request_id"):
        request.request_id = f"req_{uuid4().hex}"
    return request.request_id
