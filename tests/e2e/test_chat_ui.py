"""The chat and the speed instrument in a real browser, over the whole product with a backend of a fixed rate."""

import json
import re
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest
from axe_playwright_python.sync_playwright import Axe
from playwright.sync_api import BrowserContext, Locator, Page, expect

from engine.models import resolve
from tests.benchmarks.browser_cost import markdown_text
from tests.e2e.conftest import ROOT, SYNTHETIC, Product, is_prefix, wait_for

pytestmark = pytest.mark.e2e
SLOW = 60_000  # ms


@pytest.fixture
def page(synthetic: Product, page: Page) -> Page:
    page.set_default_timeout(SLOW)
    page.goto(synthetic.url)
    expect(page.get_by_text("Connected")).to_be_visible(timeout=SLOW)
    return page


def box(page: Page) -> Locator:
    return page.get_by_role("textbox", name="Message")


def ask(page: Page, text: str, tokens: int = 120) -> None:
    """Send with Enter; the answer has ``tokens`` tokens."""
    set_tokens(page, tokens)
    box(page).fill(text)
    box(page).press("Enter")


def set_tokens(page: Page, tokens: int) -> None:
    page.get_by_role("button", name="Parameters", exact=True).click()
    field = page.get_by_role("dialog").get_by_role("textbox", name="Most tokens")
    field.fill(str(tokens))
    page.get_by_role("dialog").get_by_role("button", name="Close").click()


def title(page: Page, state: str) -> None:
    expect(page).to_have_title(re.compile(f"^({state})"), timeout=SLOW)


def api(page: Page, path: str) -> dict:
    return page.evaluate("path => fetch(path).then(r => r.json())", path)


def conversation(page: Page) -> dict:
    return api(page, f"/api/conversations/{page.url.rsplit('/', 1)[1]}")


def code_lines(page: Page) -> list[str]:
    """Time, number and text of each line of the code pane."""
    expect(page.locator(".wb-head")).to_have_count(0)
    return page.locator(".wb-line").all_text_contents()


def answers(page: Page) -> Locator:
    return page.locator(".ans")


def test_an_answer_streams_into_chat_code_and_instrument(page: Page, shot):
    ask(page, "Add two numbers", 900)  # 4.5 s: long enough to be seen in the middle on a busy machine
    title(page, "Streaming")
    expect(page.locator(".chip.on").first).to_contain_text("being written", timeout=SLOW)
    expect(page.locator(".fig > span")).to_have_text(re.compile(r"^\d"), timeout=SLOW)
    shot(page, "streaming")
    title(page, "Complete")
    run = conversation(page)["messages"][-1]["generation"]
    assert is_prefix(run["text"]) and run["usage"]["completion_tokens"] == 900
    shown = int(page.locator(".fig > span").inner_text().replace(",", ""))
    assert abs(shown - run["timings"]["decode_tokens_per_s"]) <= 1
    ticket = page.locator(".ticket").first
    expect(ticket).to_contain_text(f"{shown}\u00a0tok/s")
    expect(ticket).to_contain_text("900 tokens")
    expect(page.get_by_role("status").first).to_contain_text("Complete, 900 tokens in")
    assert page.locator(".trace").get_attribute("aria-label").startswith("Tokens per second over time: steady near")


def test_the_live_view_equals_the_view_after_a_reload_and_nothing_drawn_is_touched(page: Page):
    page.evaluate(
        """() => { window.touched = [];
        new MutationObserver(list => { for (const m of list) {
          const chip = m.target.parentElement?.closest('.chip') ?? m.target.closest?.('.chip');
          if (chip) continue;  // counts its lines
          if (m.removedNodes.length) window.touched.push('removed');
          if (m.type === 'characterData' && !m.target.data.startsWith(m.oldValue)) window.touched.push(m.oldValue);
        } }).observe(document.querySelector('.log'),
          {subtree: true, childList: true, characterData: true, characterDataOldValue: true}); }"""
    )
    ask(page, "Add two numbers", 300)
    title(page, "Streaming")
    page.evaluate("() => { window.touched.length = 0 }")  # the empty state went away
    title(page, "Complete")
    assert page.evaluate("window.touched") == []
    body = answers(page).last.locator(".body")
    live = body.inner_html()
    lines = code_lines(page)
    page.reload()
    expect(answers(page).last.locator(".ticket")).to_be_visible(timeout=SLOW)
    assert body.inner_html() == live
    assert code_lines(page) == lines and re.match(r"\d\.\d{3}1def", lines[0])  # with the engine's time of each


def test_stop_keeps_the_text_and_continue_goes_on(page: Page):
    ask(page, "Add two numbers", 4000)
    title(page, "Streaming")
    box(page).press("Escape")
    title(page, "Stopped")
    expect(page.locator(".m-sub")).to_contain_text("Stopped by you.")
    run = conversation(page)["messages"][-1]["generation"]
    assert run["state"] == "stopped" and 0 < run["usage"]["completion_tokens"] < 4000
    set_tokens(page, 40)
    answers(page).last.get_by_role("button", name="Continue").click()
    title(page, "Complete")
    assert len(conversation(page)["messages"]) == 4


