"""Text files that are given with a message: chosen, dropped and pasted, refused, sent."""

import re
from collections.abc import Callable
from pathlib import Path

import pytest
from axe_playwright_python.sync_playwright import Axe
from playwright.sync_api import BrowserContext, Locator, Page, expect

from tests.e2e.conftest import Product
from tests.e2e.test_chat_ui import SLOW, box, conversation, title

pytestmark = pytest.mark.e2e
PASTE = """kinds => { const data = new DataTransfer();
  if (kinds.includes('file')) data.items.add(new File(['a: 1\\n'], 'config.yml'));
  if (kinds.includes('table')) { data.setData('text/plain', '1\\t2'); data.setData('text/html', '<table>'); }
  const paste = new ClipboardEvent('paste', {clipboardData: data, bubbles: true, cancelable: true});
  document.querySelector('#message').dispatchEvent(paste); return paste.defaultPrevented; }"""


@pytest.fixture
def chat(synthetic: Product, page: Page) -> Page:
    page.set_default_timeout(SLOW)
    page.goto(synthetic.url)
    expect(page.get_by_text("Connected")).to_be_visible(timeout=SLOW)
    return page


def choose(page: Page, *files: Path | dict) -> None:
    with page.expect_file_chooser() as chooser:
        page.get_by_role("button", name="Attach text files").click()
    assert chooser.value.is_multiple()
    chooser.value.set_files(list(files))


def chips(page: Page) -> Locator:
    return page.locator(".attached > span")


def text_file(name: str, text: str | bytes) -> dict:
    return {"name": name, "mimeType": "", "buffer": text if isinstance(text, bytes) else text.encode()}


def drag(page: Page, *files: Path) -> Callable[[str, float, float], None]:
    """``act(kind, x, y)`` does what happens while these files of the desktop are dragged: dragEnter, dragOver, drop."""
    session = page.context.new_cdp_session(page)
    data = {"items": [], "files": [str(file) for file in files], "dragOperationsMask": 1}
    return lambda kind, x, y: session.send("Input.dispatchDragEvent", {"type": kind, "x": x, "y": y, "data": data})


def test_chosen_files_go_with_the_message_by_name_and_language(chat: Page, shot):
    page = chat
    choose(
        page, text_file("add.py", "\ufeffdef add(a, b):\n    return a + b\n"), text_file("notes.md", "Use `add`:\n```py\nadd(1, 2)\n```")
    )
    expect(chips(page)).to_have_text(["add.py2 lines, 0.1 kB", "notes.md4 lines, 0.1 kB"])
    expect(box(page)).to_be_focused()
    expect(page.get_by_role("status").filter(has_text="2 files attached.")).to_have_count(1)
    page.get_by_role("button", name="Remove notes.md").click()
    expect(chips(page)).to_have_count(1)
    choose(page, text_file("notes.md", "Use `add`:\n```py\nadd(1, 2)\n```"))
    expect(chips(page)).to_have_count(2)
    box(page).fill("Explain both")
    shot(page, "chips")
    box(page).press("Enter")
    expect(page.locator(".me pre").first).to_contain_text("return a + b", timeout=SLOW)
    expect(chips(page)).to_have_count(0)
    title(page, "Complete")
    add = "add.py\n\n```python\ndef add(a, b):\n    return a + b\n```"
    notes = "notes.md\n\n````markdown\nUse `add`:\n```py\nadd(1, 2)\n```\n````"
    assert conversation(page)["messages"][0]["content"] == f"Explain both\n\n{add}\n\n{notes}"
    shot(page, "sent")


