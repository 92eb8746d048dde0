"""``/v1``: the OpenAI-compatible door. The key decides who asks; cookies count for nothing here."""

import asyncio
import json
import logging
import re
from functools import partial
from uuid import NAMESPACE_URL, uuid5

import redis
from channels.db import database_sync_to_async
from django.core.exceptions import RequestDataTooBig
from django.db import DatabaseError
from django.http import HttpRequest, HttpResponse, StreamingHttpResponse
from ninja.errors import AuthenticationError, HttpError, ValidationError
from ninja.security import HttpBearer

from playground import engine_client, limits
from playground.api import selectors, services
from playground.api.answers import Answers, stopping
from playground.api.errors import ApiError, InvalidApiKey, ScopeMissing, request_id
from playground.api.forms import ChatForm, TextForm
from playground.api.models import ApiKey
from playground.api.schemas import ChatCompletion, ChatRequest, Common, Completion, CompletionRequest, ErrorResponse, ModelList, ModelOut
from playground.api.services import Caller
from playground.chat.models import Generation
from playground.config import config
from playground.exceptions import InvalidParameter, Malformed, MessageTooLarge, PlaygroundError, TooManyRequests, UnknownModel
from playground.identity import Owner, request_address
from playground.validation import WordedAPI

log = logging.getLogger(__name__)


class KeyAuth(HttpBearer):
    """``Authorization: Bearer mk-...``; without it a visitor, where API_ANONYMOUS allows that."""

    def __call__(self, request: HttpRequest):
        kind, _, secret = request.headers.get("Authorization", "").partition(" ")
        return self.authenticate(request, secret.strip() if kind.lower() == "bearer" else "")

    async def authenticate(self, request: HttpRequest, token: str) -> Caller:
        size = int(request.META.get("CONTENT_LENGTH") or len(request.body))  # a chunked body has no length of its own
        if size > config.max_message_bytes:
            raise MessageTooLarge(size_bytes=size, limit_bytes=config.max_message_bytes)
        if token:
            return await database_sync_to_async(_caller_of)(token)
        if config.api_anonymous:
            return Caller(Owner(visitor_id=uuid5(NAMESPACE_URL, request_address(request))))
        raise InvalidApiKey("You didn't provide an API key. Send it as 'Authorization: Bearer YOUR_KEY'.")


def _caller_of(secret: str) -> Caller:
    key = selectors.key_for(secret)
    services.key_touch(key=key)
    return Caller(Owner(user=key.user), key)


api = WordedAPI(
    title="Playground API",
    version="1",
    description="OpenAI-compatible: point any OpenAI client at this address and /v1.",
    auth=KeyAuth(),
    docs_url=None,
    urls_namespace="v1",
)
ERRORS = dict.fromkeys((400, 401, 403, 404, 413, 429, 500, 503), ErrorResponse)
EVENT = {
    "type": "object",
    "description": "With stream: an event for each chunk, then the data [DONE].",
    "properties": {"data": {"type": "string"}},
    "required": ["data"],
}
SSE = {"responses": {200: {"content": {"text/event-stream": {"schema": EVENT}}}}}


@api.get("/models", response={200: ModelList, **ERRORS}, summary="The models served")
async def models(request: HttpRequest) -> HttpResponse:
    _need(request, ApiKey.Scope.MODELS)
    cards = await database_sync_to_async(engine_client.model_cards)()
    return _json(request, {"object": "list", "data": [_model(card) for card in cards]})


@api.get("/models/{path:model}", response={200: ModelOut, **ERRORS}, summary="One model")
async def model(request: HttpRequest, model: str) -> HttpResponse:
    _need(request, ApiKey.Scope.MODELS)
    cards = await database_sync_to_async(engine_client.model_cards)()
    card = next((card for card in cards if card.name == model), None)
    if card is None:
        raise UnknownModel(model=model, served=len(cards))
    return _json(request, _model(card))