def test_every_past_answer_shows_its_curve_after_a_reload(page: Page):
    ask(page, "Add two numbers", 300)
    title(page, "Complete")
    ask(page, "Once more", 150)
    expect(answers(page).nth(1).locator(".ticket")).to_contain_text("150 tokens", timeout=SLOW)
    live = page.locator(".trace").get_attribute("aria-label")
    page.reload()
    tokens = page.locator(".m-read .rd", has_text="Tokens").locator("dd")
    expect(tokens).to_have_text("150", timeout=SLOW)
    assert page.locator(".trace").get_attribute("aria-label") == live and "steady near" in live
    answers(page).first.locator(".ticket button").click()
    expect(tokens).to_have_text("300")
    first = conversation(page)["messages"][1]["generation"]
    expect(page.locator(".fig > span")).to_have_text(str(round(first["timings"]["decode_tokens_per_s"])))
    inked = "c => c.getContext('2d').getImageData(0, 0, c.width, c.height).data.filter((v, i) => i % 4 === 3 && v > 0).length"
    assert page.locator(".trace canvas").evaluate(inked) > 200
    page.get_by_role("button", name="How this is measured").click()
    assert page.get_by_role("dialog").locator("tbody tr").count() >= 5


def open_imported(page: Page, texts: list[str]) -> None:
    """A stored chat of these messages, question and answer in turn."""
    roles = ("user", "assistant")
    messages = [
        {"id": str(n), "parent_id": str(n - 1) if n else None, "role": roles[n % 2], "content": text} for n, text in enumerate(texts)
    ]
    made = page.evaluate(
        """body => fetch('/api/conversations/import', {method: 'POST', body: JSON.stringify(body), headers: {
          'Content-Type': 'application/json', 'X-CSRFToken': document.cookie.match(/csrftoken=([^;]+)/)[1]}}).then(r => r.json())""",
        {"title": "Long", "messages": messages},
    )
    page.goto(f"{page.url}c/{made['id']}")
    expect(answers(page).last).to_be_visible(timeout=SLOW)


def scroll_up_without_jumps(page: Page, times: int, pixels: int) -> None:
    page.mouse.move(300, 400)
    for _ in range(times):
        page.evaluate(
            "() => { window.seen = [100, 130].flatMap(y => document.elementsFromPoint(300, y)).find(e => e.closest('article'));"
            " window.before = [seen.getBoundingClientRect().top, document.querySelector('.log').scrollTop]; }"
        )
        page.mouse.wheel(0, -pixels)
        page.wait_for_function("() => document.querySelector('.log').scrollTop !== before[1]")
        page.wait_for_timeout(300)
        assert abs(page.evaluate("seen.getBoundingClientRect().top - before[0]") - pixels) < 3


def test_a_long_stored_answer_opens_at_its_end_and_does_not_jump_when_one_scrolls_up(page: Page):
    open_imported(page, ["All of it", markdown_text(60)])
    expect(page.get_by_text("n000598")).to_be_in_viewport(timeout=SLOW)  # near the end, never drawn before
    scroll_up_without_jumps(page, 15, 300)


def test_a_chat_of_many_messages_costs_what_is_seen_of_it_and_does_not_jump(page: Page):
    open_imported(page, [f"Message {n}. " + "Words that take some lines. " * (n * 7 % 40) for n in range(610)])
    expect(page.get_by_text("Message 609.")).to_be_in_viewport(timeout=SLOW)
    drawn = "() => [...document.querySelectorAll('.log article')].filter(a => a.checkVisibility({contentVisibilityAuto: true})).length"
    assert page.locator(".log article").count() == 610 and page.evaluate(drawn) <= 100
    scroll_up_without_jumps(page, 25, 500)
    page.locator(".log").press("Home")
    expect(page.get_by_text("Message 0.")).to_be_in_viewport(timeout=SLOW)
    ask(page, "One more", 20)
    title(page, "Complete")
    expect(answers(page).last.locator(".ticket")).to_be_in_viewport(timeout=SLOW)


def test_edits_and_regenerations_are_branches_to_walk_between(page: Page):
    ask(page, "First wording", 30)
    title(page, "Complete")
    answers(page).last.get_by_role("button", name="Regenerate").click()
    expect(page.get_by_text("2 of 2")).to_be_visible(timeout=SLOW)
    title(page, "Complete")
    box(page).press("ArrowUp")
    expect(box(page)).to_have_value("First wording")
    box(page).fill("Second wording")
    box(page).press("Enter")
    expect(page.locator(".me")).to_contain_text("Second wording", timeout=SLOW)
    title(page, "Complete")
    roles = [m["role"] for m in conversation(page)["messages"]]
    assert sorted(roles) == ["assistant"] * 3 + ["user"] * 2
    page.locator(".me").get_by_role("button", name="Previous version").click()
    expect(page.locator(".me")).to_contain_text("First wording")
    expect(answers(page).last.get_by_text("2 of 2")).to_be_visible()


