"""The code workbench in a browser: streaming, editing, versions, and programs that run, fail, loop and flood in the sandbox.

The page, its policy and the sandbox document come from the real product. Answers are scripted at the socket, so that each
test says exactly what code arrives and how fast.
"""

import io
import json
import re
import socket
import threading
import time
import zipfile
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import pytest
from axe_playwright_python.sync_playwright import Axe
from playwright.sync_api import Browser, Page, expect

from tests.benchmarks.browser_cost import CATEGORIES, TITLED, markdown_text, python_text, tasks_of
from tests.e2e.conftest import wait_for

pytestmark = pytest.mark.e2e

# A WebSocket of protocol v1 inside the page: `answer(text, rate)` says what the next request gets, four characters a token.
FAKE_SOCKET = """
(() => {
  const answers = [];
  window.sent = [];
  window.answer = (text, rate = 5000) => answers.push([text, rate]);
  const id = () => crypto.randomUUID();
  const conversation_id = id();
  class FakeSocket extends EventTarget {
    static CONNECTING = 0; static OPEN = 1; static CLOSING = 2; static CLOSED = 3;
    readyState = 0; bufferedAmount = 0; binaryType = "blob";
    constructor() { super(); setTimeout(() => { this.readyState = 1; this.emit("open", new Event("open")); }, 0); }
    emit(name, event) { this["on" + name]?.(event); this.dispatchEvent(event); }
    frame(data) { this.emit("message", new MessageEvent("message", { data: JSON.stringify(data) })); }
    close() { this.readyState = 3; }
    send(text) {
      const request = JSON.parse(text);
      window.sent.push(request);
      if (request.type !== "generate") return;
      setTimeout(() => this.reply(request, ...(answers.shift() ?? ["Nothing.", 5000])), 5);
    }
    reply(request, answer, rate) {
      const generation_id = id();
      let event = 0;
      const frame = (data) => this.frame({ generation_id, event_id: `1-${++event}`, ...data });
      const messages = { user_message_id: id(), assistant_message_id: id() };
      this.frame({ type: "accepted", generation_id, request_id: request.request_id, conversation_id, ...messages });
      frame({ type: "started", prompt_tokens: 10, queue_ms: 1 });
      const start = performance.now();
      let sent = 0;
      window.lag = 0;
      const timer = setInterval(() => {
        const elapsed_ms = performance.now() - start;
        const due = Math.min(answer.length, Math.round(elapsed_ms / 1000 * rate * 4));
        if (due > sent) frame({ type: "delta", text: answer.slice(sent, due), tokens: Math.ceil((due - sent) / 4), elapsed_ms });
        sent = due;
        window.sentText = answer.slice(0, sent);
        if (sent < answer.length) return;
        clearInterval(timer);
        const completion_tokens = Math.ceil(answer.length / 4);
        frame({ type: "done", finish_reason: "stop", usage: { prompt_tokens: 10, completion_tokens },
                timings: { queue_ms: 1, ttft_ms: 10, total_ms: elapsed_ms, decode_tokens_per_s: rate } });
      }, 10);
    }
  }
  const Real = window.WebSocket;
  const ours = (url) => new URL(url, location).pathname.startsWith("/ws/");
  window.WebSocket = new Proxy(Real, { construct: (_target, [url]) => (ours(url) ? new FakeSocket() : new Real(url)) });
})();
"""

PYTHON = '''"""Steps of a walk."""
from heapq import heappop, heappush


def walk(start: int, goal: int) -> list[int]:
    """Every number
    on the way."""
    path = [start]
    while path[-1] != goal:
        path.append(path[-1] + 1)  # one step
    return path


print(walk(1, 5))
'''


