"""A chat that was exported comes back with its branches."""

import pytest

pytestmark = pytest.mark.django_db

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
    answer = post(client, {"messages": [{"id": "1", "role": "user", "content": "x" * 6_000_000}]})
    assert answer.status_code == 413
    assert answer.json()["message"] == "This message is 6.0 MB; the limit is 5 MB."


def test_half_a_surrogate_pair_is_refused(client):
    answer = client.post(
        "/api/conversations/import", r'{"messages":[{"id":"1","role":"user","content":"\ud800"}]}', content_type="application/json"
    )
    assert answer.status_code == 400


def test_the_race_page_is_served(client):
    assert client.get("/race").status_code == 200