def test_reload_back_and_forward_show_the_right_answer_and_drafts_survive(page: Page):
    ask(page, "One", 2000)
    title(page, "Streaming")
    first = page.url
    page.reload()
    title(page, "Streaming")
    box(page).fill("a draft")
    page.get_by_role("button", name="New", exact=True).click()
    expect(box(page)).to_have_value("")
    ask(page, "Two", 30)
    expect(page).to_have_url(re.compile("/c/"), timeout=SLOW)
    expect(page.locator(".me")).to_contain_text("Two")
    page.go_back()
    page.go_back()
    expect(page).to_have_url(first)
    expect(page.locator(".me")).to_contain_text("One")
    expect(answers(page)).to_have_count(1)
    expect(box(page)).to_have_value("a draft")
    title(page, "Complete")
    assert is_prefix(conversation(page)["messages"][-1]["generation"]["text"])
    page.reload()
    expect(box(page)).to_have_value("a draft")


def test_what_is_typed_and_sent_while_a_chat_loads_belongs_to_it(page: Page):
    ask(page, "One", 30)
    title(page, "Complete")
    chat = page.url

    def slowly(route) -> None:
        page.wait_for_timeout(1500)
        route.continue_()

    page.route("**/api/conversations/*-*", slowly)
    page.reload(wait_until="commit")
    box(page).fill("Two")
    box(page).press("Enter")
    expect(page.locator(".me")).to_have_count(2, timeout=SLOW)
    expect(page.locator(".me").last).to_contain_text("Two")
    expect(box(page)).to_have_value("")
    title(page, "Complete")
    assert page.url == chat
    assert [m["content"] for m in conversation(page)["messages"] if m["role"] == "user"] == ["One", "Two"]


def test_what_is_typed_outlives_an_edit_a_change_of_chat_and_another_tab(page: Page, context: BrowserContext):
    ask(page, "First wording", 30)
    title(page, "Complete")
    first, message = page.url, page.locator(".me")
    box(page).fill("a draft")
    message.get_by_role("button", name="Edit").click()
    expect(box(page)).to_have_value("First wording")
    page.get_by_role("button", name="Cancel").click()
    expect(box(page)).to_have_value("a draft")
    message.get_by_role("button", name="Edit").click()
    box(page).fill("Second wording")

    other = context.new_page()
    other.goto(first)
    expect(other.locator(".light")).to_have_text("Connected", timeout=SLOW)
    expect(box(other)).to_have_value("a draft")
    ask(other, "From the other tab", 30)
    expect(page.locator(".me").last).to_contain_text("From the other tab", timeout=SLOW)
    title(page, "Complete")
    expect(box(page)).to_have_value("Second wording")
    expect(page.locator(".editing")).to_be_visible()

    page.get_by_role("button", name="New", exact=True).click()
    expect(box(page)).to_have_value("")
    page.go_back()
    expect(box(page)).not_to_have_value("Second wording")
    page.locator(".me").first.get_by_role("button", name="Edit").click()
    expect(box(page)).to_have_value("Second wording")
    box(page).press("Enter")
    expect(page.locator(".me").last).to_contain_text("Second wording")
    expect(page.locator(".editing")).to_be_hidden()


def test_a_branch_made_in_another_tab_takes_no_answer_out_of_sight(page: Page, context: BrowserContext):
    ask(page, "First wording", 30)
    title(page, "Complete")
    other = context.new_page()
    other.goto(page.url)
    other.locator(".me").get_by_role("button", name="Edit").click()
    box(other).fill("Second wording")
    box(other).press("Enter")
    expect(other.locator(".me")).to_contain_text("Second wording", timeout=SLOW)
    expect(page.locator(".me").get_by_text("1 of 2")).to_be_visible(timeout=SLOW)
    expect(page.locator(".me")).to_contain_text("First wording")


def test_continue_leaves_the_box_as_it_is(page: Page):
    ask(page, "Go on for long", 2000)
    title(page, "Streaming")
    page.get_by_role("button", name=re.compile("^Stop")).first.click()
    title(page, "Stopped")
    box(page).fill("half a thought")
    page.get_by_role("button", name="Continue").first.click()
    title(page, "Streaming")
    expect(box(page)).to_have_value("half a thought")


def test_enter_is_safe_while_an_input_method_composes(page: Page):
    box(page).fill("にほん")
    page.evaluate(
        """() => { const b = document.querySelector('#message');
        b.dispatchEvent(new KeyboardEvent('keydown', {key: 'Enter', isComposing: true, bubbles: true, cancelable: true}));
        b.dispatchEvent(new KeyboardEvent('keydown', {key: 'Enter', keyCode: 229, bubbles: true, cancelable: true})); }"""
    )
    box(page).press("Shift+Enter")
    expect(box(page)).to_have_value("にほん\n")
    assert page.locator(".me").count() == 0


