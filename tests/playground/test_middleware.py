"""The middlewares in sync and async chains, each without the rest of the stack."""

from uuid import uuid4

import pytest
from asgiref.sync import async_to_sync, iscoroutinefunction
from django.contrib.auth.models import AnonymousUser, User
from django.http import HttpRequest, HttpResponse
from django.test import RequestFactory

from playground.accounts import middleware as accounts
from playground.accounts.middleware import AccessMiddleware
from playground.api.middleware import ApiMiddleware
from playground.exceptions import SignInRequired
from playground.identity import COOKIE, Owner, OwnerMiddleware, visitor_cookie, visitor_from_cookie
from playground.middleware import SecurityHeadersMiddleware


@pytest.fixture(params=["sync", "async"])
def through(request):
    """``through(middleware, request, view)``: the response of a chain of that kind."""

    def sync(middleware: type, asked: HttpRequest, view) -> HttpResponse:
        chain = middleware(view)
        assert not iscoroutinefunction(chain)
        return chain(asked)

    def asynchronous(middleware: type, asked: HttpRequest, view) -> HttpResponse:
        async def aview(asked: HttpRequest) -> HttpResponse:
            return view(asked)

        chain = middleware(aview)
        assert iscoroutinefunction(chain)
        return async_to_sync(chain)(asked)

    return sync if request.param == "sync" else asynchronous


def asked(path: str = "/", user=None, **cookies: str) -> HttpRequest:
    made = RequestFactory().get(path)
    made.COOKIES.update(cookies)
    made.user = user or AnonymousUser()

    async def auser():
        return made.user

    made.auser = auser
    return made


def page(asked: HttpRequest) -> HttpResponse:
    return HttpResponse("page", content_type="text/html")


def test_every_page_has_a_policy_of_its_own_nonce(through):
    nonces = set()
    for _ in range(2):
        made = asked()
        response = through(SecurityHeadersMiddleware, made, page)
        assert f"'nonce-{made.csp_nonce}'" in response["Content-Security-Policy"] and "camera=()" in response["Permissions-Policy"]
        nonces.add(made.csp_nonce)
    assert len(nonces) == 2


def test_a_new_visitor_gets_a_cookie_with_the_first_page_only(through):
    made = asked()
    response = through(OwnerMiddleware, made, page)
    assert visitor_from_cookie(response.cookies[COOKIE].value) == made.owner.visitor_id
    assert COOKIE not in through(OwnerMiddleware, asked(), lambda asked: HttpResponse("{}", content_type="application/json")).cookies

    known = uuid4()
    made = asked(**{COOKIE: visitor_cookie(known)})
    assert COOKIE not in through(OwnerMiddleware, made, page).cookies and made.owner == Owner(visitor_id=known)
    user = User(pk=1, username="ada")
    made = asked(user=user)
    assert COOKIE not in through(OwnerMiddleware, made, page).cookies and made.owner == Owner(user=user)


def test_a_refusal_comes_instead_of_the_view(through, monkeypatch):
    def refuse(owner: Owner) -> None:
        raise SignInRequired("Sign in first.")

    def view(asked: HttpRequest) -> HttpResponse:
        seen.append(asked.path)
        return page(asked)

    monkeypatch.setattr(accounts, "check_may_use", refuse)
    seen: list[str] = []
    for path, status in (("/", 302), ("/api/models", 401), ("/healthz", 200), ("/admin/", 200)):
        made = asked(path)
        made.owner = Owner(visitor_id=uuid4())
        response = through(AccessMiddleware, made, view)
        assert response.status_code == status
        assert ("Content-Security-Policy" in response) == (path == "/admin/")
    assert seen == ["/healthz", "/admin/"]


def test_errors_under_v1_are_in_the_apis_form(through):
    def missing(asked: HttpRequest) -> HttpResponse:
        return HttpResponse("<h1>Not found</h1>", status=404)

    response = through(ApiMiddleware, asked("/v1/nothing"), missing)
    assert response["Content-Type"] == "application/json" and b"unknown_url" in response.content and response["x-request-id"]
    assert through(ApiMiddleware, asked("/nothing"), missing).content == b"<h1>Not found</h1>"
