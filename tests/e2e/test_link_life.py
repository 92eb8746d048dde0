"""The life of a demo link: who sees what before and after its end, and its embed form on somebody else's page."""

import json
import re
import threading
import urllib.error
import urllib.request
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import pytest
from playwright.sync_api import Page, expect

from tests.e2e.conftest import SYNTHETIC, Product
from tests.e2e.test_share_ui import GONE, SLOW, axe_clean
from tests.e2e.test_stats_ui import manage

pytestmark = pytest.mark.e2e
WORDS = ("A telling title", "def add", "Their sum", "Add two numbers")
ENDS = ("live", "expired", "revoked", "deleted", "sharing off", "chat deleted", "all chats deleted")


class Person:
    """A browser's cookies and its CSRF header, without a browser."""

    def __init__(self, product: Product):
        self.product = product
        self.cookies = product.visit()
        _, headers, _ = self.ask("GET", "/links/")
        self.cookies += "".join("; " + cookie.split(";")[0] for cookie in headers.get_all("Set-Cookie") or [])

    def ask(self, method: str, path: str, body: dict | None = None) -> tuple[int, object, bytes]:
        token = re.search(r"csrftoken=(\w+)", self.cookies)
        headers = {"Cookie": self.cookies, "Content-Type": "application/json", "X-CSRFToken": token[1] if token else ""}
        data = None if body is None else json.dumps(body).encode()
        request = urllib.request.Request(self.product.url.rstrip("/") + path, data, headers, method=method)
        try:
            with urllib.request.urlopen(request, timeout=20) as answer:
                return answer.status, answer.headers, answer.read()
        except urllib.error.HTTPError as error:
            return error.code, error.headers, error.read()

    def json(self, method: str, path: str, body: dict | None = None) -> dict:
        status, _, content = self.ask(method, path, body)
        assert status < 300, content
        return json.loads(content) if content else {}

    def chat(self) -> str:
        with self.product.socket(self.cookies) as client:
            accepted = client.generate("Add two numbers", max_tokens=120)
            client.to_end()
        return accepted["conversation_id"]

    def link(self, conversation_id: str) -> dict:
        return self.json("POST", "/api/links", {"conversation_id": conversation_id, "title": WORDS[0], "allow_embed": True})


@pytest.fixture(scope="module")
def site() -> Iterator[Product]:
    """Of its own: a switch of the whole site is used."""
    product = Product(ENGINE_BACKEND=SYNTHETIC, SYNTHETIC_TOKENS_PER_S="200").start()
    yield product
    product.remove()


def in_database(product: Product, statement: str) -> None:
    manage(product, "shell", "-v0", "-c", f"from datetime import timedelta; from django.utils import timezone; {statement}")


def end(product: Product, owner: Person, link: dict, conversation_id: str, how: str) -> None:
    match how:
        case "expired":
            past = "timezone.now() - timedelta(seconds=1)"
            in_database(
                product,
                f"from playground.sharing.models import ShareLink; ShareLink.objects.filter(pk='{link['id']}').update(expires_at={past})",
            )
        case "revoked":
            owner.json("POST", f"/api/links/{link['id']}/revoke")
        case "deleted":
            owner.json("DELETE", f"/api/links/{link['id']}")
        case "sharing off" | "sharing on":
            on = how == "sharing on"
            in_database(product, f"from playground.accounts.models import SiteSettings; SiteSettings(sharing_enabled={on}).save()")
        case "chat deleted":
            owner.json("DELETE", f"/api/conversations/{conversation_id}")
        case "all chats deleted":
            owner.json("DELETE", "/api/conversations")


def seen(person: Person, path: str) -> str:
    """``200`` with the content, ``410`` without: anything in between would show here."""
    status, headers, content = person.ask("GET", path)
    if headers["Content-Type"] == "image/png":
        return f"{status}, image"
    told = [word for word in WORDS if word in content.decode()]
    return f"{status}, {'content' if len(told) == len(WORDS) else 'nothing' if not told else f'LEAKS {told}'}"