def test_a_paste_of_20000_lines_stays_out_of_the_box_and_is_refused_with_both_numbers(page: Page, shot):
    held = page.evaluate(
        """async () => { const data = new DataTransfer();
        data.setData('text/plain', 'value = compute(value)  # a line\\n'.repeat(20000));
        const from = performance.now();
        const paste = new ClipboardEvent('paste', {clipboardData: data, bubbles: true, cancelable: true});
        document.querySelector('#message').dispatchEvent(paste);
        await new Promise(requestAnimationFrame); await new Promise(r => setTimeout(r)); return performance.now() - from; }"""
    )
    assert held < 1000, f"the paste held the page for {held:.0f} ms"
    expect(page.get_by_text("Pasted text, 20,001 lines")).to_be_visible()
    box(page).fill("What does this do?")
    box(page).press("Enter")
    row = page.get_by_role("alert").filter(has_text="Shorten it by")
    expect(row).to_be_visible(timeout=SLOW)
    assert len(re.findall(r"\d{1,3}(?:,\d{3})+", row.inner_text())) == 3
    expect(page.get_by_text("Pasted text, 20,001 lines")).to_be_visible()
    shot(page, "too-long")


def test_a_text_over_the_limit_on_the_wire_is_refused_and_stays_where_it_was(page: Page):
    """4.8 MB of text whose line ends take two bytes each on the wire; it was dropped onto the box."""
    page.evaluate(
        """() => { const data = new DataTransfer(); data.setData('text/plain', 'x\\n'.repeat(2.4e6));
        document.querySelector('#message').dispatchEvent(new DragEvent('drop', {dataTransfer: data, bubbles: true, cancelable: true})); }"""
    )
    expect(page.get_by_text("Pasted text, 2,400,001 lines")).to_be_visible()
    box(page).fill("Count")
    box(page).press("Enter")
    expect(page.get_by_role("alert").filter(has_text="This message is 7.3 MB; the limit is 5 MB.")).to_be_visible(timeout=SLOW)
    expect(page.get_by_text("Pasted text, 2,400,001 lines")).to_be_visible()
    expect(box(page)).to_have_value("Count")
    expect(page.locator(".me")).to_have_count(0)
    page.get_by_role("button", name="Remove the pasted text").click()
    ask(page, "Count to three", 5)
    title(page, "Complete")


def test_chats_are_found_renamed_deleted_with_undo_exported_and_imported(page: Page, tmp_path: Path):
    ask(page, "Dijkstra on a grid", 30)
    title(page, "Complete")
    page.get_by_role("button", name="Chats", exact=True).click()
    drawer = page.get_by_role("dialog")
    drawer.get_by_role("searchbox").fill("nothing like it")
    expect(drawer.get_by_text("No chat contains 'nothing like it'.")).to_be_visible()
    drawer.get_by_role("searchbox").fill("Dijkstra")
    expect(drawer.get_by_role("link", name=re.compile("Dijkstra"))).to_have_count(1)
    drawer.get_by_role("button", name="More for Dijkstra").click()
    with page.expect_download() as download:
        page.get_by_role("button", name="Export as JSON").click()
    exported = tmp_path / "chat.json"
    download.value.save_as(exported)
    assert json.loads(exported.read_text())["messages"][0]["content"] == "Dijkstra on a grid"
    drawer.get_by_role("button", name="More for Dijkstra").click()
    page.get_by_role("button", name="Rename").click()
    page.get_by_role("textbox", name="Title").fill("Cheapest path")
    page.get_by_role("textbox", name="Title").press("Enter")
    drawer.get_by_role("searchbox").fill("Cheapest")
    drawer.get_by_role("button", name="More for Cheapest path").click()
    page.get_by_role("button", name="Delete", exact=True).click()
    page.keyboard.press("Escape")
    page.get_by_role("button", name="Undo").click()
    expect(page.locator(".me")).to_contain_text("Dijkstra", timeout=SLOW)
    page.get_by_role("button", name="Chats", exact=True).click()
    with page.expect_file_chooser() as chooser:
        page.get_by_role("dialog").get_by_role("button", name="Import a chat").click()
    before = page.url
    chooser.value.set_files(exported)
    expect(page).not_to_have_url(before, timeout=SLOW)
    expect(page.locator(".me")).to_contain_text("Dijkstra on a grid")