class Bench:
    """The page with its workbench."""

    def __init__(self, page: Page, url: str):
        self.page = page
        page.add_init_script(FAKE_SOCKET)
        page.goto(url)
        self.status = page.locator(".wb-status")
        self.log = page.locator(".wb-log")
        self.run_button = page.locator(".wb-run")
        self.preview = page.frame_locator(".wb-preview iframe")

    def ask(self, answer: str, rate: int = 5000) -> None:
        """Sends a request that gets `answer`."""
        self.page.evaluate("([text, rate]) => answer(text, rate)", [answer, rate])
        box = self.page.locator(".composer textarea")
        box.fill("Go on.")
        box.press("Enter")

    def write(self, name: str, code: str, language: str = "", rate: int = 20000) -> None:
        """An answer with one file, to its end."""
        self.ask(f"```{language or name.rsplit('.')[-1]} {name}\n{code}```\n", rate)
        expect(self.page.locator(".wb-tab[aria-selected=true]")).to_have_text(name)
        expect(self.page.locator(".wb-head")).to_have_count(0)

    def run(self, name: str, code: str) -> None:
        self.write(name, code)
        expect(self.run_button).to_be_enabled()
        self.run_button.click()

    def ends(self, status: str, seconds: float = 30) -> None:
        expect(self.status).to_have_text(re.compile(status), timeout=seconds * 1000)

    def stays_usable(self, seconds: float = 2) -> None:
        """A click on a tab of the app is answered at once, again and again."""
        end = time.monotonic() + seconds
        while time.monotonic() < end:
            begin = time.monotonic()
            self.page.locator(".wb-toggle").click()
            assert time.monotonic() - begin < 1.5
            self.page.wait_for_timeout(100)
        if self.page.locator(".wb-toggle").get_attribute("aria-expanded") == "false":
            self.page.locator(".wb-toggle").click()


@pytest.fixture
def bench(page: Page, synthetic) -> Bench:
    return Bench(page, synthetic.url)


def test_code_is_written_once_with_its_engine_times(bench: Bench, shot):
    bench.ask(f"Here it is.\n\n```python walk.py\n{PYTHON}```\n\nThat is all.\n", rate=40)
    page = bench.page
    expect(page.locator(".wb-line").nth(3)).to_be_visible()
    expect(bench.run_button).to_be_disabled()
    expect(bench.status).to_have_text("Run is ready when the file is complete.")
    # What happens to a finished line from now on is an error.
    page.evaluate("""() => {
      const done = [...document.querySelectorAll(".wb-line")].slice(0, 3);
      window.repaints = 0;
      const watch = new MutationObserver((list) => (window.repaints += list.length));
      done.forEach((line) => watch.observe(line, { attributes: true, childList: true, characterData: true, subtree: true }));
    }""")
    shot(page, "streaming")
    expect(bench.run_button).to_be_enabled(timeout=20_000)
    assert page.evaluate("repaints") == 0
    rows = page.locator(".wb-line")
    assert rows.count() == PYTHON.count("\n")
    assert [row.rstrip("\n") for row in page.locator(".wb-line .c").all_text_contents()] == PYTHON.split("\n")[:-1]
    times = [float(text) for text in page.locator(".wb-line .t").all_text_contents()]
    assert times == sorted(times) and times[-1] > times[0] > 0
    assert page.locator(".wb-line .k").first.text_content() == "from"
    expect(page.locator(".wb-line").nth(6).locator(".st")).to_have_text('    on the way."""')


@pytest.mark.parametrize("text", [python_text(100), markdown_text(70)], ids=["python", "markdown"])
def test_5000_tokens_a_second_leave_no_long_task(bench: Bench, browser: Browser, text: str):
    page = bench.page
    bench.write("warm.py", PYTHON)
    browser.start_tracing(page=page, categories=CATEGORIES)
    page.evaluate("performance.mark('go')")
    bench.ask(text, rate=5000)
    page.evaluate(TITLED, "Streaming")  # no locator searches the page meanwhile
    page.evaluate(TITLED, "Complete")
    tasks = tasks_of(json.loads(browser.stop_tracing()))
    assert len(tasks) > 100
    # Processor time of each task, not wall time: other work on the machine is not this page's.
    assert tasks[0]["cpu"] < 50, tasks[:3]
    assert page.locator(".wb-line").count() < 400
    shown = "".join(row.rstrip("\n") for row in page.locator(".wb-line .c").all_text_contents())
    code = re.findall(r"```python.*?\n(.*?)```", text, re.DOTALL)[-1].replace("\n", "")
    assert shown and code.endswith(shown)


def test_a_file_of_20000_lines_scrolls_and_opens_for_editing(bench: Bench):
    page = bench.page
    bench.write("long.py", "".join(f"value_{n} = {n}\n" for n in range(20_000)), rate=200_000)
    assert page.locator(".wb-line").count() < 400
    code = page.locator(".wb-code")
    code.evaluate("e => (e.scrollTop = e.scrollHeight)")
    expect(page.get_by_text("value_19999 = 19999")).to_be_visible()
    code.evaluate("e => (e.scrollTop = 200_000)")
    expect(page.locator(".wb-line .n", has_text="10001").first).to_be_attached()
    code.press("Enter")
    expect(page.locator(".cm-content")).to_be_focused()
    assert abs(page.locator(".wb-edithost .cm-scroller").evaluate("e => e.scrollTop") - 200_000) < 2


