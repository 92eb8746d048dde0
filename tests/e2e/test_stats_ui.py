"""The stats page in a real browser: figures of real requests, charts as tables, engines, acts with their question."""

import os
import re
import subprocess
import sys
import uuid
from urllib.parse import quote

import pytest
from playwright.sync_api import Browser, Page, expect

from tests.e2e.conftest import ROOT, Product
from tests.e2e.test_chat_ui import ask, title
from tests.e2e.test_share_ui import SLOW, axe_clean, no_sideways_scroll

pytestmark = pytest.mark.e2e
PASSWORD = "correct-horse-battery"


def manage(product: Product, *command: str, **env: str) -> None:
    """A management command in the product's folder."""
    settings = product.env | {"REDIS_URL": "redis://127.0.0.1:1/0"} | env
    subprocess.run([sys.executable, "manage.py", *command], cwd=ROOT, env=os.environ | settings, check=True, timeout=120)


@pytest.fixture(scope="module")
def admin(synthetic: Product) -> str:
    """E-mail of a superuser, made by the documented command."""
    name = f"root-{uuid.uuid4().hex[:6]}"
    email = f"{name}@example.org"
    manage(
        synthetic,
        "createsuperuser",
        "--noinput",
        DJANGO_SUPERUSER_USERNAME=name,
        DJANGO_SUPERUSER_EMAIL=email,
        DJANGO_SUPERUSER_PASSWORD=PASSWORD,
    )
    return email


def sign_in(page: Page, product: Product, email: str, to: str) -> None:
    page.set_default_timeout(SLOW)
    page.goto(f"{product.url}accounts/login/?next={quote(to)}")
    page.get_by_label("E-mail").fill(email)
    page.get_by_label("Password", exact=True).fill(PASSWORD)
    page.get_by_role("button", name="Sign in").click()
    page.wait_for_url(product.url.rstrip("/") + to)


def test_staff_see_what_was_asked_and_act_on_an_engine(synthetic: Product, page: Page, admin: str, shot) -> None:
    page.set_default_timeout(SLOW)
    page.set_viewport_size({"width": 1440, "height": 900})
    page.goto(synthetic.url)
    ask(page, "Count me", 60)
    title(page, "Complete")
    with synthetic.socket(synthetic.visit()) as client:
        assert client.generate("Too warm", temperature=9)["code"] == "invalid_request"
    sign_in(page, synthetic, admin, "/stats/")
    requests = page.locator(".kp div", has_text="Requests").locator(".v")
    expect(requests).not_to_have_text("0")
    refused = page.get_by_role("row", name="refused: wrong parameter")
    expect(refused).to_contain_text("1")
    expect(refused.get_by_title("refused: wrong parameter (invalid_request)")).to_be_visible()
    asked = int(requests.inner_text().replace(",", ""))
    rows = page.evaluate("fetch('/api/stats/series?range=24h').then(r => r.json())")
    assert sum(row["requests"] for row in rows) == asked
    expect(page.locator(".box", has_text="Workers now")).to_contain_text(re.compile("Ready|Streaming"))
    expect(page.get_by_role("heading", name="Users", exact=True)).to_be_visible()
    expect(page.get_by_role("img", name=re.compile("^Active users and link views: "))).to_have_count(2)  # an axis for each
    shot(page, "desktop")
    axe_clean(page)

    switch = page.get_by_role("button", name="Requests as a table")
    switch.click()
    table = page.get_by_role("region", name="Requests", exact=True).get_by_role("table")
    expect(table.get_by_role("row")).to_have_count(25)
    shown = sum(int(text.replace(",", "")) for text in table.locator("td").all_inner_texts())
    assert shown == asked
    axe_clean(page)
    page.get_by_label("Steps to fit").select_option("per week")
    expect(table.get_by_role("row")).not_to_have_count(25)
    assert table.get_by_role("row").count() in (2, 3)  # 24 h may begin in the week before
    expect(page.get_by_role("heading", name="Visitors", exact=True)).to_be_visible()
    page.get_by_label("Steps to fit").select_option("Steps to fit")
    switch.click()
    expect(table).to_have_count(0)

    with page.expect_download() as download:
        page.get_by_role("button", name="CSV").click()
        page.get_by_role("button", name="Over time").click()
    assert download.value.suggested_filename.endswith(".csv")

    workers = page.locator(".box", has_text="Workers now")
    for act, state in (("Drain", "Draining"), ("Resume", "Ready")):
        workers.get_by_role("button", name=act).click()
        dialog = page.get_by_role("dialog", name=act)
        expect(dialog).to_contain_text(" / 0")  # names the engine
        dialog.get_by_role("button", name=act).click()
        expect(workers).to_contain_text(state)
    page.goto(f"{synthetic.url}admin/usage/auditentry/")
    expect(page.get_by_text("drain engine").first).to_be_visible()
    shot(page, "audit")


@pytest.mark.parametrize("width, height, scheme", [(390, 844, "dark"), (390, 844, "light"), (1440, 900, "light"), (320, 700, "dark")])
def test_the_page_holds_on_every_screen(
    synthetic: Product, browser: Browser, admin: str, shot, width: int, height: int, scheme: str
) -> None:
    context = browser.new_context(viewport={"width": width, "height": height}, color_scheme=scheme)
    page = context.new_page()
    sign_in(page, synthetic, admin, "/stats/?range=7d")
    expect(page.get_by_role("heading", name="Links", exact=True)).to_be_visible()
    no_sideways_scroll(page)
    axe_clean(page)
    shot(page, f"{width}-{scheme}")
    context.close()


def test_visitors_and_refusals_are_said_in_french(synthetic: Product, browser: Browser, admin: str) -> None:
    with synthetic.socket(synthetic.visit()) as client:
        assert client.generate("Too warm", temperature=9)["code"] == "invalid_request"
        client.generate("Count me", max_tokens=5)
        client.to_end()
    manage(synthetic, "rollup_usage")
    context = browser.new_context()
    page = context.new_page()
    sign_in(page, synthetic, admin, "/stats/")
    context.add_init_script("localStorage.setItem('language', 'fr')")
    page.reload()
    expect(page.get_by_role("row", name="refusée : paramètre invalide")).to_be_visible()
    expect(page.get_by_role("row", name=re.compile("^visiteur [0-9a-f]{8}")).first).to_be_visible()
    expect(page.get_by_text(re.compile("^visitor"))).to_have_count(0)
    context.close()


def test_a_range_keeps_the_focus_and_a_filter_from_elsewhere_is_shown(synthetic: Product, page: Page, admin: str) -> None:
    sign_in(page, synthetic, admin, "/stats/?range=24h&model=long-gone")
    expect(page.get_by_label("All models")).to_have_value("long-gone")
    week = page.get_by_role("button", name="7 days")
    week.focus()
    page.keyboard.press("Enter")
    expect(week).to_have_attribute("aria-pressed", "true")
    expect(page.get_by_role("button", name="24 h")).to_have_attribute("aria-pressed", "false")
    expect(week).to_be_focused()
    page.get_by_role("button", name="Dates").press("Enter")
    expect(page.get_by_label("From")).to_be_focused()


def test_an_empty_span_says_so_and_keeps_its_axes(synthetic: Product, page: Page, admin: str) -> None:
    sign_in(page, synthetic, admin, "/stats/?from=2020-01-01&to=2020-01-02")
    expect(page.get_by_text(re.compile("No requests between 1 Jan, 00:00 and 3 Jan, 00:00 UTC."))).to_be_visible()
    expect(page.locator(".trace .plot").first).to_be_visible()