def test_a_chat_of_more_messages_than_one_request_takes_is_imported_whole(page: Page, tmp_path: Path):
    roles = ("user", "assistant")
    messages = [{"id": f"m{n}", "parent_id": f"m{n - 1}" if n else None, "role": roles[n % 2], "content": f"Text {n}"} for n in range(2400)]
    file = tmp_path / "long.json"
    file.write_text(json.dumps({"format": "playground-conversation-1", "title": "Long chat", "messages": messages}))
    said = "window.said = []; new MutationObserver(() => { const s = document.querySelector('.undo'); s && said.push(s.innerText); })"
    page.evaluate(f"() => {{ {said}.observe(document.body, {{subtree: true, childList: true, characterData: true}}); }}")
    page.get_by_role("button", name="Chats", exact=True).click()
    with page.expect_file_chooser() as chooser:
        page.get_by_role("dialog").get_by_role("button", name="Import a chat").click()
    chooser.value.set_files(file)
    expect(page).to_have_url(re.compile("/c/"), timeout=SLOW)
    stored = page.evaluate("async () => (await fetch(location.pathname.replace('/c/', '/api/conversations/'))).json()")
    assert [m["content"] for m in stored["messages"]] == [m["content"] for m in messages]
    assert {"Importing: 1,000 of 2,400 messages", "Importing: 2,000 of 2,400 messages"} <= set(page.evaluate("said"))
    expect(page.locator(".undo")).to_have_count(0)
    expect(page.locator(".cnt")).to_have_text(re.compile("≈.5,692 of"))  # nobody has counted it: 20,490 characters


def test_a_chat_with_a_link_asks_once_before_it_goes(page: Page, synthetic: Product, shot):
    ask(page, "A shared chat", 30)
    title(page, "Complete")
    link = page.evaluate(
        """async id => { const token = document.cookie.match(/csrftoken=([^;]+)/)[1];
        const headers = {'Content-Type': 'application/json', 'X-CSRFToken': token};
        return (await fetch('/api/links', {method: 'POST', headers, body: JSON.stringify({conversation_id: id})})).json(); }""",
        page.url.rsplit("/", 1)[1],
    )
    address = synthetic.url.rstrip("/") + link["url"]
    page.get_by_role("button", name="Chats", exact=True).click()
    page.get_by_role("button", name="More for A shared chat").click()
    page.get_by_role("button", name="Delete", exact=True).click()
    question = page.get_by_role("dialog", name="Delete “A shared chat”?")
    expect(question).to_contain_text("Its link stops working for everybody who has it.")
    expect(question.get_by_role("button", name="Cancel")).to_be_focused()
    shot(page, "asks")
    question.get_by_role("button", name="Cancel").click()
    assert page.request.get(address).status == 200
    page.get_by_role("button", name="More for A shared chat").click()
    page.get_by_role("button", name="Delete", exact=True).click()
    question.get_by_role("button", name="Delete", exact=True).click()
    expect(page).to_have_url(synthetic.url)
    page.get_by_role("button", name="Chats", exact=True).click()
    expect(page.get_by_text("No chats yet.")).to_be_visible(timeout=SLOW)
    assert page.request.get(address).status == 410


def test_model_text_cannot_run_or_load_anything(page: Page, tmp_path: Path):
    evil = "<img src=x onerror=alert(1)> ![p](https://example.org/p.png) [j](javascript:alert(1)) [ok](https://example.org)"
    file = tmp_path / "evil.json"
    messages = [
        {"id": "1", "parent_id": None, "role": "user", "content": "x"},
        {"id": "2", "parent_id": "1", "role": "assistant", "content": evil},
    ]
    file.write_text(json.dumps({"title": "evil", "messages": messages}))
    asked: list[str] = []
    page.on("request", lambda request: asked.append(request.url))
    page.get_by_role("button", name="Chats", exact=True).click()
    with page.expect_file_chooser() as chooser:
        page.get_by_role("dialog").get_by_role("button", name="Import a chat").click()
    chooser.value.set_files(file)
    body = answers(page).last.locator(".body")
    expect(body).to_contain_text("<img src=x onerror=alert(1)>", timeout=SLOW)
    assert body.locator("img").count() == 0
    links = body.locator("a")
    assert [links.nth(i).get_attribute("href") for i in range(links.count())] == ["https://example.org/p.png", "https://example.org"]
    assert all("noopener" in links.nth(i).get_attribute("rel") for i in range(links.count()))
    assert not [url for url in asked if "example.org" in url]


def test_the_keyboard_reaches_everything(page: Page):
    page.keyboard.press("Control+k")
    palette = page.get_by_role("combobox", name="Find")
    palette.fill("keyboard")
    palette.press("Enter")
    expect(page.get_by_role("dialog", name="Keyboard")).to_be_visible()
    page.keyboard.press("Escape")
    expect(page.get_by_role("dialog")).to_have_count(0)
    box(page).focus()
    page.keyboard.press("F6")
    expect(page.get_by_role("region", name="Speed")).to_be_focused()
    page.keyboard.press("Shift+F6")
    expect(box(page)).to_be_focused()
    page.keyboard.press("Control+/")
    expect(page.get_by_role("dialog", name="Keyboard")).to_be_visible()


