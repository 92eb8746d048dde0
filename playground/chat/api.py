"""HTTP for the browser: JSON, owner by session or visitor cookie, CSRF header on writes."""

import logging
from uuid import UUID

import redis
from django.core.exceptions import RequestDataTooBig
from django.db import OperationalError
from django.http import HttpRequest, HttpResponse, JsonResponse
from ninja.errors import HttpError, ValidationError
from ninja.utils import check_csrf

from playground import engine_client
from playground.chat import selectors, services
from playground.config import config
from playground.exceptions import MessageTooLarge, PlaygroundError, Unavailable
from playground.identity import Owner
from playground.schemas import ConversationOut, ConversationPage, ConversationPatch, GenerationOut, ModelCard, Text
from playground.validation import WordedAPI

log = logging.getLogger(__name__)


def owner(request: HttpRequest) -> Owner:
    """Every caller has an identity; writes must carry the CSRF token."""
    if check_csrf(request):
        raise HttpError(403, "The CSRF token is missing or wrong. Reload the page.")
    return request.owner


api = WordedAPI(title="Playground", version="1", auth=owner, docs_url=None, urls_namespace="browser")
api.add_router("/links", "playground.sharing.api.router")
api.add_router("/keys", "playground.api.browser.router")
api.add_router("/stats", "playground.usage.api.router")
api.add_router("/conversations/import", "playground.chat.imports.router")


@api.exception_handler(PlaygroundError)
def on_playground_error(request: HttpRequest, error: PlaygroundError) -> JsonResponse:
    return JsonResponse(error.body, status=error.status)


@api.exception_handler(redis.RedisError)
@api.exception_handler(OperationalError)
def on_storage_error(request: HttpRequest, error: Exception) -> JsonResponse:
    log.error("%s %s: %s: %s", request.method, request.path, type(error).__name__, error)
    return on_playground_error(request, Unavailable("The server's storage does not answer. Try again."))


@api.exception_handler(ValidationError)
def on_validation_error(request: HttpRequest, error: ValidationError) -> JsonResponse:
    first = error.errors[0]
    place = first["loc"][2 if first["loc"][0] == "body" else 1 :] or first["loc"]  # without the argument's own name
    return JsonResponse({"code": "malformed", "message": f"{'.'.join(map(str, place))}: {first['msg']}"}, status=400)


@api.exception_handler(RequestDataTooBig)
def on_large_body(request: HttpRequest, error: RequestDataTooBig) -> JsonResponse:
    size = int(request.META.get("CONTENT_LENGTH") or 0)
    return on_playground_error(request, MessageTooLarge(size_bytes=size, limit_bytes=config.max_message_bytes))


@api.exception_handler(HttpError)
def on_http_error(request: HttpRequest, error: HttpError) -> JsonResponse:
    return JsonResponse({"code": "forbidden" if error.status_code == 403 else "malformed", "message": str(error)}, status=error.status_code)


@api.get("/models", response=list[ModelCard])
def models(request: HttpRequest) -> list[ModelCard]:
    return engine_client.model_cards()


@api.get("/conversations", response=ConversationPage)
def conversations(request: HttpRequest, q: Text = "", before: str = "") -> ConversationPage:
    return selectors.conversation_list(owner=request.owner, query=q, before=before)


@api.delete("/conversations", response={204: None})
def delete_all(request: HttpRequest) -> HttpResponse:
    services.conversations_delete(owner=request.owner)
    return HttpResponse(status=204)


@api.get("/conversations/{uuid:conversation_id}", response=ConversationOut)
def conversation(request: HttpRequest, conversation_id: UUID) -> ConversationOut:
    return selectors.conversation_out(selectors.conversation_get(owner=request.owner, conversation_id=conversation_id))


@api.patch("/conversations/{uuid:conversation_id}", response=ConversationOut)
def rename(request: HttpRequest, conversation_id: UUID, patch: ConversationPatch) -> ConversationOut:
    found = selectors.conversation_get(owner=request.owner, conversation_id=conversation_id)
    services.conversation_rename(conversation=found, title=patch.title)
    return selectors.conversation_out(found)


@api.delete("/conversations/{uuid:conversation_id}", response={204: None})
def delete(request: HttpRequest, conversation_id: UUID) -> HttpResponse:
    services.conversation_delete(conversation=selectors.conversation_get(owner=request.owner, conversation_id=conversation_id))
    return HttpResponse(status=204)


@api.get("/generations/{uuid:generation_id}", response=GenerationOut)
def generation(request: HttpRequest, generation_id: UUID) -> GenerationOut:
    return selectors.generation_out(selectors.generation_get(owner=request.owner, generation_id=generation_id))