def test_a_file_alone_is_a_message_and_nothing_is_sent_before_it_is_read(chat: Page):
    page = chat
    page.evaluate(
        """() => { const read = File.prototype.arrayBuffer;
        File.prototype.arrayBuffer = async function () { await new Promise(next => (window.goOn = next)); return read.call(this); }; }"""
    )
    choose(page, text_file("query.sql", "select 1;"))
    send = page.get_by_role("button", name="Send")
    expect(send).to_be_disabled()
    box(page).press("Enter")
    page.evaluate("goOn()")
    expect(chips(page)).to_have_count(1)
    expect(page.locator(".me, .rowerr")).to_have_count(0)
    send.click()
    title(page, "Complete")
    stored = conversation(page)
    assert (stored["title"], stored["messages"][0]["content"]) == ("query.sql", "query.sql\n\n```sql\nselect 1;\n```")


def test_dropped_files_are_attached_and_what_is_no_text_is_refused_by_name(chat: Page, tmp_path: Path, shot):
    page = chat
    script, picture, folder = tmp_path / "run.sh", tmp_path / "picture.png", tmp_path / "src"
    script.write_text("make run\n")
    picture.write_bytes(b"\x89PNG\r\n")
    folder.mkdir()
    hint = page.get_by_text("Drop text files to attach them")
    at = page.locator(".log").bounding_box()
    x, y = at["x"] + 50, at["y"] + 50
    act = drag(page, script, picture, folder)
    act("dragEnter", 1000, y)
    for over, shown in ((1000, False), (x, True), (1000, False), (x, True)):
        act("dragOver", over, y)
        act("dragOver", over, y)  # the one before was a dragenter of what lies there
        expect(hint).to_be_visible(visible=shown)
    shot(page, "dragging")
    act("drop", x, y)
    expect(hint).to_be_hidden()
    expect(chips(page)).to_have_text(["run.sh1 line, 0.1 kB"])
    expect(page.locator(".rowerr p")).to_have_text(
        "picture.png is not text in UTF-8.\nsrc is a folder; attach its files.", use_inner_text=True
    )
    shot(page, "refused")
    page.get_by_role("button", name="Dismiss").click()
    at = box(page).bounding_box()
    x, y = at["x"] + 50, at["y"] + 20
    for kind in ("dragEnter", "dragOver"):
        act(kind, x, y)
    expect(hint).to_be_visible()
    act("dragOver", -20, -20)  # out of the window
    expect(hint).to_be_hidden()
    act = drag(page, script)
    for kind in ("dragEnter", "dragOver", "drop"):
        act(kind, x, y)
    expect(chips(page)).to_have_count(2)
    expect(box(page)).to_have_value("")


def test_too_large_and_empty_files_are_refused_and_the_third_is_attached(chat: Page):
    page = chat
    choose(
        page,
        text_file("big.log", b"x" * 6_200_000),
        text_file("fine.txt", "fine"),
        text_file("none.txt", ""),
        text_file("latin.txt", "é".encode("latin-1")),
    )
    expect(page.locator(".rowerr p")).to_have_text(
        "big.log is 6.2\u00a0MB; the limit is 5\u00a0MB.\nnone.txt is empty.\nlatin.txt is not text in UTF-8.", use_inner_text=True
    )
    expect(chips(page)).to_have_text(["fine.txt1 line, 0.1 kB"])


def test_files_that_are_together_more_than_a_message_are_refused_by_name(chat: Page):
    page = chat
    choose(page, text_file("a.log", b"x" * 3_000_000), text_file("b.log", b"x" * 3_000_000), text_file("c.txt", "fine"))
    expect(chips(page)).to_have_text(["a.log1 line, 3,000 kB", "c.txt1 line, 0.1 kB"])
    choose(page, text_file("d.log", b"x" * 2_000_000))
    expect(page.locator(".rowerr p")).to_have_text("d.log has no room beside the others; the limit of a message is 5\u00a0MB.")
    page.get_by_role("button", name="Remove a.log").click()
    choose(page, text_file("d.log", b"x" * 2_000_000))
    expect(chips(page)).to_have_count(2)


