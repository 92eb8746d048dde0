"""Everything that reads keys."""

import hashlib
from uuid import UUID

from django.contrib.auth.models import AbstractBaseUser

from playground.api.errors import InvalidApiKey
from playground.api.models import ApiKey
from playground.exceptions import NotFound


def digest_of(secret: str) -> str:
    """What is stored of a key. Keys are 256 random bits, so a fast hash is enough."""
    return hashlib.sha256(secret.encode("utf-8", errors="replace")).hexdigest()


def key_for(secret: str) -> ApiKey:
    """The live key of an active user. Raises InvalidApiKey; the message never says whether such a key once worked elsewhere."""
    key = ApiKey.objects.select_related("user").filter(digest=digest_of(secret)).first()
    if key is None:
        raise InvalidApiKey("Incorrect API key provided. Keys are made under API keys, in the menu of the playground.")
    if key.state != "live":
        raise InvalidApiKey(f"This API key is {key.state}. Make a new one under API keys.")
    if not key.user.is_active:
        raise InvalidApiKey("The account of this API key is blocked.")
    return key


def keys_of(user: AbstractBaseUser) -> list[ApiKey]:
    """Newest first, revoked and expired ones too."""
    return list(ApiKey.objects.filter(user=user))


def key_get(*, user: AbstractBaseUser, key_id: UUID) -> ApiKey:
    """Raises NotFound, also when it is somebody else's."""
    key = ApiKey.objects.filter(user=user, pk=key_id).first()
    if key is None:
        raise NotFound("There is no such key.")
    return key