def test_the_table_of_a_links_life(site: Product) -> None:
    owner, stranger = Person(site), Person(site)
    table: dict[str, dict[str, str]] = {}
    for how in ENDS:
        conversation_id = owner.chat()
        link = owner.link(conversation_id)
        url = link["url"]
        earlier = stranger.json("POST", f"/api/links/fork/{url[3:]}")["conversation_id"]
        assert seen(stranger, f"{url}/preview.png") == "200, image"  # made and kept while it lives
        end(site, owner, link, conversation_id, how)
        listed = {item["id"]: item["state"] for item in owner.json("GET", "/api/links")["items"]}
        published = owner.ask("POST", f"/api/links/{link['id']}/publish", {})[0]
        table[how] = {
            "page, stranger": seen(stranger, url),
            "page, owner": seen(owner, url),
            "embed": seen(stranger, f"{url}/embed"),
            "preview image": seen(stranger, f"{url}/preview.png"),
            "new fork": str(stranger.ask("POST", f"/api/links/fork/{url[3:]}")[0]),
            "earlier fork": str(stranger.ask("GET", f"/api/conversations/{earlier}")[0]),
            "publish an update": str(published),
            "owner's list": listed.get(link["id"], "not listed"),
        }
        if how == "sharing off":
            end(site, owner, link, conversation_id, "sharing on")
            assert seen(stranger, url) == "200, content"
    print(f"\n| who and what | {' | '.join(ENDS)} |\n|---|{'---|' * len(ENDS)}")
    for name in table["live"]:
        print(f"| {name} | {' | '.join(table[how][name] for how in ENDS)} |")
    over = {"page, stranger": "410, nothing", "page, owner": "410, nothing", "embed": "410, nothing", "preview image": "410, nothing"}
    for how in ENDS[1:]:
        assert over.items() <= table[how].items(), how
        assert table[how]["new fork"] == "410"
    assert all(column["earlier fork"] == "200" for column in table.values())
    assert [table[how]["owner's list"] for how in ENDS] == ["live", "expired", "revoked", "not listed", "live", "not listed", "not listed"]
    assert [table[how]["publish an update"] for how in ENDS] == ["200", "200", "410", "404", "403", "404", "404"]


@pytest.fixture
def blog() -> Iterator[tuple[str, list[str]]]:
    """The address of another site, and the page that it serves."""
    page: list[str] = [""]

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            self.send_response(200)
            self.send_header("Content-Type", "text/html; charset=utf-8")
            self.end_headers()
            self.wfile.write(page[0].encode())

        def log_message(self, *args) -> None:
            pass

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    yield f"http://localhost:{server.server_port}/", page
    server.shutdown()


def test_an_embed_plays_in_a_blog_until_the_link_ends(site: Product, page: Page, blog, shot) -> None:
    page.set_default_timeout(SLOW)
    address, html = blog
    owner = Person(site)
    link = owner.link(owner.chat())
    base = site.url.rstrip("/")
    html[0] = (
        '<!doctype html><html lang="en"><title>A blog</title><main><h1>A blog</h1>'
        f'<iframe src="{base}{link["url"]}/embed" width="720" height="560" title="Demo"></iframe></main>'
    )
    page.set_viewport_size({"width": 800, "height": 700})
    page.goto(address)
    frame = page.frame_locator("iframe")
    frame.get_by_role("slider", name="Playhead").press("End")
    expect(frame.locator(".codebox li:not([hidden])").first).to_be_visible()
    expect(frame.get_by_role("heading", name=WORDS[0])).to_be_attached()
    expect(frame.get_by_role("link", name="Open the playground")).to_have_count(0)
    shot(page, "blog")
    axe_clean(page)
    page.set_viewport_size({"width": 390, "height": 700})
    page.evaluate("document.querySelector('iframe').width = 340")
    inner = page.frames[1]
    assert inner.evaluate("document.documentElement.scrollWidth <= document.documentElement.clientWidth")
    shot(page, "blog-phone")

    owner.json("PATCH", f"/api/links/{link['id']}", {"allow_embed": False})
    assert seen(owner, f"{link['url']}/embed") == "404, nothing"
    owner.json("PATCH", f"/api/links/{link['id']}", {"allow_embed": True})
    owner.json("POST", f"/api/links/{link['id']}/revoke")
    page.reload()
    expect(frame.locator("body")).to_have_text(re.compile(rf"^\s*{re.escape(GONE)}\s*$"))
    shot(page, "blog-gone")