def test_what_was_typed_and_attached_is_there_again_after_an_edit(chat: Page):
    page = chat
    box(page).fill("Add two numbers")
    box(page).press("Enter")
    title(page, "Complete")
    choose(page, text_file("large.csv", b"1,2,3\n" * 200_000))
    box(page).press("ArrowUp")
    expect(chips(page)).to_have_count(0)
    expect(box(page)).to_have_value("Add two numbers")
    page.get_by_role("button", name="Cancel").click()
    expect(chips(page)).to_have_text(["large.csv200,000 lines, 1,200 kB"])
    expect(box(page)).to_have_value("")


def test_a_file_in_the_clipboard_is_attached_and_the_picture_of_a_table_is_not(chat: Page):
    assert chat.evaluate(PASTE, ["file"]) is True
    expect(chips(chat)).to_have_text(["config.yml1 line, 0.1 kB"])
    assert chat.evaluate(PASTE, ["file", "table"]) is False, "the browser puts the text into the box"
    assert chips(chat).count() == 1


def test_a_file_keeps_its_name_after_a_refusal_and_its_text_in_a_draft_and_an_edit(chat: Page):
    page = chat
    count = page.locator(".cnt")
    expect(count).to_have_text(re.compile("^0 of"))
    choose(page, text_file("long.csv", "1,2,3\n" * 100_000))
    expect(count).to_have_class("cnt over")
    box(page).fill("Sum it")
    box(page).press("Enter")
    expect(page.get_by_role("alert").filter(has_text="Shorten it by")).to_be_visible(timeout=SLOW)
    expect(chips(page)).to_have_text(["long.csv100,000 lines, 600 kB"])
    expect(box(page)).to_have_value("Sum it")
    page.reload()
    expect(page.get_by_text("Pasted text, 100,006 lines, 600 kB")).to_be_visible(timeout=SLOW)
    page.get_by_role("button", name="Remove the pasted text").click()
    choose(page, text_file("short.csv", "1,2,3\n" * 210))
    box(page).press("Enter")
    title(page, "Complete")
    page.locator(".me").get_by_role("button", name="Edit").click()
    expect(chips(page)).to_contain_text(["Pasted text, 214 lines"])
    page.get_by_role("button", name="Cancel").click()
    expect(chips(page)).to_have_count(0)


@pytest.mark.parametrize("language", ["en", "fr"])
@pytest.mark.parametrize("theme", ["dark", "light"])
def test_chips_fit_on_a_phone_and_have_no_accessibility_fault(synthetic: Product, context: BrowserContext, language: str, theme: str, shot):
    page = context.new_page()
    page.add_init_script(f"localStorage.setItem('language', '{language}'); localStorage.setItem('theme', '{theme}')")
    page.set_viewport_size({"width": 390, "height": 844})
    page.goto(synthetic.url)
    names = ("Attach text files", "Remove a.py", "Send") if language == "en" else ("Joindre des fichiers texte", "Retirer a.py", "Envoyer")
    button = page.get_by_role("button", name=names[0])
    expect(button).to_have_attribute("title", names[0], timeout=SLOW)
    many = [text_file(f"{'a-very-long-name-' * 8}{number}.py", "x = 1\n" * 3000) for number in range(12)]
    page.set_input_files(".composer input", [text_file("a.py", "1"), *many, *(text_file(f"{n}.bin", b"\0") for n in range(30))])
    expect(chips(page)).to_have_count(13)
    expect(page.locator(".rowerr p")).to_contain_text("29.bin")
    for width in (390, 320):
        page.set_viewport_size({"width": width, "height": 844})
        assert page.evaluate("document.documentElement.scrollWidth") <= width
        for name in names:
            at = page.get_by_role("button", name=name).bounding_box()
            assert at["x"] >= 0 and at["x"] + at["width"] <= width and min(at["width"], at["height"]) >= 24
        assert page.locator(".attached").bounding_box()["height"] < 130
        assert page.locator(".errors").bounding_box()["height"] < 0.25 * 844
        assert page.locator(".log").bounding_box()["height"] > 40
        found = Axe().run(page).response["violations"]
        assert [(v["id"], v["nodes"][0]["target"]) for v in found if v["impact"] in ("serious", "critical")] == []
        shot(page, f"{width}")
