"""Who asks: a signed-in user or an anonymous visitor, known by a signed cookie, over HTTP and WebSocket alike."""

from dataclasses import dataclass, field
from importlib import import_module
from types import SimpleNamespace
from typing import TYPE_CHECKING
from uuid import UUID, uuid4

from django.conf import settings
from django.contrib.auth import get_user
from django.core import signing
from django.http import HttpRequest, HttpResponse

from playground.config import config
from playground.exceptions import SignInRequired
from playground.middleware import Middleware

if TYPE_CHECKING:
    from django.contrib.auth.models import AbstractBaseUser

COOKIE = "visitor"
COOKIE_AGE_SECONDS = 365 * 24 * 3600
_SALT = "playground.visitor"


@dataclass(frozen=True)
class Owner:
    """Exactly one of ``user`` and ``visitor_id`` is set. ``address`` is the client's, for the limit of visitors together."""

    user: "AbstractBaseUser | None" = None
    visitor_id: UUID | None = None
    address: str = field(default="", compare=False)

    @property
    def key(self) -> str:
        """Stable text for limits and logs."""
        return f"user:{self.user.pk}" if self.user else f"visitor:{self.visitor_id}"

    def fields(self) -> dict:
        """The columns that mark a row as this owner's."""
        return {"user": self.user, "visitor_id": None if self.user else self.visitor_id}


def client_address(remote: str, forwarded_for: str) -> str:
    """The client's network address; behind a proxy (BEHIND_HTTPS) the one that the proxy saw."""
    nearest = forwarded_for.rpartition(",")[2].strip()
    return nearest if config.behind_https and nearest else remote


def request_address(request: HttpRequest) -> str:
    return client_address(request.META.get("REMOTE_ADDR", ""), request.META.get("HTTP_X_FORWARDED_FOR", ""))


def visitor_from_cookie(value: str | None) -> UUID | None:
    """The visitor's id, or None when the cookie is missing, forged or too old."""
    try:
        return UUID(signing.loads(value or "", salt=_SALT, max_age=COOKIE_AGE_SECONDS))
    except (signing.BadSignature, ValueError):
        return None


def visitor_cookie(visitor_id: UUID) -> str:
    return signing.dumps(str(visitor_id), salt=_SALT)


def owner_from_scope(scope: dict) -> Owner:
    """The owner of a WebSocket, from the session or the visitor cookie; without either an identity of this socket alone."""
    user = scope.get("user")
    if user is not None and user.is_authenticated:
        return Owner(user=user)
    forwarded = dict(scope.get("headers", ())).get(b"x-forwarded-for", b"").decode("latin-1")
    address = client_address((scope.get("client") or ("",))[0], forwarded)
    return Owner(visitor_id=visitor_from_cookie(scope.get("cookies", {}).get(COOKIE)) or uuid4(), address=address)


def check_still_signed_in(owner: Owner, session_key: str | None) -> None:
    """An open socket keeps the owner it began with; raises SignInRequired when that user signed out, is blocked or was deleted."""
    if owner.user is None:
        return
    session = import_module(settings.SESSION_ENGINE).SessionStore(session_key)
    if get_user(SimpleNamespace(session=session)) != owner.user:
        raise SignInRequired("You are signed out. Reload the page and sign in again.")


class OwnerMiddleware(Middleware):
    """Sets ``request.owner`` and, on the first page, the visitor cookie. Stands after the authentication middleware."""

    def before(self, request: HttpRequest) -> None:
        _set_owner(request, request.user)

    async def abefore(self, request: HttpRequest) -> None:
        _set_owner(request, await request.auser())

    def after(self, request: HttpRequest, response: HttpResponse) -> HttpResponse:
        if request.owner.user is None and request.visitor_id is None and response.get("Content-Type", "").startswith("text/html"):
            response.set_cookie(
                COOKIE,
                visitor_cookie(request.owner.visitor_id),
                max_age=COOKIE_AGE_SECONDS,
                httponly=True,
                samesite="Lax",
                secure=settings.SESSION_COOKIE_SECURE,
            )
        return response


def _set_owner(request: HttpRequest, user: "AbstractBaseUser") -> None:
    """``visitor_id``: what the browser's cookie said, also of a signed-in user; None at the first page."""
    request.visitor_id = visitor_from_cookie(request.COOKIES.get(COOKIE))
    if user.is_authenticated:
        request.owner = Owner(user=user)
    else:
        request.owner = Owner(visitor_id=request.visitor_id or uuid4(), address=request_address(request))
