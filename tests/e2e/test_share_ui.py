"""A demo link from the Share button to 410, in a real browser over the whole product."""

import re

import pytest
from axe_playwright_python.sync_playwright import Axe
from playwright.sync_api import Browser, BrowserContext, Page, expect

from tests.e2e.conftest import Product
from tests.e2e.test_chat_ui import ask, title

pytestmark = pytest.mark.e2e
SLOW = 60_000  # ms
GONE = "This demo is no longer available."


def axe_clean(page: Page) -> None:
    tags = ["wcag2a", "wcag2aa", "wcag21a", "wcag21aa", "wcag22aa", "best-practice"]
    found = Axe().run(page, options={"runOnly": tags}).response["violations"]
    assert not found, [(v["id"], v["nodes"][0]["html"][:200]) for v in found]


def no_sideways_scroll(page: Page) -> None:
    assert page.evaluate("document.documentElement.scrollWidth <= document.documentElement.clientWidth")


@pytest.fixture
def owner(synthetic: Product, page: Page) -> Page:
    page.set_default_timeout(SLOW)
    page.goto(synthetic.url)
    expect(page.get_by_text("Connected")).to_be_visible(timeout=SLOW)
    return page


@pytest.fixture
def viewer(browser: Browser) -> BrowserContext:
    """Another person: no cookie of the owner's."""
    context = browser.new_context(
        viewport={"width": 1440, "height": 900}, color_scheme="dark", permissions=["clipboard-read", "clipboard-write"]
    )
    context.set_default_timeout(SLOW)
    yield context
    context.close()


def share(page: Page, name: str, text: str = "Add two numbers") -> str:
    """Ask, press Share, make a link; its address."""
    ask(page, text, 300)
    title(page, "Complete")
    page.get_by_role("button", name="Share").click()
    dialog = page.get_by_role("dialog", name="Share")
    dialog.get_by_label("Title").fill(name)
    dialog.get_by_role("button", name="Make a link").click()
    return dialog.get_by_label("Address").input_value()


def test_a_link_is_shared_replayed_run_forked_and_revoked(owner: Page, viewer: BrowserContext, synthetic: Product, shot) -> None:
    address = share(owner, "Adding, shown")
    answer = owner.evaluate("id => fetch(`/api/conversations/${id}`).then(r => r.json())", owner.url.rsplit("/", 1)[1])["messages"][1]

    page = viewer.new_page()
    page.goto(address)
    expect(page.get_by_role("heading", name="Adding, shown")).to_be_visible()
    assert page.locator('meta[name="robots"]').get_attribute("content").startswith("noindex")
    slider = page.get_by_role("slider", name="Playhead")
    slider.press("End")
    figure = round(answer["generation"]["timings"]["decode_tokens_per_s"])
    expect(page.locator(".fig > span")).to_have_text(f"{figure}")
    expect(page.locator(".codebox li:not([hidden])").first).to_be_visible()
    shot(page, "desktop-dark")
    axe_clean(page)

    whole = page.locator(".codebox li:not([hidden])").count()
    slider.press("Home")
    expect(page.locator(".tm")).to_contain_text("0.000")
    slider.press("ArrowRight")
    assert 0 < page.locator(".codebox li:not([hidden])").count() < whole
    slider.press("Space")  # plays on from there
    expect(page.get_by_role("button", name="Pause")).to_be_visible()
    page.get_by_role("button", name="At once").click()
    expect(page.locator(".codebox li:not([hidden])")).to_have_count(whole)
    page.locator(".codebox .t").nth(1).click()
    assert page.locator(".codebox li:not([hidden])").count() < whole

    page.get_by_role("button", name="Copy code").click()
    assert page.evaluate("navigator.clipboard.readText()").strip() in answer["content"]
    page.get_by_role("button", name="Fork into my playground").click()
    page.wait_for_url(re.compile("/c/"))
    expect(page.get_by_text("Add two numbers").first).to_be_visible()

    owner.goto(f"{synthetic.url}links/")
    row = owner.get_by_role("row", name=re.compile("Adding, shown"))
    expect(row).to_contain_text("Live")
    shot(owner, "links")
    axe_clean(owner)
    before = owner.viewport_size
    owner.set_viewport_size({"width": 390, "height": 844})
    expect(row.get_by_role("button", name="Copy link")).to_be_in_viewport(ratio=1)
    expect(row.get_by_role("cell", name=re.compile("^Expires"))).to_be_in_viewport(ratio=1)
    no_sideways_scroll(owner)
    axe_clean(owner)
    owner.set_viewport_size(before)
    row.get_by_role("button", name="Actions: Adding, shown").click()
    owner.get_by_role("button", name="Revoke").click()
    owner.get_by_role("dialog").get_by_role("button", name="Revoke").click()
    expect(row).to_contain_text("Revoked")

    gone = viewer.new_page()
    assert gone.goto(address).status == 410
    expect(gone.locator("body")).to_have_text(re.compile(rf"^\s*{GONE}\s*$"))
    assert gone.goto(f"{address}/preview.png").status == 410
    page.reload()
    expect(page.get_by_text("Add two numbers").first).to_be_visible()  # the fork lives on