LACKING = """reached => [...document.querySelectorAll('a[href], button, input, select, textarea, summary, [tabindex="0"]')]
  .filter(e => e.checkVisibility() && !e.disabled && e.tabIndex >= 0 && !reached.includes(e.dataset.reached))
  .map(e => e.outerHTML.slice(0, 120))"""
FOCUSED = """n => { const e = document.activeElement; if (e === document.body) return null;
  e.dataset.reached ??= String(n); const style = getComputedStyle(e), box = e.closest('.composer') ?? e;
  const ring = style.outlineStyle !== 'none' || getComputedStyle(box).outlineStyle !== 'none';
  return [e.dataset.reached, ring || e.outerHTML.slice(0, 120)]; }"""


def test_enter_in_the_palette_runs_what_was_typed_not_a_chat(page: Page):
    ask(page, "A keyboard layout", 30)
    title(page, "Complete")
    options = page.locator("#palette-list li")
    page.keyboard.press("Control+k")
    expect(options.last).to_contain_text("A keyboard layout", timeout=SLOW)
    palette = page.get_by_role("combobox", name="Find")
    palette.fill("import")  # the recent chats do not fit, and none is in the way before the search has answered
    expect(options).to_have_text(["Import a chat"])
    palette.fill("keyboard")
    expect(options.last).to_contain_text("A keyboard layout")
    expect(options.first).to_contain_text("Keyboard")
    palette.press("Enter")
    expect(page.get_by_role("dialog", name="Keyboard")).to_be_visible()


def test_tab_reaches_every_control_with_a_visible_focus(page: Page, synthetic: Product):
    ask(page, "Add two numbers", 60)
    title(page, "Complete")
    chat = page.url
    for address in (chat, f"{synthetic.url}race"):
        page.goto(address)
        expect(page.get_by_text("Connected")).to_be_visible(timeout=SLOW)
        reached = []
        for step in range(80):
            page.keyboard.press("Tab")
            at = page.evaluate(FOCUSED, step)
            if at is None or at[0] in reached:
                break
            reached.append(at[0])
            assert at[1] is True, f"no visible focus: {at[1]}"
        assert page.evaluate(LACKING, reached) == []


def test_layers_and_large_text_hold(page: Page, shot):
    ask(page, "Add two numbers", 60)
    title(page, "Complete")
    page.set_viewport_size({"width": 640, "height": 400})  # 1280 x 800 at 200 %
    over = "x => x.scrollWidth > innerWidth && getComputedStyle(x).overflowX === 'visible'"
    for keys, button in (("Control+k", None), ("Control+/", None), (None, "Parameters"), (None, "How this is measured")):
        page.keyboard.press(keys) if keys else page.get_by_role("button", name=button, exact=True).click()
        expect(page.get_by_role("dialog")).to_be_visible()
        page.evaluate("Promise.all(document.getAnimations().map(one => one.finished)).then(() => {})")  # full contrast
        found = Axe().run(page).response["violations"]
        assert [(v["id"], v["nodes"][0]["target"]) for v in found if v["impact"] in ("serious", "critical")] == []
        assert page.get_by_role("dialog").evaluate(f"e => [...e.querySelectorAll('*')].filter({over}).length") == 0
        page.keyboard.press("Escape")
        expect(page.get_by_role("dialog")).to_have_count(0)
    for width, height in ((640, 400), (320, 568)):
        page.set_viewport_size({"width": width, "height": height})
        assert page.evaluate("document.documentElement.scrollWidth") <= width
        expect(box(page)).to_be_in_viewport()
        page.locator(".views [role=tab]").nth(1).click()
        expect(page.locator(".wb-code")).to_contain_text("def add")
        assert page.locator(".wb-code").bounding_box()["height"] > 40
        shot(page, f"{width}")
        page.locator(".views [role=tab]").nth(0).click()
        assert page.locator(".log").bounding_box()["height"] > 40


def test_a_file_dragged_over_the_code_does_not_take_the_place_of_the_page(page: Page):
    allowed = page.evaluate(
        """() => [true, false].map(file => { const data = new DataTransfer();
        file ? data.items.add(new File(['x'], 'x.txt')) : data.setData('text/plain', 'x');
        const over = new DragEvent('dragover', {dataTransfer: data, bubbles: true, cancelable: true});
        document.querySelector('.codepane').dispatchEvent(over); return over.defaultPrevented; })"""
    )
    assert allowed == [True, False], "outside the chat a file is turned away"


def test_parameters_say_their_range(page: Page):
    page.get_by_role("button", name="Parameters", exact=True).click()
    field = page.get_by_role("dialog").get_by_role("textbox", name="Temperature")
    field.fill("9")
    expect(page.get_by_text("Temperature must lie between 0 and 2.")).to_be_visible()
    field.fill("0.5")
    expect(page.get_by_text("Temperature must lie between 0 and 2.")).to_be_hidden()
    page.get_by_role("dialog").get_by_label("Preset", exact=True).select_option(label="The same every time")
    expect(page.get_by_role("dialog").get_by_role("textbox", name="Seed")).to_have_value("1")