@api.post("/chat/completions", response={200: ChatCompletion, **ERRORS}, openapi_extra=SSE, summary="Answer a conversation")
async def chat_completions(request: HttpRequest, body: ChatRequest) -> HttpResponse | StreamingHttpResponse:
    return await _complete(request, body, ChatForm(body))


@api.post("/completions", response={200: Completion, **ERRORS}, openapi_extra=SSE, summary="Continue a text")
async def completions(request: HttpRequest, body: CompletionRequest) -> HttpResponse | StreamingHttpResponse:
    return await _complete(request, body, TextForm(body))


# One request -----------------------------------------------------------------------------------------------------------


async def _complete(request: HttpRequest, body: Common, form: ChatForm | TextForm) -> HttpResponse | StreamingHttpResponse:
    _need(request, ApiKey.Scope.GENERATE)
    request.asked_model = body.model
    try:
        answers = Answers(form, await _start(request.auth, form, body.user or ""))
    except TooManyRequests as error:
        _refused(request, error.code)
        refusal = ApiError.from_playground(error)
        refusal.headers = await database_sync_to_async(_allowance)(request.auth)
        raise refusal from error
    log.info("%s is %s", request_id(request), [str(g.pk) for g in answers.generations])
    try:
        headers = await database_sync_to_async(_allowance)(request.auth)
        if not body.stream:
            return _json(request, await answers.whole(), headers)
    except BaseException:
        answers.stop()
        raise
    events = answers.events(bool(body.stream_options and body.stream_options.include_usage))
    response = StreamingHttpResponse(events, content_type="text/event-stream; charset=utf-8", headers=headers | _head(request))
    response.headers["Cache-Control"] = "no-cache"
    response.headers["X-Accel-Buffering"] = "no"
    return response


async def _start(caller: Caller, form: ChatForm | TextForm, end_user: str) -> list[Generation]:
    """In a thread of its own: counting a long prompt takes a while. A client that leaves meanwhile stops what it started."""
    start = partial(services.answers_start, caller=caller, jobs=form.jobs(), end_user=end_user)
    task = asyncio.ensure_future(database_sync_to_async(start, thread_sensitive=False)())
    try:
        return await asyncio.shield(task)
    except asyncio.CancelledError:
        stopping.add(task)
        task.add_done_callback(partial(_stop_started, form))
        raise


def _stop_started(form: ChatForm | TextForm, task: asyncio.Task) -> None:
    stopping.discard(task)
    if not task.cancelled() and task.exception() is None:
        Answers(form, task.result()).stop()


def _need(request: HttpRequest, scope: str) -> None:
    key = request.auth.api_key
    if key and scope not in key.scopes:
        raise ScopeMissing(f"This key may not {ApiKey.Scope(scope).label}: it lacks the scope '{scope}'.")


def _model(card) -> dict:
    return {"id": card.name, "object": "model", "created": 0, "owned_by": "playground", "context_tokens": card.context_tokens}


# Headers and errors ----------------------------------------------------------------------------------------------------


def _head(request: HttpRequest) -> dict[str, str]:
    return {"x-request-id": request_id(request)}


def _refused(request: HttpRequest, code: str) -> None:
    """``ApiMiddleware`` counts it; what only reads is not counted."""
    if request.method == "POST":
        request.refused = code


def _json(request: HttpRequest, body: dict, headers: dict[str, str] | None = None) -> HttpResponse:
    content = json.dumps(body, ensure_ascii=False)
    return HttpResponse(content, content_type="application/json", headers=_head(request) | (headers or {}))


def _allowance(caller: Caller) -> dict[str, str]:
    """``x-ratelimit-*``: of the user's and the key's limits the one with the fewest left."""
    subjects = limits.subjects_of(caller.owner, caller.api_key)
    headers = {}
    for name, window in (("requests", limits.requests_left(subjects)), ("tokens", limits.tokens_left(subjects))):
        if window:
            headers[f"x-ratelimit-limit-{name}"] = str(window.limit)
            headers[f"x-ratelimit-remaining-{name}"] = str(window.remaining)
            headers[f"x-ratelimit-reset-{name}"] = f"{window.reset_s:.3f}s"
    return headers