def test_following_ends_with_a_scroll_up_and_returns_with_f(bench: Bench):
    page = bench.page
    bench.ask("```python a.py\n" + "".join(f"line_{n} = {n}\n" for n in range(400)) + "```\n", rate=120)
    code = page.locator(".wb-code")
    expect(page.locator(".wb-follow")).to_contain_text("Following")
    expect(page.get_by_text("line_40 = 40", exact=True)).to_be_visible(timeout=10_000)
    code.hover()
    page.mouse.wheel(0, -300)
    jump = page.get_by_role("button", name="Jump to the end")
    expect(jump).to_be_visible()
    page.wait_for_timeout(100)  # the scroll itself has ended
    top = code.evaluate("e => e.scrollTop")
    page.wait_for_timeout(300)
    assert code.evaluate("e => e.scrollTop") == top
    code.press("f")
    expect(jump).to_be_hidden()
    expect(page.get_by_text("line_399 = 399")).to_be_visible(timeout=30_000)


def test_the_enclosing_definition_stays_in_sight(bench: Bench):
    page = bench.page
    body = "".join(f"        value_{n} = {n}\n" for n in range(80))
    bench.write("scope.py", f"class Walk:\n    def run(self) -> None:\n{body}\n\ndef last() -> None:\n{body}")
    page.locator(".wb-code").evaluate("e => (e.scrollTop = 600)")
    expect(page.locator(".wb-scope .c")).to_have_text("def run(self) -> None:")
    expect(page.locator(".wb-sn")).to_have_text("2")


@pytest.mark.parametrize("part", ["> ", "- ", "> - "])
def test_an_answer_of_deep_nesting_leaves_the_tab_alive(bench: Bench, part: str):
    bench.ask(f"{part * 5000}deep\n\nafter\n", 20000)
    expect(bench.page).to_have_title(re.compile("^Complete"), timeout=20_000)
    expect(bench.page.locator(".ans .body")).to_contain_text("after")


def test_editing_moves_nothing_and_the_edit_goes_with_the_next_request(bench: Bench, shot):
    page = bench.page
    bench.write("walk.py", PYTHON)
    line = page.locator(".wb-line .c").nth(7)
    colour = "e => getComputedStyle(e).color"
    before, keyword = line.bounding_box(), page.locator(".wb-line .k").first.evaluate(colour)
    line.click(position={"x": 60, "y": 10})
    editor = page.locator(".cm-content")
    expect(editor).to_be_focused()
    after = page.locator(".cm-line").nth(7)
    box = after.bounding_box()
    assert abs(box["x"] - before["x"]) <= 1 and abs(box["y"] - before["y"]) <= 1, (before, box)
    assert page.locator(".cm-line .k").first.evaluate(colour) == keyword
    assert [t for t in page.locator(".wb-times .cm-gutterElement").all_text_contents() if t][-1]
    page.keyboard.press("End")
    page.keyboard.type("  # mine")
    expect(page.locator(".wb-note")).to_contain_text("Edited. Goes with your next request.")
    expect(page.locator(".wb-select").first.locator("option:checked")).to_have_text("v1, edited")
    shot(page, "editing")
    page.wait_for_timeout(400)
    bench.ask("Fine.\n")
    page.wait_for_function("sent.filter((f) => f.type === 'generate').length === 2")
    request = page.evaluate("sent.filter((f) => f.type === 'generate').at(-1)")
    assert "path = [start]  # mine" in json.dumps(request["messages"])
    # Esc, then Tab, leaves the editor; the pane says so.
    editor.focus()
    expect(page.locator(".wb-hint")).to_contain_text("Press Esc, then Tab, to leave the editor.")
    page.keyboard.press("Escape")
    expect(page.locator(".wb-hint")).to_have_text("Tab now leaves the editor.")
    page.keyboard.press("Tab")
    expect(editor).not_to_be_focused()
    page.get_by_role("button", name="Undo my edits").click()
    expect(page.locator(".wb-note")).to_be_hidden()
    expect(page.locator(".wb-line .c").nth(7)).to_have_text("    path = [start]")