def test_a_race_against_a_paced_replay_compares_the_rates(page: Page, synthetic: Product, shot):
    ask(page, "x", 200)  # the race takes the same parameters
    page.goto(f"{synthetic.url}race")
    page.get_by_role("combobox", name="Lane B", exact=True).select_option("replay:100")
    page.get_by_role("textbox", name="Prompt for both lanes").fill("Add two numbers")
    page.get_by_role("button", name=re.compile("Start")).click()
    expect(page.locator(".lane.b .plate")).to_contain_text("paced replay")
    expect(page.locator(".lane.b .lamp")).to_have_text("Complete", timeout=SLOW)
    expect(page.locator(".verdict .big > span")).to_have_text(re.compile(r"^(1\.9|2\.0|2\.1)$"))
    expect(page.locator(".tag").first).to_contain_text("finished at")
    texts = [page.locator(f".lane.{lane} .lanetext .c").all_inner_texts() for lane in "ab"]
    assert texts[0] == texts[1] and texts[0]
    shot(page, "finished")


def test_both_lanes_of_a_race_are_asked_at_once_and_swap(page: Page, synthetic: Product):
    ask(page, "x", 60)
    title(page, "Complete")
    sent: list[dict] = []
    page.on("websocket", lambda ws: ws.on("framesent", lambda data: sent.append(json.loads(data))))
    accepted: list[int] = []
    page.on("websocket", lambda ws: ws.on("framereceived", lambda data: '"accepted"' in data and accepted.append(len(sent))))
    page.goto(f"{synthetic.url}race")
    expect(page.get_by_text("Connected")).to_be_visible(timeout=SLOW)
    expect(page.locator(".verdict .m-sub")).to_contain_text("Both lanes need 250 ms of output")
    lane = {letter: page.get_by_role("combobox", name=f"Lane {letter}", exact=True) for letter in "AB"}
    model = lane["A"].input_value()
    page.get_by_role("button", name="Swap lanes").click()
    expect(lane["A"]).to_have_value("replay:100")
    expect(lane["B"]).to_have_value(model)
    expect(page.locator(".lane.a .plate")).to_contain_text("paced replay")
    lane["B"].select_option("replay:300")
    expect(lane["A"]).to_have_value(model)
    lane["B"].select_option(model)
    expect(page.locator(".verdict .m-sub")).to_have_text("One engine serves here: the lanes run one after the other.")
    page.get_by_role("textbox", name="Prompt for both lanes").fill("Add two numbers")
    page.get_by_role("button", name=re.compile("Start")).click()
    for letter in "ab":
        expect(page.locator(f".lane.{letter} .lamp")).to_have_text("Complete", timeout=SLOW)
    expect(page.locator(".verdict .m-sub")).to_contain_text("One model, two draws: compare the rates. They ran one after the other.")
    asked = [frame for frame in sent if frame["type"] == "generate"]
    assert len(asked) == 2 and accepted[0] >= 2, "both requests leave before the first is answered"
    assert asked[0]["user_message_id"] == asked[1]["user_message_id"]
    expect(page.locator(".lane.a .lanetext .k").first).to_have_text("def")
    page.get_by_role("button", name="Copy the text of lane A").click()
    expect(page.get_by_text("Copied")).to_be_visible()


@pytest.fixture
def two_engines(tmp_path: Path) -> Iterator[Product]:
    """Two models, and a second worker with an engine of its own beside the first, as on a second machine."""
    second = tmp_path / "Second.gguf"
    second.symlink_to(resolve("smollm2-135m-instruct").path)
    product = Product(ENGINE_BACKEND=SYNTHETIC, SYNTHETIC_TOKENS_PER_S="100", MODELS=f"smollm2-135m-instruct,{second}").start()
    first = product.child("engine_worker")
    with (product.folder / "logs" / "second.log").open("wb") as log:
        worker = subprocess.Popen(first.cmdline(), env=first.environ() | {"SYNTHETIC_TOKENS_PER_S": "60"}, cwd=ROOT, stdout=log, stderr=log)
    try:
        wait_for(lambda: all(card["engines"] == 2 for card in product.get("/api/models")), 120, "two engines")
        yield product
    finally:
        worker.terminate()
        worker.wait(30)
        product.remove()


