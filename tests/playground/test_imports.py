"""A chat that was exported comes back with its branches."""

import pytest
from django.test import Client

pytestmark = pytest.mark.django_db

ROLES = ("user", "assistant")
BODY = {
    "title": "Grid",
    "messages": [
        {"id": "1", "parent_id": None, "role": "user", "content": "Breadth-first search"},
        {"id": "2", "parent_id": "1", "role": "assistant", "content": "Here it is."},
        {"id": "3", "parent_id": "1", "role": "assistant", "content": "Another way."},
    ],
}


@pytest.fixture
def client(client):
    client.get("/")  # a visitor cookie
    return client


def post(client, body):
    return client.post("/api/conversations/import", body, content_type="application/json")


def test_a_tree_comes_back_as_it_was(client):
    answer = post(client, BODY)
    assert answer.status_code == 201
    stored = client.get(f"/api/conversations/{answer.json()['id']}").json()
    assert stored["title"] == "Grid"
    assert [m["content"] for m in stored["messages"]] == ["Breadth-first search", "Here it is.", "Another way."]
    first = stored["messages"][0]["id"]
    assert [m["parent_id"] for m in stored["messages"]] == [None, first, first]
    assert all(m["generation"] is None for m in stored["messages"])


def test_a_long_chat_comes_in_parts_that_hang_together(client):
    """1,500 messages, each under the one before; the second part's parents are in the first."""
    messages = [{"id": str(n), "parent_id": str(n - 1) if n else None, "role": ROLES[n % 2], "content": f"Text {n}"} for n in range(1500)]
    assert post(client, {"title": "Long", "messages": messages}).status_code == 400, "a part has 1,000 messages at most"
    answer = post(client, {"title": "Long", "messages": messages[:1000]})
    chat = answer.json()["id"]
    assert post(client, {"conversation_id": chat, "messages": messages[1000:]}).json() == {"id": chat}
    stored = client.get(f"/api/conversations/{chat}").json()
    assert stored["title"] == "Long" and [m["content"] for m in stored["messages"]] == [f"Text {n}" for n in range(1500)]
    assert [m["parent_id"] for m in stored["messages"]] == [None, *(m["id"] for m in stored["messages"][:-1])]

    again = post(client, {"conversation_id": chat, "messages": messages[1400:]})
    assert again.status_code == 400 and again.json()["message"] == "Two messages have the id '1400'."
    loose = post(client, {"conversation_id": chat, "messages": [{"id": "x", "parent_id": "2000", "role": "user", "content": "?"}]})
    assert loose.status_code == 400 and "'2000', which does not come before it" in loose.json()["message"]
    stranger = Client()
    stranger.get("/")
    assert post(stranger, {"conversation_id": chat, "messages": [BODY["messages"][0]]}).status_code == 404


def test_bad_files_name_what_is_wrong(client, monkeypatch):
    loose = {"title": "", "messages": [BODY["messages"][1]]}
    answer = post(client, loose)
    assert answer.status_code == 400 and "'1'" in answer.json()["message"]
    assert post(client, {"title": "", "messages": []}).status_code == 400
    answer = post(client, {"title": "", "messages": [*BODY["messages"], BODY["messages"][0]]})
    assert answer.status_code == 400 and answer.json()["message"] == "Two messages have the id '1'."
    monkeypatch.setattr("playground.config.config.max_message_bytes", 10)
    answer = post(client, BODY)
    assert answer.status_code == 400 and "limit" in answer.json()["message"]
    assert client.get("/api/conversations").json()["items"] == []


def test_a_body_over_the_limit_is_refused_with_both_numbers(client):
    answer = post(client, {"messages": [{"id": "1", "role": "user", "content": "x" * 5_000_000}]})
    assert answer.status_code == 413
    assert answer.json()["message"] == "This message is 5.1 MB; the limit is 5 MB."


@pytest.mark.parametrize(
    ("escape", "what"), [(r"\ud800", "half of a surrogate pair (U+D800)"), (r"\u0000", "NUL (U+0000), which no text may hold here")]
)
def test_a_character_that_no_text_may_hold_is_refused_with_its_place(client, escape, what):
    body = r'{"messages":[{"id":"1","role":"user","content":"é!@"}]}'.replace("@", escape)
    answer = client.post("/api/conversations/import", body, content_type="application/json")
    assert (answer.status_code, answer.json()["message"]) == (400, f"messages.0.content: Character 3 is {what}")


def test_the_race_page_is_served(client):
    assert client.get("/race").status_code == 200
