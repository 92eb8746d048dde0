"""Pages."""

from uuid import UUID

import redis
from django.contrib.messages import get_messages
from django.http import Http404, HttpRequest, HttpResponse
from django.middleware.csrf import get_token
from django.shortcuts import render

from playground import engine_client
from playground.chat import selectors
from playground.config import config
from playground.exceptions import NotFound
from playground.schemas import ModelCard


def playground_page(request: HttpRequest, conversation_id: UUID | None = None) -> HttpResponse:
    """The playground, empty or with a conversation of this owner."""
    if conversation_id:
        try:
            selectors.conversation_get(owner=request.owner, conversation_id=conversation_id)
        except NotFound as error:
            raise Http404(error.message) from None
    get_token(request)  # sets the CSRF cookie that scripts send back
    return render(request, "playground.html", {"boot": _boot(request, conversation_id)})


def _boot(request: HttpRequest, conversation_id: UUID | None) -> dict:
    user = request.owner.user
    return {
        "user": {"name": user.get_username(), "staff": user.is_staff} if user else None,
        "anonymous": user is None,
        "models": [card.model_dump() for card in _cards()],
        "default_model": config.model_names[0],
        "limits": {"message_bytes": config.max_message_bytes, "active": config.max_active_per_owner},
        "socket_path": "/ws/playground/",
        "notices": [str(message) for message in get_messages(request)],  # of a page that led here, such as that of signing up
        "conversation_id": str(conversation_id) if conversation_id else None,
    }


def _cards() -> list[ModelCard]:
    try:
        return engine_client.model_cards()
    except redis.RedisError:
        return [ModelCard(name=name, title=name) for name in config.model_names]
