"""Quotas in Redis: of users, visitors and keys, shared by the browser and the API."""

from uuid import uuid4

import pytest

from playground.identity import Owner
from playground.schemas import ChatMessage, Params
from tests.playground.test_api import CHAT, Api, key, user  # noqa: F401

pytestmark = [pytest.mark.django_db(transaction=True), pytest.mark.usefixtures("empty_redis")]


def ask(owner):
    from playground.chat.services import generation_create

    return generation_create(owner=owner, params=Params(max_tokens=5), messages=[ChatMessage(role="user", content="Hi")])


def end(generation, tokens=5):
    from playground.chat.services import Result, generation_finish

    assert generation_finish(generation_id=generation.pk, result=Result("done", text="x", finish_reason="stop", completion_tokens=tokens))


def quota(**fields):
    from playground.accounts.models import Quota

    return Quota.objects.update_or_create(applies_to="users", defaults=fields)


def test_requests_a_minute_are_one_count_for_browser_and_api(user, key, worker):  # noqa: F811
    from playground.exceptions import TooManyRequests

    quota(requests_per_minute=2)
    end(ask(Owner(user=user)))
    assert Api(key).post("chat/completions", CHAT).headers["x-ratelimit-remaining-requests"] == "0"
    refused = Api(key).post("chat/completions", CHAT)
    assert refused.status_code == 429 and refused.body["error"]["type"] == "requests"
    assert 1 <= int(refused.headers["Retry-After"]) <= 60 and refused.headers["x-ratelimit-limit-requests"] == "2"
    assert refused.body["error"]["code"] == "rate_limit_exceeded"
    with pytest.raises(TooManyRequests, match="2 requests a minute are the limit for you. Free again in"):
        ask(Owner(user=user))
    quota(requests_per_minute=3)  # changed in the admin, in force at once
    end(ask(Owner(user=user)))


def test_tokens_count_when_an_answer_ends(user):  # noqa: F811
    from playground import limits
    from playground.exceptions import TooManyRequests

    owner = Owner(user=user)
    quota(tokens_per_minute=100, tokens_per_day=1000, requests_per_minute=None)
    end(ask(owner), 60)
    left = limits.tokens_left(limits.subjects_of(owner))
    assert (left.limit, left.remaining, left.span) == (100, 40, "minute") and 0 < left.reset_s <= 60
    end(ask(owner), 60)
    with pytest.raises(TooManyRequests, match="100 tokens a minute") as refused:
        ask(owner)
    assert refused.value.limited == "tokens" and refused.value.retry_after_s <= 60
    quota(tokens_per_minute=None, tokens_per_day=120)
    with pytest.raises(TooManyRequests, match="120 tokens a day") as refused:
        ask(owner)
    assert refused.value.retry_after_s <= 24 * 3600


def test_a_key_s_own_limits_hold_besides_its_user_s(user, key, worker):  # noqa: F811
    from playground.api.models import ApiKey
    from playground.api.services import key_create

    ApiKey.objects.update(requests_per_minute=1)
    assert Api(key).post("chat/completions", CHAT).status_code == 200
    refused = Api(key).post("chat/completions", CHAT)
    assert refused.status_code == 429 and "for this key" in refused.body["error"]["message"]
    assert Api(key_create(user=user, name="other")[1]).post("chat/completions", CHAT).status_code == 200
    ApiKey.objects.update(requests_per_minute=0)
    assert Api(key).post("chat/completions", CHAT).status_code == 429


def test_answers_at_once_are_bounded_and_freed(user, key, engines):  # noqa: F811
    from playground.chat.models import Generation
    from playground.chat.services import generation_cancel
    from playground.exceptions import TooManyRequests

    quota(concurrent=2)
    owner = Owner(user=user)
    first = ask(owner)
    refused = Api(key).post("chat/completions", CHAT | {"n": 2})  # all or none
    assert refused.status_code == 429 and Generation.objects.count() == 1
    ask(owner)
    with pytest.raises(TooManyRequests, match="2 answers at once"):
        ask(owner)
    generation_cancel(generation=first)
    ask(owner)


def test_a_slot_whose_end_nobody_counted_is_found(user, monkeypatch):  # noqa: F811
    from playground import limits
    from playground.chat.models import Generation

    monkeypatch.setattr(limits, "YOUNG_SECONDS", 0)
    quota(concurrent=1)
    lost = ask(Owner(user=user))
    Generation.objects.filter(pk=lost.pk).update(state="failed")  # its worker could not tell Redis
    ask(Owner(user=user))


def test_a_refused_request_leaves_no_slot_behind(user):  # noqa: F811
    from playground import streams
    from playground.exceptions import PromptTooLong

    with pytest.raises(PromptTooLong):
        from playground.chat.services import generation_create

        long = [ChatMessage(role="user", content="word " * 9000)]
        generation_create(owner=Owner(user=user), params=Params(), messages=long)
    assert streams.client().zcard(f"quota:user:{user.pk}:active") == 0


def test_dropping_the_cookie_does_not_lift_the_limit():
    from playground.accounts.models import Quota
    from playground.chat.services import generation_cancel
    from playground.exceptions import TooManyRequests

    Quota.objects.create(applies_to="visitors", requests_per_minute=1)
    for _ in range(10):
        generation_cancel(generation=ask(Owner(visitor_id=uuid4(), address="192.0.2.1")))
    with pytest.raises(TooManyRequests, match="10 requests a minute are the limit for visitors of one network address"):
        ask(Owner(visitor_id=uuid4(), address="192.0.2.1"))
    ask(Owner(visitor_id=uuid4(), address="192.0.2.2"))


def test_the_address_is_the_one_that_the_proxy_saw(monkeypatch):
    from playground.config import config
    from playground.identity import client_address

    assert client_address("10.0.0.1", "192.0.2.9") == "10.0.0.1"  # no proxy: the header is the client's own invention
    monkeypatch.setattr(config, "behind_https", True)
    assert client_address("10.0.0.1", "6.6.6.6, 192.0.2.9") == "192.0.2.9" and client_address("10.0.0.1", "") == "10.0.0.1"