@pytest.mark.parametrize("width, height, scheme", [(390, 844, "light"), (1440, 900, "light"), (390, 844, "dark"), (320, 700, "dark")])
def test_the_demo_holds_on_every_screen(
    owner: Page, browser: Browser, synthetic: Product, shot, width: int, height: int, scheme: str
) -> None:
    address = getattr(test_the_demo_holds_on_every_screen, "address", None) or share(owner, "One for all screens")
    test_the_demo_holds_on_every_screen.address = address
    context = browser.new_context(viewport={"width": width, "height": height}, color_scheme=scheme, reduced_motion="reduce")
    page = context.new_page()
    page.goto(address)
    expect(page.get_by_text("decode rate, whole run")).to_be_visible(timeout=SLOW)  # calm: it starts at the end, paused
    no_sideways_scroll(page)
    axe_clean(page)
    shot(page, f"{width}-{scheme}")
    context.close()


def test_code_in_the_prompts_of_a_demo_is_code(owner: Page, viewer: BrowserContext, shot) -> None:
    file = "a.py\n\n````python\nprint('```<b>')\n````"
    page = viewer.new_page()
    page.goto(share(owner, "With a file", f"Explain\n\n{file}"))
    prompt = page.locator(".side .pr")
    expect(prompt.locator("p")).to_have_text("Explain\n\na.py")
    expect(prompt.locator("pre")).to_have_text("pythonprint('```<b>')")
    shot(page, "one")
    owner.keyboard.press("Escape")
    page.goto(share(owner, "With two", f"And this?\n\n{file}"))
    expect(page.get_by_role("button", name=re.compile("^And this"), pressed=True).locator("pre")).to_have_text("pythonprint('```<b>')")
    page.get_by_role("button", name=re.compile("^Explain"), pressed=False).click()
    expect(page.get_by_role("button", name=re.compile("^Explain"))).to_have_attribute("aria-pressed", "true")
    axe_clean(page)
    shot(page, "several")


def test_deleting_all_chats_asks_once_and_ends_their_links(owner: Page, viewer: BrowserContext) -> None:
    address = share(owner, "Soon gone")
    owner.keyboard.press("Escape")
    owner.get_by_role("button", name="Chats").click()
    expect(owner.locator(".histlist li")).to_have_count(1)
    owner.get_by_role("button", name="Delete all chats").click()
    question = owner.get_by_role("dialog", name="Delete all your chats?")
    expect(question).to_contain_text("links to these chats stop working")
    question.get_by_role("button", name="Delete all chats").click()
    expect(owner.get_by_role("heading", name="New chat")).to_be_visible()
    owner.get_by_role("button", name="Chats").click()
    expect(owner.get_by_text("No chats yet.")).to_be_visible()
    assert viewer.new_page().goto(address).status == 410


def test_the_code_of_a_demo_runs_in_the_sandbox(owner: Page, viewer: BrowserContext) -> None:
    page = viewer.new_page()
    page.goto(share(owner, "To be run"))
    page.get_by_role("slider", name="Playhead").press("End")
    page.locator(".acts").get_by_role("button", name="Run").click()
    expect(page.locator(".wb-status")).to_contain_text(re.compile("ended after|failed"), timeout=SLOW)
