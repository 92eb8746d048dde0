"""``/api/keys``: a router of the browser's API, and the page of keys. For signed-in users."""

from uuid import UUID

from django.contrib.auth.models import AbstractBaseUser
from django.http import HttpRequest, HttpResponse
from django.middleware.csrf import get_token
from django.shortcuts import render
from ninja import Router, Status

from playground.api import selectors, services
from playground.api.models import ApiKey
from playground.api.schemas import KeyIn, KeyMade, KeyOut, KeyPage
from playground.exceptions import SignInRequired
from playground.sharing.views import page_boot

router = Router()


def keys_page(request: HttpRequest) -> HttpResponse:
    get_token(request)
    return render(request, "keys.html", {"boot": page_boot(request)})


@router.get("", response=KeyPage)
def keys(request: HttpRequest) -> KeyPage:
    return KeyPage(items=[KeyOut(**_fields(key)) for key in selectors.keys_of(_user(request))])


@router.post("", response={201: KeyMade})
def create(request: HttpRequest, body: KeyIn) -> Status:
    key, secret = services.key_create(user=_user(request), **body.model_dump())
    return Status(201, KeyMade(**_fields(key), secret=secret))


@router.delete("/{uuid:key_id}", response={204: None})
def revoke(request: HttpRequest, key_id: UUID) -> HttpResponse:
    services.key_revoke(key=selectors.key_get(user=_user(request), key_id=key_id))
    return HttpResponse(status=204)


def _user(request: HttpRequest) -> AbstractBaseUser:
    if request.owner.user is None:
        raise SignInRequired("Sign in first. API keys belong to an account.")
    return request.owner.user


def _fields(key: ApiKey) -> dict:
    return {name: getattr(key, name) for name in KeyOut.model_fields}
