"""Demo links: what is shared, who sees what over a link's life, forks, previews."""

import io
from datetime import timedelta
from uuid import uuid4

import pytest
from django.contrib.auth import get_user_model
from django.test import Client
from django.utils import timezone
from PIL import Image

from playground import limits
from playground.accounts.models import SiteSettings
from playground.chat.models import Conversation, Generation, Message
from playground.chat.services import conversation_delete
from playground.identity import COOKIE, Owner, visitor_cookie
from playground.sharing import services
from playground.sharing.models import ShareLink, SharePreview

pytestmark = pytest.mark.django_db
SECRET = "zebra-crossing-code"
ANSWER = f"Here it is.\n\n```python\ndef {SECRET.replace('-', '_')}():\n    return 1\n```\nDone."


def chat(owner: Owner, prompt: str = "Write a function", title: str = "Cheapest path") -> Conversation:
    """A conversation with one finished, recorded answer."""
    conversation = Conversation.objects.create(title=title, **owner.fields())
    asked = Message.objects.create(conversation=conversation, role="user", content=prompt)
    answer_add(conversation, asked, ANSWER)
    return conversation


def answer_add(conversation: Conversation, asked: Message, text: str) -> Message:
    answer = Message.objects.create(conversation=conversation, parent=asked, role="assistant", content=text)
    pieces = [text[i : i + 7] for i in range(0, len(text), 7)]
    Generation.objects.create(
        user=conversation.user,
        visitor_id=conversation.visitor_id,
        conversation=conversation,
        message=answer,
        model="smollm2-135m-instruct",
        system_prompt="the hidden system prompt",
        params={"temperature": 0.2, "seed": 7},
        state="done",
        finish_reason="stop",
        prompt_tokens=12,
        completion_tokens=len(pieces),
        queue_ms=3.0,
        ttft_ms=21.0,
        total_ms=21.0 + len(pieces),
        decode_tokens_per_s=951.0,
        trace=[[n + 2, len(piece), 1, 21.0 + n] for n, piece in enumerate(pieces)],
        device="NVIDIA H200",
        gpus=1,
        precision="float16",
        backend="monokernel",
    )
    return answer


def browser(owner: Owner) -> Client:
    client = Client()
    if owner.user:
        client.force_login(owner.user)
    else:
        client.cookies[COOKIE] = visitor_cookie(owner.visitor_id)
    return client


def visitor() -> Owner:
    return Owner(visitor_id=uuid4())


def share(client: Client, conversation: Conversation, **body) -> dict:
    response = client.post("/api/links", {"conversation_id": str(conversation.pk), **body}, content_type="application/json")
    assert response.status_code == 201, response.content
    return response.json()


def test_a_viewer_sees_the_snapshot_and_no_more(empty_redis, owner) -> None:
    link = share(browser(owner), chat(owner))
    page = browser(visitor()).get(link["url"])
    text = page.content.decode()
    assert page.status_code == 200
    assert SECRET.replace("-", "_") in text and "951" in text
    assert "the hidden system prompt" not in text and str(owner.visitor_id) not in text
    assert page["X-Robots-Tag"].startswith("noindex") and page["Referrer-Policy"] == "no-referrer" and page["Cache-Control"] == "no-store"
    assert '<meta name="robots" content="noindex' in text and "frame-ancestors 'none'" in page["Content-Security-Policy"]
    assert len(link["url"]) >= len("/s/") + 22  # 128 bits in base64


def test_an_owner_name_is_shown_only_when_chosen(empty_redis) -> None:
    user = get_user_model().objects.create_user("ines", "ines@example.org", "pw")
    client = browser(Owner(user=user))
    conversation = chat(Owner(user=user))
    silent, named = share(client, conversation), share(client, conversation, owner_name="Ines M.")
    assert "ines" not in Client().get(silent["url"]).content.decode().lower()
    assert "Ines M." in Client().get(named["url"]).content.decode()