def test_edits_survive_a_reload_and_reach_the_real_server_once(page: Page, synthetic):
    page.goto(synthetic.url)
    box = page.locator(".composer textarea")
    box.fill("Add two numbers.")
    box.press("Enter")
    expect(page.locator(".wb-tab").first).to_have_text("main.py", timeout=30_000)
    page.get_by_role("button", name=re.compile("Stop")).first.click()
    page.wait_for_url("**/c/*")
    page.wait_for_timeout(500)
    page.locator(".wb-tab", has_text="main.py").first.click()
    page.locator(".wb-code").press("Enter")
    expect(page.locator(".cm-content")).to_be_focused()
    page.keyboard.press("Control+End")
    page.keyboard.type("print(add(3, 4))")
    page.reload()
    page.locator(".wb-tab", has_text="main.py").first.click()
    expect(page.locator(".wb-code")).to_contain_text("print(add(3, 4))")
    expect(page.locator(".wb-note")).to_contain_text("Edited. Goes with your next request.")
    box.fill("What does it print?")
    box.press("Enter")
    expect(page.locator(".wb-note")).not_to_contain_text("Goes with")
    chat = page.evaluate("() => fetch('/api/conversations/' + location.pathname.split('/')[2]).then(r => r.json())")
    said = [m["content"] for m in chat["messages"] if m["role"] == "user"][-1]
    assert said.startswith("What does it print?") and "print(add(3, 4))" in said
    page.locator(".composer").get_by_role("button", name=re.compile("Stop")).click()
    expect(page).to_have_title(re.compile("^(Stopped|Complete)"))
    page.reload()
    box.fill("And now?")
    box.press("Enter")
    expect(page.locator(".me").last).to_contain_text("And now?")
    expect(page.locator(".me").last).not_to_contain_text("print(add(3, 4))")


def test_versions_of_a_file_are_kept_and_compared(bench: Bench, shot):
    page = bench.page
    bench.write("walk.py", PYTHON)
    bench.write("walk.py", PYTHON.replace("one step", "a step").replace("print(walk(1, 5))\n", ""))
    version = page.locator(".wb-bar .wb-select")
    expect(version.locator("option")).to_have_text(["v1", "v2"])
    expect(version.locator("option:checked")).to_have_text("v2")
    expect(page.locator(".wb-code")).not_to_contain_text("print(walk(1, 5))")
    page.get_by_role("button", name="Diff").click()
    expect(page.locator(".cm-deletedChunk").first).to_contain_text("# one step")
    expect(page.locator(".cm-changedLine").first).to_contain_text("# a step")
    shot(page, "diff")
    page.get_by_role("button", name="Diff").click()
    version.select_option("0")
    expect(page.locator(".wb-code")).to_contain_text("print(walk(1, 5))")


def test_files_are_copied_and_downloaded_one_or_all(bench: Bench):
    page = bench.page
    page.context.grant_permissions(["clipboard-read", "clipboard-write"])
    bench.write("walk.py", PYTHON)
    page.get_by_role("button", name="Copy the code").click()
    assert page.evaluate("navigator.clipboard.readText()") == PYTHON
    with page.expect_download() as one:
        page.get_by_role("button", name="Download", exact=True).click()
    assert one.value.suggested_filename == "walk.py" and one.value.path().read_text() == PYTHON
    bench.write("style.css", "body { color: red; }\n")
    page.get_by_role("button", name="Download", exact=True).click()
    with page.expect_download() as every:
        page.get_by_role("menuitem", name="All files as a zip").click()
    archive = zipfile.ZipFile(io.BytesIO(every.value.path().read_bytes()))
    assert {name: archive.read(name).decode() for name in archive.namelist()} == {"walk.py": PYTHON, "style.css": "body { color: red; }\n"}


