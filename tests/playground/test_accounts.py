"""Accounts: sign-up, sign-in, claiming, reset, export, deletion, and what an admin can switch."""

import json
import re
from uuid import uuid4

import pytest
from django.contrib.auth import get_user_model
from django.contrib.auth.models import Group
from django.core.cache import cache
from django.test import Client

from playground.accounts.models import Quota, SiteSettings
from playground.accounts.selectors import USER_DEFAULTS, VISITOR_DEFAULTS, quota_for
from playground.accounts.services import user_block
from playground.chat.models import Conversation, Generation
from playground.chat.services import generation_create
from playground.exceptions import SignInRequired
from playground.identity import COOKIE, Owner
from playground.schemas import ChatMessage, Params
from playground.sharing.models import ShareLink
from playground.usage.models import AuditEntry
from tests.playground.test_sharing import browser, chat, share

pytestmark = [pytest.mark.django_db, pytest.mark.usefixtures("empty_redis")]
User = get_user_model()
PASSWORD = "correct-horse-battery"


@pytest.fixture(autouse=True)
def quick(settings) -> None:
    settings.PASSWORD_HASHERS = ["django.contrib.auth.hashers.MD5PasswordHasher"]
    settings.ACCOUNT_RATE_LIMITS = False


@pytest.fixture
def ines():
    return User.objects.create_user("ines", "ines@example.org", PASSWORD)


def sign_in(client: Client, login: str = "ines@example.org", password: str = PASSWORD):
    return client.post("/accounts/login/", {"login": login, "password": password})


def test_signing_up_claims_the_chats_and_links_of_this_browser(owner) -> None:
    client, conversation = browser(owner), chat(owner)
    link = share(client, conversation)
    assert "Your 1 chat from this browser will be kept." in client.get("/accounts/signup/").content.decode()
    assert client.post("/accounts/signup/", {"email": "new@example.org", "password1": PASSWORD}).status_code == 302
    user = User.objects.get(email="new@example.org")
    assert Conversation.objects.get().user == user and Generation.objects.get().user == user
    assert ShareLink.objects.get(pk=link["id"]).user == user
    assert client.get(f"/api/conversations/{conversation.pk}").status_code == 200


def test_a_wrong_password_does_not_say_which_of_the_two_was_wrong(ines, client) -> None:
    known = sign_in(client, password="nonsense").content.decode()
    unknown = sign_in(client, login="nobody@example.org").content.decode()
    message = "E-mail and password do not match. Try again, or reset the password."
    assert message in known and message in unknown


def test_wrong_passwords_have_a_limit_and_the_admin_has_no_other_door(ines, client, settings) -> None:
    settings.ACCOUNT_RATE_LIMITS = {"login_failed": "3/5m/key"}
    assert client.get("/admin/").headers["Location"].startswith("/admin/login/")
    assert client.get("/admin/login/?next=/admin/").headers["Location"].startswith("/accounts/login/?next=")
    assert client.post("/admin/login/", {"username": "ines", "password": PASSWORD}).status_code == 302
    assert client.get("/api/keys").status_code == 401  # that signed nobody in
    for _ in range(3):
        sign_in(client, password="nonsense")
    assert "Too many" in sign_in(client).content.decode()
    cache.clear()
    assert sign_in(client).status_code == 302
    assert client.get("/admin/login/").status_code == 403  # signed in, but no staff


def test_a_password_is_reset_by_mail(ines, client, mailoutbox) -> None:
    client.post("/accounts/password/reset/", {"email": ines.email})
    path = re.search(r"http://testserver(/accounts/password/reset/key/\S+)", mailoutbox[0].body).group(1)
    form = client.get(path, follow=True)
    client.post(form.request["PATH_INFO"], {"password1": "another-fine-horse", "password2": "another-fine-horse"})
    assert sign_in(Client(), password="another-fine-horse").status_code == 302
    assert "used before or is too old" in Client().get(path, follow=True).content.decode()


def test_only_a_new_address_is_said_to_wait_for_its_link(client) -> None:
    client.post("/accounts/signup/", {"email": "new@example.org", "password1": PASSWORD})
    assert "A link was sent" not in client.get("/accounts/email/").content.decode()
    client.post("/accounts/email/", {"email": "moved@example.org", "action_add": ""})
    assert "A link was sent to moved@example.org." in client.get("/accounts/email/").content.decode()