def test_the_snapshot_is_immutable_until_an_update_is_published(empty_redis, owner) -> None:
    client, conversation = browser(owner), chat(owner)
    link = share(client, conversation)
    first = conversation.messages.get(role="assistant")
    asked = Message.objects.create(conversation=conversation, parent=first, role="user", content="And faster, please")
    answer_add(conversation, asked, "A faster answer.")
    assert "A faster answer." not in Client().get(link["url"]).content.decode()
    updated = client.post(f"/api/links/{link['id']}/publish", {}, content_type="application/json").json()
    page = Client().get(link["url"]).content.decode()
    assert updated["url"] == link["url"]
    assert "A faster answer." in page and "Write a function" in page


def test_one_answer_is_shared_without_what_came_before(empty_redis, owner) -> None:
    conversation = chat(owner, prompt="The private first request")
    first = conversation.messages.get(role="assistant")
    asked = Message.objects.create(conversation=conversation, parent=first, role="user", content="Now with weights")
    answer = answer_add(conversation, asked, "Weighted.")
    link = share(browser(owner), conversation, scope="answer", message_id=str(answer.pk))
    page = Client().get(link["url"]).content.decode()
    assert "Now with weights" in page and "The private first request" not in page


LIVES = {
    "revoke": lambda link, conversation: services.link_revoke(link=link),
    "expiry": lambda link, conversation: ShareLink.objects.filter(pk=link.pk).update(expires_at=timezone.now() - timedelta(seconds=1)),
    "delete": lambda link, conversation: services.link_delete(link=link),
    "chat deleted": lambda link, conversation: conversation_delete(conversation=conversation),
    "owner deleted": lambda link, conversation: conversation.user.delete(),
    "sharing off": lambda link, conversation: SiteSettings(sharing_enabled=False).save(),
}


@pytest.mark.parametrize("end", LIVES)
def test_a_link_that_is_over_says_nothing_of_its_content(empty_redis, end: str) -> None:
    user = get_user_model().objects.create_user("ines", "ines@example.org", "pw")
    owner = Owner(user=user)
    conversation = chat(owner, title="A telling title")
    made = share(browser(owner), conversation, allow_embed=True)
    link = ShareLink.objects.get(pk=made["id"])
    paths = [made["url"], f"{made['url']}/embed", f"{made['url']}/preview.png"]
    assert [Client().get(path).status_code for path in paths] == [200, 200, 200]
    LIVES[end](link, conversation)
    for path in paths:
        answer = Client().get(path)
        assert answer.status_code == 410
        assert answer["Content-Type"].startswith("text/html")
        assert not any(word in answer.content.decode() for word in (SECRET.replace("-", "_"), "telling", "951", "Write a function"))
    fork = browser(visitor()).post(f"/api/links/fork/{link.token}", content_type="application/json")
    assert fork.status_code == 410 and fork.json()["message"] == "This demo is no longer available."
    if end in ("delete", "chat deleted", "owner deleted"):
        kept = ShareLink.objects.get(pk=link.pk)
        assert (kept.snapshot, kept.title, kept.user, kept.conversation) == ({}, "", None, None)
        assert not SharePreview.objects.filter(link=link).exists()


def test_a_token_that_never_was_is_not_found(empty_redis) -> None:
    assert Client().get("/s/" + "a" * 32).status_code == 404


def test_a_fork_survives_and_owns_nothing_of_the_original(empty_redis, owner) -> None:
    conversation, viewer = chat(owner), visitor()
    link = share(browser(owner), conversation)
    forked = browser(viewer).post(f"/api/links/fork/{link['url'][3:]}", content_type="application/json").json()
    conversation_delete(conversation=conversation)
    copy = browser(viewer).get(f"/api/conversations/{forked['conversation_id']}").json()
    assert [m["content"] for m in copy["messages"]] == ["Write a function", ANSWER]
    assert all(m["generation"] is None for m in copy["messages"])  # the original's generation is counted once
    assert browser(owner).get(f"/api/conversations/{forked['conversation_id']}").status_code == 404


def test_views_count_each_viewer_once_an_hour_and_never_the_owner(empty_redis, owner) -> None:
    client = browser(owner)
    link = share(client, chat(owner))
    one, two = browser(visitor()), browser(visitor())
    for viewer in (one, one, two, client):
        viewer.get(link["url"])
    assert client.get("/api/links").json()["items"][0]["views"] == 2