def test_python_runs_fails_asks_stops_and_runs_again(bench: Bench, shot):
    page = bench.page
    start = 120  # the interpreter is fetched and compiled once
    bench.run("walk.py", PYTHON)
    bench.ends("Finished in", start)
    expect(bench.log).to_contain_text("[1, 2, 3, 4, 5]")
    # Files of the chat are modules, and asyncio works.
    coroutine = "async def main():\n    await asyncio.sleep(0.05)\n    return sum(walk.walk(1, 3))\n"
    bench.run("use.py", f"import asyncio, walk\n\n{coroutine}\nprint(asyncio.run(main()))\n")
    bench.ends("Finished in")
    expect(bench.log).to_contain_text("6")
    # An exception marks its line and can be sent back.
    bench.run("bad.py", "def half(n):\n    return 1 / n\n\nprint('before')\nhalf(0)\n")
    bench.ends("ZeroDivisionError on line 2")
    expect(page.locator(".wb-line.wb-bad .n")).to_have_text("2")
    expect(bench.log).to_contain_text("before")
    expect(bench.log).to_contain_text('File "bad.py", line 5, in <module>')
    assert "runner" not in bench.log.inner_text() and "<exec>" not in bench.log.inner_text()
    shot(page, "exception")
    page.get_by_role("button", name="Fix it").click()
    page.wait_for_function("sent.filter((f) => f.type === 'generate').length === 4")
    asked = page.evaluate("sent.filter((f) => f.type === 'generate').at(-1).messages.at(-1).content")
    assert "ZeroDivisionError: division by zero" in asked and "return 1 / n" in asked
    expect(page).to_have_title(re.compile("^Complete"))  # Enter does nothing while an answer runs
    bench.run("syntax.py", "if True\n    pass\n")
    bench.ends("SyntaxError on line 1")
    bench.run("ask.py", "name = input('Name? ')\n")
    bench.ends("EOFError on line 1")
    expect(bench.log).to_contain_text("input() cannot ask here")
    # No network, no page, no cookie.
    bench.run("net.py", "import js\nx = js.XMLHttpRequest.new()\nx.open('GET', '" + page.url + "', False)\nx.send()\n")
    bench.ends("JsException on line 4")
    # A storm of output is capped and counted; Stop ends it; what was printed stays.
    bench.run("storm.py", "print('first')\nwhile True:\n    print('y')\n")
    bench.ends("Running")
    expect(page.locator(".wb-dropped")).to_contain_text("more lines were not kept.", timeout=9000)
    begin = time.monotonic()
    page.keyboard.press("Escape")
    bench.ends("Stopped by you")
    assert time.monotonic() - begin < 3
    expect(bench.log).to_contain_text("first")
    # The time limit; output printed just before an endless loop is not lost.
    bench.run("loop.py", "for i in range(300):\n    print('line', i)\nwhile True:\n    pass\n")
    bench.ends("Stopped after 10 s. Output up to then is kept.", start)
    expect(bench.log).to_contain_text("line 299")
    bench.run("again.py", "print('well again')\n")
    bench.ends("Finished in", start)
    expect(bench.log).to_contain_text("well again")


def test_a_run_of_python_leaves_nothing_to_the_next(bench: Bench):
    bench.run("one.py", "import sys, io\nprint('one')\nsys.stdout = io.StringIO()\nprint('lost')\n")
    expect(bench.log).to_have_text("one\n", timeout=60_000)
    bench.run("two.py", "print('two')\nimport sys\nsys.stdout.close()\nsys.stderr = None\n")
    expect(bench.log).to_have_text("two\n")
    bench.ends("Finished")
    task = "async def later():\n    while True:\n        await asyncio.sleep(0)\n        print('late')\n"
    bench.run("three.py", f"import asyncio\n{task}asyncio.ensure_future(later())\nprint('three')\n")
    expect(bench.log).to_have_text("three\n")
    bench.run("four.py", "print('four')\nwhile True:\n    pass\n")
    expect(bench.log).to_have_text("four\n")
    bench.page.locator(".wb-console .btn.stop").click()
    bench.ends("Stopped by you")
    expect(bench.log).to_have_text("four\n")


def test_javascript_runs_in_a_worker_that_always_stops(bench: Bench):
    page = bench.page
    bench.run("a.js", "console.log('now', [1, { a: 2 }]);\nsetTimeout(() => console.warn('later'), 50);\n")
    bench.ends("Finished in")
    expect(bench.log).to_contain_text("now [1, {a: 2}]")
    expect(bench.log.locator(".wb-warn")).to_contain_text("later")
    bench.run("b.js", "let x = 1;\nfunction f() {\n  return x.y.z;\n}\nf();\n")
    bench.ends("TypeError on line 3")
    expect(page.locator(".wb-line.wb-bad .n")).to_have_text("3")
    bench.run("c.js", "const a = 1;\nconst b = ;\n")
    bench.ends("SyntaxError on line 2")
    bench.run("d.js", "const r = await fetch('/healthz').catch((e) => e.name);\nconsole.log(r);\n")
    bench.ends("Finished in")
    expect(bench.log).to_contain_text("TypeError")
    bench.run("e.js", "console.log('before');\nwhile (true) {}\n")
    bench.ends("Running")
    bench.stays_usable()
    bench.run_button.click()
    bench.ends("Stopped by you")
    expect(bench.log).to_contain_text("before")


