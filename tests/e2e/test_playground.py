"""The product in a real browser: send, watch, stop, reload mid-stream, two tabs, errors."""

import re

import pytest
from playwright.sync_api import BrowserContext, Page, expect

from tests.e2e.conftest import Product, is_prefix, unlimited

pytestmark = pytest.mark.e2e
SLOW = 60_000  # ms


def ask(page: Page, text: str) -> None:
    page.get_by_role("textbox", name="Message").fill(text)
    page.get_by_role("button", name=re.compile("^Send")).click()


def stored(page: Page) -> dict:
    """The last answer of the page's conversation, as the API gives it."""
    expect(page).to_have_url(re.compile("/c/[0-9a-f-]{36}$"), timeout=SLOW)
    conversation = page.evaluate("fetch('/api/conversations/' + location.pathname.split('/').pop()).then(r => r.json())")
    return conversation["messages"][-1]["generation"]


def test_a_stranger_asks_the_real_model_for_a_function_and_watches_it_arrive(product: Product, page: Page, shot):
    page.goto(product.url)
    ask(page, "Write a Python function that adds two numbers. Code only.")
    expect(page).to_have_title(re.compile("^Streaming"), timeout=SLOW)
    shot(page, "streaming")
    page.keyboard.press("Escape")
    expect(page).to_have_title(re.compile("^(Stopped|Complete)"), timeout=SLOW)
    shot(page, "end")
    generation = stored(page)
    assert generation["state"] in ("stopped", "done") and generation["text"]
    assert generation["usage"]["completion_tokens"] >= 1 and generation["timings"]["ttft_ms"] > 0


def test_a_reload_in_the_middle_goes_on_exactly_and_a_second_tab_shows_the_same(synthetic: Product, context: BrowserContext, shot):
    context.add_init_script(unlimited())
    page = context.new_page()
    page.goto(synthetic.url)
    ask(page, "Add two numbers")
    expect(page).to_have_title(re.compile("^Streaming"), timeout=SLOW)
    expect(page.get_by_text("def add(first").first).to_be_visible(timeout=SLOW)
    page.reload()
    expect(page).to_have_title(re.compile("^Streaming"), timeout=SLOW)
    other = context.new_page()
    other.goto(page.url)
    expect(other).to_have_title(re.compile("^Streaming"), timeout=SLOW)
    shot(other, "second-tab")
    other.get_by_role("button", name=re.compile("^Stop")).click()
    for tab in (page, other):
        expect(tab).to_have_title(re.compile("^Stopped"), timeout=SLOW)
    shot(page, "stopped")
    generation = stored(page)
    assert generation["state"] == "stopped" and is_prefix(generation["text"]) and len(generation["text"]) > 100


def test_a_dropped_connection_is_taken_up_again(synthetic: Product, page: Page):
    page.add_init_script(unlimited())
    page.goto(synthetic.url)
    ask(page, "Add two numbers")
    expect(page).to_have_title(re.compile("^Streaming"), timeout=SLOW)
    synthetic.child("daphne").kill()
    expect(page).to_have_title(re.compile("^Reconnecting"), timeout=SLOW)
    expect(page).to_have_title(re.compile("^Streaming"), timeout=SLOW)
    page.get_by_role("button", name=re.compile("^Stop")).click()
    expect(page).to_have_title(re.compile("^Stopped"), timeout=SLOW)
    assert is_prefix(stored(page)["text"])


def test_a_prompt_over_the_context_is_refused_in_words_and_nothing_is_lost(product: Product, page: Page, shot):
    page.goto(product.url)
    text = "word " * 9000
    ask(page, text)
    expect(page.get_by_text(re.compile(r"has 9,0\d\d tokens; .* takes 8,192\. Shorten it by"))).to_be_visible(timeout=SLOW)
    shot(page, "too-long")