def test_links_belong_to_their_owner(empty_redis, owner) -> None:
    link, stranger = share(browser(owner), chat(owner)), browser(visitor())
    assert stranger.get("/api/links").json()["items"] == []
    assert stranger.post(f"/api/links/{link['id']}/revoke").status_code == 404
    assert stranger.delete(f"/api/links/{link['id']}").status_code == 404
    foreign = stranger.post("/api/links", {"conversation_id": str(Conversation.objects.get().pk)}, content_type="application/json")
    assert foreign.status_code == 404


def test_an_embed_is_opt_in_and_may_be_framed_anywhere(empty_redis, owner) -> None:
    client = browser(owner)
    link = share(client, chat(owner))
    assert Client().get(f"{link['url']}/embed").status_code == 404
    client.patch(f"/api/links/{link['id']}", {"allow_embed": True}, content_type="application/json")
    page = Client().get(f"{link['url']}/embed")
    assert page.status_code == 200 and "X-Frame-Options" not in page
    assert "frame-ancestors *" in page["Content-Security-Policy"]


def test_changing_expiry_brings_an_expired_link_back_and_names_the_limit(empty_redis, owner) -> None:
    client = browser(owner)
    link = share(client, chat(owner), expires_in_days=30)
    ShareLink.objects.update(expires_at=timezone.now() - timedelta(days=1))
    assert client.get("/api/links").json()["items"][0]["state"] == "expired"
    assert client.patch(f"/api/links/{link['id']}", {"expires_in_days": None}, content_type="application/json").json()["state"] == "live"
    refused = client.patch(f"/api/links/{link['id']}", {"expires_in_days": 5000}, content_type="application/json")
    assert refused.status_code == 400 and "1 to 3,650 days; got 5000" in refused.json()["message"]


def test_the_preview_shows_1200_by_630_pixels_of_code_and_speed(empty_redis, owner) -> None:
    link = share(browser(owner), chat(owner))
    image = Image.open(io.BytesIO(Client().get(f"{link['url']}/preview.png").content))
    assert image.size == (1200, 630)
    signal = image.crop((720, 0, 1200, 500)).tobytes().count(bytes((205, 235, 74)))
    assert signal > 2000  # the figure stands in the signal colour
    assert SharePreview.objects.count() == 1


def test_a_chat_without_a_recording_is_shown_as_text_alone(empty_redis, owner) -> None:
    recorded = share(browser(owner), chat(owner))
    conversation = chat(owner)
    Generation.objects.filter(conversation=conversation).delete()  # as after an import
    link = share(browser(owner), conversation)
    assert "replayed at the recorded speed" in Client().get(recorded["url"]).content.decode()
    page = Client().get(link["url"]).content.decode()
    assert 'content="A shared demo."' in page and 'rel="icon"' in page
    image = Image.open(io.BytesIO(Client().get(f"{link['url']}/preview.png").content))
    assert image.size == (1200, 630)
    assert image.getpixel((1000, 250)) == image.getpixel((400, 490)) == (13, 16, 13), "the text has the whole width"


def test_a_running_answer_is_not_shared(empty_redis, owner) -> None:
    conversation = chat(owner)
    Generation.objects.update(state="running")
    refused = browser(owner).post("/api/links", {"conversation_id": str(conversation.pk)}, content_type="application/json")
    assert refused.status_code == 400 and "still being written" in refused.json()["message"]
    assert not ShareLink.objects.exists()


def imported(client: Client, *messages: tuple[str, str]) -> str:
    """The id of a chat without generations, one message under the other."""
    rows = [
        {"id": str(n), "parent_id": str(n - 1) if n else None, "role": role, "content": text} for n, (role, text) in enumerate(messages)
    ]
    answer = client.post("/api/conversations/import", {"title": "Odd", "messages": rows}, content_type="application/json")
    return answer.json()["id"]