PAGE = """<!doctype html>
<h1>Counter</h1>
<button id="more">More</button> <output id="count">0</output>
<form id="form"><input id="text" aria-label="Text"><button>Add</button></form>
<p id="late">end</p>
<script>
let n = 0;
document.getElementById("more").onclick = () => { document.getElementById("count").textContent = ++n; console.log("clicked", n); };
document.getElementById("form").addEventListener("submit", (event) => {
  event.preventDefault();
  console.log("submitted", document.getElementById("text").value);
});
</script>
"""


def test_whatever_a_script_throws_ends_it(bench: Bench):
    bench.run("thrown.js", "throw { code: 7, toString() { throw 1; } };\n")
    bench.ends("code: 7", 5)


def test_html_is_previewed_while_it_streams_and_works(bench: Bench, shot):
    page = bench.page
    bench.ask(f"```html index.html\n{PAGE}```\n", rate=40)
    expect(bench.preview.get_by_role("heading", name="Counter")).to_be_visible(timeout=15_000)
    assert page.locator(".wb-head").count() == 1, "the preview came before the end of the file"
    expect(bench.status).to_have_text("Live preview")
    expect(page.locator(".wb-head")).to_have_count(0, timeout=20_000)
    expect(bench.status).to_have_text("Preview")
    bench.preview.get_by_role("button", name="More").click()
    expect(bench.preview.locator("#count")).to_have_text("1")
    bench.preview.get_by_label("Text").fill("abc")
    bench.preview.get_by_role("button", name="Add").click()
    expect(bench.log).to_contain_text("submitted abc")
    shot(page, "preview")
    # Files of the chat take the place of links to them.
    bench.write("style.css", "h1 { color: rgb(1, 2, 3); }\n")
    bench.write("page.html", '<!doctype html>\n<link rel="stylesheet" href="style.css">\n<h1>Styled</h1>\n')
    bench.run_button.click()
    expect(bench.preview.get_by_role("heading", name="Styled")).to_have_css("color", "rgb(1, 2, 3)")


GREEDY = """<!doctype html>
<input aria-label="Trap"> <select><option>One</option></select> <output></output>
<script>
const trap = document.querySelector("input");
setInterval(() => { trap.focus(); trap.dispatchEvent(new PointerEvent("pointerdown", { bubbles: true })); }, 400);
setTimeout(() => { document.querySelector("output").textContent = "grabbing"; }, 900);
</script>
"""


def test_a_page_that_takes_the_focus_gives_it_back(bench: Bench):
    """What is typed stays in the message, wherever the pointer rests; a click or the Tab key leads into the page as ever."""
    page = bench.page
    bench.run("greedy.html", GREEDY)
    expect(bench.preview.get_by_text("grabbing")).to_be_visible()
    box = page.locator(".composer textarea")
    page.mouse.move(2, 2)
    box.click()
    for _ in range(10):  # every grab falls between two looks at most
        page.wait_for_timeout(100)
        wait_for(lambda: page.evaluate("document.activeElement.matches('.composer textarea')"), 2)
    taken = page.evaluate("() => { window.taken = 0; addEventListener('blur', () => taken++); }")
    box.press_sequentially("x" * 60, delay=40)
    assert page.evaluate("taken") >= 3, taken
    assert len(box.input_value()) >= 57, "a key that falls between the taking and the giving back is lost"

    bench.preview.locator("output").hover()  # the pointer rests over the page
    page.wait_for_timeout(1000)
    wait_for(lambda: page.evaluate("document.activeElement.matches('.composer textarea')"), 2)

    trap = bench.preview.get_by_label("Trap")
    trap.click()
    trap.press_sequentially("mine", delay=30)
    expect(trap).to_have_value(re.compile("mine$"))
    page.wait_for_timeout(1500)
    assert page.evaluate("document.activeElement.tagName") == "IFRAME", "a person is in the page"