def test_a_new_email_counts_once_its_link_is_opened(ines, client, mailoutbox) -> None:
    sign_in(client)
    client.post("/accounts/email/", {"email": "moved@example.org", "action_add": ""})
    path = re.search(r"http://testserver(/accounts/confirm-email/\S+)", mailoutbox[-1].body).group(1)
    ines.refresh_from_db()
    assert ines.email == "ines@example.org"
    client.post(path)
    ines.refresh_from_db()
    assert ines.email == "moved@example.org"


def test_the_export_has_chats_links_and_usage_and_deletion_leaves_only_figures(ines, client) -> None:
    sign_in(client)
    conversation = chat(Owner(user=ines))
    link = share(client, conversation)
    export = json.loads(client.get("/accounts/export").content)
    assert export["account"]["email"] == "ines@example.org"
    assert [m["role"] for m in export["chats"][0]["messages"]] == ["user", "assistant"]
    assert export["links"][0]["url"] == link["url"] and export["usage"][0]["completion_tokens"] > 0

    refused = client.post("/accounts/delete", {"password": "nonsense"})
    assert "Nothing was deleted" in refused.content.decode() and User.objects.exists()
    client.post("/accounts/delete", {"password": PASSWORD})
    assert not User.objects.exists() and not Conversation.objects.exists()
    kept = Generation.objects.get()
    assert (kept.user, kept.message, kept.request, kept.system_prompt) == (None, None, {}, "") and kept.completion_tokens > 0
    assert Client().get(link["url"]).status_code == 410


def test_an_admin_closes_sign_up(client) -> None:
    SiteSettings(signup_open=False).save()
    assert "Sign-up is closed" in client.get("/accounts/signup/").content.decode()
    client.post("/accounts/signup/", {"email": "new@example.org", "password1": PASSWORD})
    assert not User.objects.exists()
    assert "Create an account" not in client.get("/accounts/login/").content.decode()


def test_visitors_are_asked_to_sign_in_when_an_admin_requires_it(ines, client) -> None:
    SiteSettings(sign_in_required=True).save()
    refused = client.get("/api/conversations")
    assert refused.status_code == 401 and refused.json()["code"] == "sign_in_required"
    assert client.get("/c/" + str(uuid4())).headers["Location"].startswith("/accounts/login/?next=/c/")
    with pytest.raises(SignInRequired):  # by socket just as little
        generation_create(owner=Owner(visitor_id=uuid4()), params=Params(), messages=[ChatMessage(role="user", content="Hello")])
    assert not Generation.objects.exists()
    sign_in(client)
    assert client.get("/api/conversations").status_code == 200


def test_sharing_can_be_switched_off(owner) -> None:
    SiteSettings(sharing_enabled=False).save()
    body = {"conversation_id": str(chat(owner).pk)}
    refused = browser(owner).post("/api/links", body, content_type="application/json")
    assert refused.status_code == 403 and refused.json()["code"] == "sharing_off"


def test_a_blocked_user_is_out_at_once(ines, client) -> None:
    sign_in(client)
    running = chat(Owner(user=ines)).generations.get()
    Generation.objects.update(state="queued")
    user_block(user=ines)
    assert client.get("/accounts/").status_code == 302
    assert sign_in(Client()).headers["Location"] == "/accounts/inactive/"
    running.refresh_from_db()
    assert running.state == "stopped"


def test_quotas_fall_through_from_user_to_group_to_all(ines, owner) -> None:
    signed_in = Owner(user=ines)
    assert quota_for(owner) == VISITOR_DEFAULTS and quota_for(signed_in) == USER_DEFAULTS
    Quota.objects.create(applies_to="visitors", tokens_per_day=10)
    Quota.objects.create(applies_to="users", tokens_per_day=1000, concurrent=2)
    for name, tokens in (("small", 5000), ("large", 9000)):
        group = Group.objects.create(name=name)
        ines.groups.add(group)
        Quota.objects.create(applies_to="group", group=group, tokens_per_day=tokens)
    assert quota_for(owner).tokens_per_day == 10
    assert (quota_for(signed_in).tokens_per_day, quota_for(signed_in).concurrent) == (9000, 2)
    Quota.objects.create(applies_to="user", user=ines, tokens_per_day=7)
    assert quota_for(signed_in).tokens_per_day == 7


def test_the_first_visit_gives_an_identity_that_cannot_be_forged(client) -> None:
    client.get("/accounts/login/")
    signed = client.cookies[COOKIE].value
    client.cookies[COOKIE] = "x" + signed[1:]
    client.get("/accounts/login/")
    assert client.cookies[COOKIE].value.split(":")[0] != signed.split(":")[0]