@pytest.mark.parametrize("before", [[], [("assistant", "I begin.")], [("user", "One"), ("user", "Two")]])
def test_an_odd_imported_chat_is_shared_whole_and_breaks_no_page(empty_redis, owner, before: list) -> None:
    client = browser(owner)
    link = share(client, Conversation.objects.get(pk=imported(client, *before, ("assistant", "The answer."))))
    assert "The answer." in Client().get(link["url"]).content.decode()
    assert Client().get(f"{link['url']}/preview.png").status_code == 200
    assert Client().get("/accounts/login/").status_code == 200  # shows the newest public run, if it has one
    viewer = browser(visitor())
    fork = viewer.post(f"/api/links/fork/{link['url'][3:]}", content_type="application/json").json()["conversation_id"]
    copied = [m["content"] for m in viewer.get(f"/api/conversations/{fork}").json()["messages"]]
    assert copied == {0: ["The answer."], 1: ["I begin.", "The answer."], 2: ["One\n\nTwo", "The answer."]}[len(before)]


def test_a_look_without_a_page_is_no_view(empty_redis, owner) -> None:
    client = browser(owner)
    link = share(client, chat(owner))
    assert browser(visitor()).head(link["url"]).status_code == 200
    assert client.get("/api/links").json()["items"][0]["views"] == 0


def test_texts_that_no_database_holds_are_refused_by_name(empty_redis, owner) -> None:
    client, conversation = browser(owner), chat(owner)
    link = share(client, conversation)
    for refused in (
        client.post("/api/links", {"conversation_id": str(conversation.pk), "title": "a\0b"}, content_type="application/json"),
        client.patch(f"/api/links/{link['id']}", {"owner_name": "a\0b"}, content_type="application/json"),
        client.patch(f"/api/links/{link['id']}", {"title": "  "}, content_type="application/json"),
        client.patch(f"/api/conversations/{conversation.pk}", {"title": "a\0b"}, content_type="application/json"),
        client.post(
            "/api/conversations/import", {"messages": [{"id": "1", "role": "user", "content": "a\0b"}]}, content_type="application/json"
        ),
        client.get("/api/conversations?q=%00"),
    ):
        assert refused.status_code == 400 and refused.json()["code"] == "malformed", refused.content
        assert not refused.json()["message"].startswith("body.")
    assert client.get("/s/%00").status_code == 404


def test_a_gone_embed_says_so_in_its_frame(empty_redis, owner) -> None:
    link = share(browser(owner), chat(owner), allow_embed=True)
    services.link_revoke(link=ShareLink.objects.get())
    gone = Client().get(f"{link['url']}/embed")
    assert gone.status_code == 410 and "frame-ancestors *" in gone["Content-Security-Policy"]
    assert "frame-ancestors 'none'" in Client().get(link["url"])["Content-Security-Policy"]


def test_copies_of_chats_have_a_limit_a_minute(empty_redis, owner, monkeypatch) -> None:
    monkeypatch.setattr(limits, "COPIES_PER_MINUTE", 2)
    link, viewer = share(browser(owner), chat(owner)), browser(visitor())
    fork = lambda client: client.post(f"/api/links/fork/{link['url'][3:]}", content_type="application/json")  # noqa: E731
    assert [fork(viewer).status_code for _ in range(3)] == [201, 201, 429]
    refused = fork(viewer).json()
    assert refused["message"].startswith("2 copies of chats a minute are the limit for a visitor. Free again in ")
    assert refused["details"] | {"retry_after_s": 0} == {"limited": "copies", "span": "minute", "limit": 2, "retry_after_s": 0}
    assert 50 < refused["details"]["retry_after_s"] <= 60
    assert fork(browser(visitor())).status_code == 201


def test_deleting_all_chats_ends_their_links_and_touches_nobody_elses(empty_redis, owner) -> None:
    other = visitor()
    kept = share(browser(other), chat(other))
    made = [share(browser(owner), chat(owner)) for _ in range(2)]
    running = Generation.objects.create(model="a", conversation=Conversation.objects.filter(**owner.fields()).first(), **owner.fields())
    assert Client().delete("/api/conversations").status_code == 204  # somebody without chats
    assert browser(owner).delete("/api/conversations").status_code == 204
    assert [Client().get(link["url"]).status_code for link in (*made, kept)] == [410, 410, 200]
    assert list(Conversation.objects.values_list("visitor_id", flat=True)) == [other.visitor_id]
    running.refresh_from_db()
    assert running.state == "stopped"
