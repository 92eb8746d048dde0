"""Signing up, in and out in a real browser: what was made before comes along."""

import re
import uuid

import pytest
from playwright.sync_api import Browser, Page, expect

from tests.e2e.conftest import Product
from tests.e2e.test_chat_ui import ask, title
from tests.e2e.test_share_ui import SLOW, axe_clean, no_sideways_scroll

pytestmark = pytest.mark.e2e
PASSWORD = "correct-horse-battery"


def test_a_chat_of_this_browser_is_kept_by_signing_up(synthetic: Product, page: Page, shot) -> None:
    page.set_default_timeout(SLOW)
    page.goto(synthetic.url)
    ask(page, "Remember this one", 40)
    title(page, "Complete")
    chat = page.url
    page.goto(f"{synthetic.url}accounts/signup/")
    expect(page.get_by_text("Your 1 chat from this browser will be kept.")).to_be_visible()
    axe_clean(page)
    email = f"{uuid.uuid4().hex[:8]}@example.org"
    page.get_by_label("E-mail").fill(email)
    page.get_by_label("Password", exact=True).fill(PASSWORD)
    page.get_by_role("button", name="Show the password").click()
    expect(page.get_by_label("Password", exact=True)).to_have_attribute("type", "text")
    page.get_by_role("button", name="Create an account").click()
    expect(page.locator(".undo")).to_have_text(
        "This site has no mail server: the message that confirms your e-mail is in the server's log."
    )
    page.goto(chat)
    expect(page.get_by_text("Remember this one").first).to_be_visible()

    page.goto(f"{synthetic.url}accounts/")
    expect(page.get_by_text(email).first).to_be_visible()
    axe_clean(page)
    no_sideways_scroll(page)
    shot(page, "account")
    page.get_by_role("button", name="Sign out").click()
    page.goto(f"{synthetic.url}accounts/logout/")
    assert page.goto(chat).status == 404  # the visitor of this browser has it no more
    expect(page.get_by_role("heading", name="There is no such page")).to_be_visible()
    axe_clean(page)
    no_sideways_scroll(page)
    shot(page, "missing")

    page.goto(f"{synthetic.url}accounts/login/")
    page.get_by_label("E-mail").fill(email)
    page.get_by_label("Password", exact=True).fill("not this one")
    page.get_by_role("button", name="Sign in").click()
    expect(page.get_by_text("E-mail and password do not match. Try again, or reset the password.")).to_be_visible()
    expect(page.get_by_label("Password", exact=True)).to_have_attribute("aria-invalid", "true")
    expect(page.get_by_label("Password", exact=True)).to_be_focused()
    axe_clean(page)
    shot(page, "wrong-password")


@pytest.mark.parametrize(
    "width, height, scheme, language",
    [(390, 844, "dark", "en"), (1440, 900, "light", "en"), (1440, 900, "dark", "fr"), (320, 700, "light", "fr")],
)
def test_sign_in_holds_on_every_screen_and_in_both_languages(
    synthetic: Product, browser: Browser, shot, width, height, scheme, language
) -> None:
    context = browser.new_context(viewport={"width": width, "height": height}, color_scheme=scheme, locale=language)
    page = context.new_page()
    for path in ("login", "signup", "password/reset"):
        page.goto(f"{synthetic.url}accounts/{path}/")
        no_sideways_scroll(page)
        axe_clean(page)
        assert page.locator("html").get_attribute("lang") == language
    page.goto(f"{synthetic.url}accounts/login/")
    words = {"en": "Sign in", "fr": "Se connecter"}
    expect(page.get_by_role("button", name=words[language])).to_be_visible()
    assert re.search(words[language], page.title())
    shot(page, f"{width}-{scheme}-{language}")
    context.close()