@api.exception_handler(ApiError)
def on_api_error(request: HttpRequest, error: ApiError) -> HttpResponse:
    if not hasattr(request, "asked_model"):  # the form's; later ones end a generation, which is counted itself
        _refused(request, error.code or InvalidParameter.code)
    return error.response(request)


@api.exception_handler(PlaygroundError)
def on_playground_error(request: HttpRequest, error: PlaygroundError) -> HttpResponse:
    if error.status not in (401, 403):
        _refused(request, error.code)
    return ApiError.from_playground(error).response(request)


@api.exception_handler(redis.RedisError)
@api.exception_handler(DatabaseError)
def on_storage_error(request: HttpRequest, error: Exception) -> HttpResponse:
    log.error("%s failed: %s", request_id(request), error)
    return ApiError.of("unavailable", "The server's storage does not answer. Try again.").response(request)


@api.exception_handler(AuthenticationError)
def on_no_auth(request: HttpRequest, error: AuthenticationError) -> HttpResponse:
    return ApiError(401, "You didn't provide an API key.", "invalid_api_key").response(request)


@api.exception_handler(RequestDataTooBig)
def on_large_body(request: HttpRequest, error: RequestDataTooBig) -> HttpResponse:
    """A chunked one, which says no size beforehand."""
    _refused(request, MessageTooLarge.code)
    limit_mb = config.max_message_bytes / 1e6
    return ApiError(413, f"This message is over the limit of {limit_mb:g} MB.", MessageTooLarge.code).response(request)


@api.exception_handler(HttpError)
def on_http_error(request: HttpRequest, error: HttpError) -> HttpResponse:
    _refused(request, Malformed.code)
    return ApiError(error.status_code, "We could not parse the JSON body of your request.").response(request)


@api.exception_handler(Exception)
def on_exception(request: HttpRequest, error: Exception) -> HttpResponse:
    log.exception("%s failed", request_id(request))
    return ApiError(500, "The server failed on this request.").response(request)


@api.exception_handler(ValidationError)
def on_validation_error(request: HttpRequest, error: ValidationError) -> HttpResponse:
    """The first wrong field; of a field with several forms the complaint that reaches deepest into what was sent."""
    _refused(request, InvalidParameter.code)
    paths = [(_path(one), one) for one in error.errors]
    same = [(path, one) for path, one in paths if path[:1] == paths[0][0][:1]]
    path, first = max(same, key=lambda found: (len(found[0]), not found[1]["type"].endswith("_type")))
    param = re.sub(r"\.(\[)", r"\1", ".".join(path)) or None
    return ApiError(400, _complaint(param, path, first), param=param).response(request)


FIELDS = {name for model in (ChatRequest, CompletionRequest) for name in model.model_fields} | {"include_usage", "role", "content"}
FIELDS |= {"name", "type", "text", "refusal", "tool_calls", "include_obfuscation"}
NEUTRAL = ("frequency_penalty presence_penalty logit_bias tools functions tool_choice function_call response_format modalities audio "
           "prediction web_search_options best_of suffix tool_calls refusal include_obfuscation").split()  # fmt: skip


def _path(error: dict) -> list[str]:
    """["messages", "[0]", "content"] of pydantic's place, without its names for the members of a union."""
    parts = list(error["loc"])[2:]
    unknown = len(parts) - 1 if error["type"] == "extra_forbidden" else None
    return [f"[{p}]" if isinstance(p, int) else p for i, p in enumerate(parts) if isinstance(p, int) or p in FIELDS or i == unknown]


def _complaint(param: str | None, path: list[str], error: dict) -> str:
    if param is None:
        return "The body must be a JSON object of the documented form."
    if error["type"] == "extra_forbidden":
        return f"Unrecognized request argument supplied: {param[:200]}"
    if error["type"] == "missing":
        return f"Missing required parameter: '{param}'."
    if any(part in NEUTRAL for part in path):
        return f"'{param}' is not supported here; leave it out."
    return f"Invalid '{param}': {error['msg']}."