def test_the_tab_key_leads_into_a_page(bench: Bench):
    page = bench.page
    bench.run("still.html", "<!doctype html>\n<input aria-label='Field'>\n")
    expect(bench.preview.get_by_label("Field")).to_be_visible()
    before = page.evaluate_handle(
        "() => [...document.querySelectorAll('button, a[href], textarea, select, [tabindex=\"0\"]')]"
        ".filter(e => e.checkVisibility() && e.compareDocumentPosition(document.querySelector('.wb-preview iframe')) & 4).at(-1)"
    )
    before.as_element().focus()
    for _ in range(4):
        page.keyboard.press("Tab")
        if page.evaluate("document.activeElement.tagName") == "IFRAME":
            break
    page.wait_for_timeout(500)
    page.keyboard.type("typed")
    expect(bench.preview.get_by_label("Field")).to_have_value("typed")


@pytest.fixture
def elsewhere() -> Iterator[tuple[str, list[str]]]:
    """Another site's address, and what was asked of it."""
    asked = []

    class Site(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            asked.append(self.path)
            self.send_response(204)
            self.end_headers()

        def log_message(self, *_args) -> None:
            pass

    server = ThreadingHTTPServer(("127.0.0.1", 0), Site)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    yield f"http://127.0.0.1:{server.server_port}", asked
    server.shutdown()
    server.server_close()


def test_a_page_reaches_neither_network_nor_app(bench: Bench, elsewhere: tuple[str, list[str]]):
    site, asked = elsewhere
    probes = """
const seen = {};
try { seen.cookie = document.cookie } catch (e) { seen.cookie = e.name }
try { seen.parent = parent.document.title } catch (e) { seen.parent = e.name }
seen.origin = self.origin;
seen.popup = String(window.open("about:blank"));
seen.eval = (() => { try { return (0, eval)("1") } catch (e) { return e.name } })();
fetch(SITE + "/fetch").then(() => "reached", (e) => e.name).then((r) => {
  seen.fetch = r;
  navigator.sendBeacon?.(SITE + "/beacon", "x");
  console.log(JSON.stringify(seen));
  location.href = SITE + "/navigation";
});
"""
    html = f'<!doctype html>\n<img src="{site}/pixel.png">\n<script src="{site}/x.js"></script>\n'
    bench.run("probe.html", f"{html}<link rel=stylesheet href={site}/x.css><script>const SITE = '{site}';{probes}</script>\n")
    expect(bench.log).to_contain_text('"fetch"')
    seen = json.loads(re.search(r"\{.*\}", bench.log.inner_text())[0])
    assert seen == {
        "cookie": "SecurityError",
        "parent": "SecurityError",
        "origin": "null",
        "popup": "null",
        "eval": "EvalError",
        "fetch": "TypeError",
    }
    expect(bench.log).to_contain_text(f"Blocked: {site}/pixel.png. The preview has no network.")
    assert bench.page.locator(".wb-preview iframe").get_attribute("sandbox") == "allow-scripts"
    bench.page.wait_for_timeout(500)
    assert asked == []


def test_a_frame_in_a_page_is_no_way_out(bench: Bench):
    """A frame within the frame has a WebRTC of its own, which sends packets past the policy."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as listener:
        listener.bind(("127.0.0.1", 0))
        listener.settimeout(1.5)
        server = f"{{iceServers: [{{urls: 'stun:127.0.0.1:{listener.getsockname()[1]}'}}]}}"
        call = f"pc = new RTCPeerConnection({server}); pc.createDataChannel('x'); pc.createOffer().then(o => pc.setLocalDescription(o))"
        frame = f'<iframe srcdoc="<script>{call}</script>"></iframe>'
        inner = frame.replace("</script>", r"<\/script>")
        code = f"""<!doctype html>
{frame}
<div><template shadowrootmode=closed>{frame}</template></div>
<p id=host></p>
<script>
Element.prototype.remove = Document.prototype.querySelector = () => null;
document.body.insertAdjacentHTML('beforeend', `{inner}`);
host.attachShadow({{mode: 'closed'}}).append(document.createRange().createContextualFragment(`{inner}`));
console.log('end');
</script>
"""
        bench.run("frames.html", code)
        expect(bench.log).to_contain_text("end")
        expect(bench.log).to_contain_text("Blocked: <iframe>. The preview has no network.")
        with pytest.raises(TimeoutError):
            listener.recv(100)


def test_links_of_a_drawing_do_not_leave_the_preview(bench: Bench):
    bench.run("chart.html", '<!doctype html>\n<svg><a href="https://example.org/x"><text y="20">bar</text></a></svg>\n')
    bench.preview.locator("text").click()
    expect(bench.log).to_contain_text("Blocked: https://example.org/x")
    expect(bench.preview.locator("text")).to_be_visible()


def test_a_loop_in_a_page_ends_with_an_error_at_its_line(bench: Bench):
    bench.run("loop.html", "<!doctype html>\n<script>\nconsole.log('start');\nwhile (true) {\n}\n</script>\n")
    bench.ends("Error on line 4")
    expect(bench.log).to_contain_text("Loop stopped: it ran for 2 s without a pause.")


def test_a_hung_page_leaves_the_app_clickable_and_is_removed(bench: Bench):
    page = bench.page
    # A handler in an attribute escapes the loop guard: the frame hangs for good.
    html = "<!doctype html>\n<button id=hang onclick='while(true){}'>Hang</button>\n<script>setTimeout(() => hang.click(), 300)</script>\n"
    bench.run("hang.html", html)
    bench.ends("Preview")
    page.wait_for_timeout(600)
    bench.stays_usable(1)
    bench.ends("The page stopped answering and was removed.", 15)
    expect(page.locator(".wb-preview iframe")).to_have_count(0)
    # Stop need not wait for that.
    bench.run_button.click()
    bench.ends("Preview")
    page.wait_for_timeout(600)
    page.locator(".wb-console .btn.stop").click()
    bench.ends("Stopped by you")
    expect(page.locator(".wb-preview iframe")).to_have_count(0)


def test_storms_of_alerts_and_messages_leave_the_app_usable(bench: Bench):
    page = bench.page
    page.on("dialog", lambda dialog: pytest.fail("a dialog opened"))
    bench.run("alerts.html", "<script>setInterval(() => { for (let i = 0; i < 500; i++) alert(i); }, 10)</script>\n")
    bench.stays_usable()
    expect(page.locator(".wb-dropped")).to_contain_text("not kept")
    page.locator(".wb-console .btn.stop").click()
    bench.ends("Stopped by you")
    bench.run("messages.html", "<script>setInterval(() => { for (let i = 0; i < 2000; i++) top.postMessage('x', '*'); }, 10)</script>\n")
    bench.ends("The page sent too many messages and was removed.")


def test_keyboard_reaches_everything(bench: Bench):
    page = bench.page
    bench.write("walk.py", PYTHON)
    bench.write("b.js", "console.log('ran');\n")
    tabs = page.locator(".wb-tab")
    tabs.last.focus()
    page.keyboard.press("ArrowLeft")
    expect(tabs.first).to_be_focused()
    expect(tabs.first).to_have_attribute("aria-selected", "true")
    page.keyboard.press("ArrowRight")
    page.locator(".wb-code").press("Control+Enter")
    bench.ends("Finished in")
    grip = page.get_by_role("separator", name="Height of the console")
    grip.focus()
    height = page.locator(".wb-console").bounding_box()["height"]
    page.keyboard.press("ArrowUp")
    assert grip.get_attribute("aria-valuenow") == "45"
    assert page.locator(".wb-console").bounding_box()["height"] > height


@pytest.mark.parametrize("theme", ["dark", "light"])
@pytest.mark.parametrize("width", [390, 1440])
def test_no_accessibility_findings(bench: Bench, shot, width: int, theme: str):
    page = bench.page
    page.evaluate("t => (document.documentElement.dataset.theme = t)", theme)
    bench.write("b.js", "const a = [1, 2];\nconsole.log(a);\na.b.c;\n")
    bench.write("b.js", "const a = [1, 2, 3];\nconsole.log(a);\na.b.c;\n")
    bench.run_button.click()
    bench.ends("TypeError on line 3")
    findings = []
    page.set_viewport_size({"width": width, "height": 844 if width == 390 else 900})
    views = ["Code", "Output"] if width == 390 else [""]
    for view in views:
        if view:
            page.get_by_role("tab", name=view, exact=True).click()
        findings += Axe().run(page).response["violations"]
        shot(page, f"{view or 'wide'}-{theme}")
    if width == 1440:
        page.locator(".wb-line .c").first.click()
        expect(page.locator(".cm-content")).to_be_focused()
        findings += Axe().run(page).response["violations"]
        page.get_by_role("button", name="Diff").click()
        expect(page.locator(".cm-changedLine").first).to_be_visible()
        findings += Axe().run(page).response["violations"]
        shot(page, f"diff-{theme}")
    assert not [(f["id"], [n["html"][:150] for n in f["nodes"]]) for f in findings]
    assert page.evaluate("document.documentElement.scrollWidth <= innerWidth")