@pytest.fixture
def staff():
    return browser(Owner(user=User.objects.create_superuser("root", "root@example.org", PASSWORD)))


def test_every_page_of_the_admin_opens_and_no_text_of_a_chat_is_in_it(staff, owner) -> None:
    share(browser(owner), chat(owner, prompt="a-private-request"))
    Quota.objects.create(applies_to="users", concurrent=2)
    models = ["auth/user", "auth/group", "accounts/quota", "sharing/sharelink", "chat/generation", "usage/usagerollup", "usage/auditentry"]
    for path in ["", *(f"{model}/" for model in models), "auth/user/add/", "accounts/quota/add/", "accounts/sitesettings/1/change/"]:
        SiteSettings.objects.get_or_create(pk=1)
        page = staff.get(f"/admin/{path}")
        assert page.status_code == 200, path
        assert "a-private-request" not in page.content.decode()
    generation = Generation.objects.get()
    assert "a-private-request" not in staff.get(f"/admin/chat/generation/{generation.pk}/change/").content.decode()
    assert staff.get("/admin/accounts/sitesettings/").headers["Location"].endswith("/1/change/")
    assert "/stats/" in staff.get("/admin/").content.decode()


@pytest.mark.parametrize("path, body", [("{pk}/delete/", {}), ("", {"action": "delete_selected", "_selected_action": "{pk}"})])
def test_an_account_deleted_in_the_admin_leaves_only_figures(staff, ines, path: str, body: dict) -> None:
    share(browser(Owner(user=ines)), chat(Owner(user=ines)))
    running = Generation.objects.create(user=ines, model="a", source="api", system_prompt="Be brief.", end_user="Ada")
    chosen = {name: value.format(pk=ines.pk) for name, value in body.items()}
    assert staff.post(f"/admin/auth/user/{path.format(pk=ines.pk)}", chosen | {"post": "yes"}).status_code == 302
    assert not User.objects.filter(pk=ines.pk).exists() and ShareLink.objects.get().title == ""
    running.refresh_from_db()
    assert (running.state, running.user, running.system_prompt, running.end_user) == ("stopped", None, "", "")


def test_actions_of_the_admin_block_revoke_and_cancel(staff, ines, owner) -> None:
    link = share(browser(owner), chat(owner))
    queued = Generation.objects.create(model="a", **owner.fields())
    for path, action, chosen in [
        ("auth/user", "block", ines.pk),
        ("sharing/sharelink", "revoke", link["id"]),
        ("chat/generation", "cancel", queued.pk),
    ]:
        answer = staff.post(f"/admin/{path}/", {"action": action, "_selected_action": str(chosen)})
        assert answer.status_code == 302, path
    ines.refresh_from_db()
    queued.refresh_from_db()
    assert not ines.is_active and queued.state == "stopped" and Client().get(link["url"]).status_code == 410
    assert AuditEntry.objects.count() == 3


def test_a_form_that_comes_back_has_the_focus_where_it_is_wrong(ines, client) -> None:
    def focused(path: str, data: dict) -> list[str]:
        return re.findall(r'name="(\w+)"[^>]* autofocus', client.post(path, data).content.decode())

    assert focused("/accounts/signup/", {"email": "new@example.org", "password1": "short"}) == ["password1"]
    assert focused("/accounts/signup/", {"email": "no address", "password1": PASSWORD}) == ["email"]
    assert focused("/accounts/login/", {"login": "ines@example.org", "password": "not this one"}) == ["password"]
    assert re.findall(r'name="(\w+)"[^>]* autofocus', client.get("/accounts/signup/").content.decode()) == ["email"]


@pytest.mark.parametrize(("host", "said"), [("mail.example.org", False), ("", True)])
def test_a_site_without_a_mail_server_does_not_say_that_mail_was_sent(client, settings, host, said) -> None:
    settings.EMAIL_HOST = host
    client.post("/accounts/signup/", {"email": "new@example.org", "password1": PASSWORD})
    page = client.get("/", headers={"Accept-Language": "fr"}).content.decode()
    assert ("has no mail server" in page) == said and ("Confirmation email sent to new@example.org." in page) != said
    reset = Client().post("/accounts/password/reset/", {"email": "new@example.org"}, follow=True, headers={"Accept-Language": "fr"})
    assert ("n’a pas de serveur de courriel" in reset.content.decode()) == said