def test_two_models_race_side_by_side_on_two_engines(two_engines: Product, page: Page, shot):
    page.goto(f"{two_engines.url}race")
    expect(page.get_by_text("Connected")).to_be_visible(timeout=SLOW)
    expect(page.locator(".verdict .m-sub")).to_have_text("2 engines serve here: both lanes can run at once.")
    expect(page.get_by_role("combobox", name="Lane B", exact=True)).to_have_value(re.compile("Second.gguf$"))
    page.get_by_role("combobox", name="Parameters of lane B").select_option("Free")
    expect(page.locator(".lane.b .plate")).to_contain_text("Temperature 1.10, top-p 1.00")
    page.get_by_role("textbox", name="Prompt for both lanes").fill("Add two numbers")
    page.get_by_role("button", name=re.compile("Start")).click()
    for letter in "ab":
        expect(page.locator(f".lane.{letter} .lamp")).to_have_text("Streaming", timeout=SLOW)
    at_once = [page.locator(f".lane.{letter} .lamp").inner_text() for letter in "ab"]
    shot(page, "side-by-side")
    assert at_once == ["Streaming", "Streaming"]
    for letter in "ab":
        expect(page.locator(f".lane.{letter} .lamp")).to_have_text("Complete", timeout=SLOW)
    expect(page.locator(".verdict .m-sub")).to_have_text(re.compile("^Two models, two texts: .* They ran side by side.$"))
    assert page.locator(".verdict .big > span").inner_text() in ("1.7", "0.6")
    shot(page, "finished")
    chat = api(page, "/api/conversations")["items"][0]
    stored = api(page, f"/api/conversations/{chat['id']}")["messages"]
    runs = {m["generation"]["model"]: m["generation"]["params"] for m in stored if m["generation"]}
    assert {Path(model).name: params["temperature"] for model, params in runs.items()} == {"smollm2-135m-instruct": 0.2, "Second.gguf": 1.1}


@pytest.mark.parametrize("theme", ["dark", "light"])
def test_no_page_has_a_serious_accessibility_fault_or_scrolls_sideways(page: Page, synthetic: Product, theme: str, shot):
    page.evaluate("theme => localStorage.setItem('theme', theme)", theme)
    ask(page, "Add two numbers", 150)
    title(page, "Complete")
    chat = page.url
    for address in (synthetic.url, chat, f"{synthetic.url}race"):
        for width, height in ((1440, 900), (390, 844)):
            page.set_viewport_size({"width": width, "height": height})
            page.goto(address)
            expect(page.locator(".top")).to_be_visible()
            found = Axe().run(page).response["violations"]
            bad = [(v["id"], [n["target"] for n in v["nodes"]][:3]) for v in found if v["impact"] in ("serious", "critical")]
            assert bad == [], f"{address} at {width}: {bad}"
            shot(page, f"{width}-{address.rsplit('/', 1)[1][:4] or 'first'}")
        for width in (320, 360, 768, 1024, 1920, 2560):
            page.set_viewport_size({"width": width, "height": 900})
            wide = page.evaluate("document.documentElement.scrollWidth")
            assert wide <= width, f"{address} is {wide} px wide in a window of {width}"


def test_errors_are_said_in_french_and_a_limit_counts_down(synthetic: Product, context: BrowserContext, shot):
    page = context.new_page()
    page.add_init_script("localStorage.setItem('language', 'fr')")
    limited = {"limited": "requests", "span": "minute", "limit": 20, "retry_after_s": 3.2}

    def serve(socket) -> None:
        server = socket.connect_to_server()

        def on_message(text: str) -> None:
            frame = json.loads(text)
            if frame["type"] == "generate" and frame["messages"][-1]["content"] == "encore":
                error = {"type": "error", "generation_id": None, "code": "rate_limited", "message": "in English", "details": limited}
                socket.send(json.dumps(error | {"request_id": frame["request_id"]}))
            else:
                server.send(text)

        socket.on_message(on_message)

    page.route_web_socket(re.compile("/ws/"), serve)
    page.goto(synthetic.url)
    expect(page.get_by_text("Connecté")).to_be_visible(timeout=SLOW)
    message = page.locator("#message")
    page.evaluate(
        """() => { const data = new DataTransfer();
        data.setData('text/plain', 'un mot '.repeat(60000));
        const paste = new ClipboardEvent('paste', {clipboardData: data, bubbles: true, cancelable: true});
        document.querySelector('#message').dispatchEvent(paste); }"""
    )
    message.press("Enter")
    error = page.locator(".rowerr p")
    expect(error).to_have_text(
        re.compile(r"^Cette demande compte [\d\u202f]+ jetons\u00a0; SmolLM2 .* en prend [\d\u202f]+\. Raccourcissez-la de [\d\u202f]+\.$"),
        timeout=SLOW,
    )
    page.get_by_role("button", name="Retirer le texte").click()
    message.fill("encore")
    message.press("Enter")
    expect(error).to_have_text(re.compile("^La limite est de 20 demandes par minute. Libre dans [234] s.$"))
    shot(page, "limit")
    expect(error).to_contain_text("De nouveau libre.", timeout=8000)
    expect(message).to_have_value("encore")


def test_french_words_are_complete(synthetic: Product, context: BrowserContext):
    page = context.new_page()
    page.add_init_script("localStorage.setItem('language', 'fr')")
    page.goto(synthetic.url)
    expect(page.get_by_role("button", name="Envoyer")).to_be_visible(timeout=SLOW)
    assert page.evaluate("document.documentElement.lang") == "fr"
