"""What the page says and shows in each state of a run, and what it does when the connection or the reader goes away."""

import json
import re
from collections.abc import Callable

import pytest
from playwright.sync_api import BrowserContext, Page, WebSocketRoute, expect

from tests.e2e.conftest import Product, is_prefix, unlimited
from tests.e2e.screenshots import STATES, WINDOWS, done, run, speak, with_card

pytestmark = pytest.mark.e2e
SLOW = 60_000  # ms

# State: lamp, figure with its unit, tone of the figure, a part of the sub-line. "" is an unlit figure; no tone is the signal colour.
SAID = {
    "queued": ("Queued", "3 in line", "ink", "2 ahead of you."),
    "loading": ("Loading model", "62 %", "ink", "2.8 of 4.6 GB"),
    "prefill": ("Reading prompt", "1,536 read", "ink", "of 2,048 prompt tokens"),
    "streaming": ("Streaming", r"9\d\d tok/s", "", "last 250 ms, engine clock"),
    "finished": ("Complete", "951 tok/s", "", "decode rate, whole run"),
    "stopped": ("Stopped", "951 tok/s", "ink", "Stopped by you. 703 tokens kept."),
    "interrupted": ("Interrupted", r"9\d\d tok/s", "hold", "The engine went away. 180 tokens kept."),
    "failed": ("Failed", r"9\d\d tok/s", "hold", "The engine stopped on invalid numbers. 130 tokens kept."),
    "model-error": ("Failed", "", "off", "The model could not be loaded."),
    "reconnecting": ("Reconnecting", r"9\d\d tok/s", "hold", "The run goes on; resumes at token 250."),
    "offline": ("Reconnecting", r"9\d\d tok/s", "hold", "The run goes on; resumes at token 250."),
}
EDGES = """() => ['.meter', '.m-fig', '.m-trace', '.m-read', '.m-read .rd', '.bar', '.plate'].flatMap(
  part => [...document.querySelectorAll(part)].map(e => {
    const b = e.getBoundingClientRect(); return `${part} ${b.x} ${b.y} ${b.width} ${b.height}`; }))"""


@pytest.fixture
def opened(context: BrowserContext, synthetic: Product) -> Callable[..., tuple[Page, list[WebSocketRoute]]]:
    """A page of an H200's model whose next request gets these frames."""

    def open_page(frames: list[dict], language: str = "en", window: str = "desktop") -> tuple[Page, list[WebSocketRoute]]:
        page = context.new_page()
        page.add_init_script(f"localStorage.setItem('language', '{language}')")
        page.set_viewport_size(dict(zip(("width", "height"), WINDOWS[window], strict=True)))
        sockets = speak(page, frames)
        with_card(page)
        page.goto(synthetic.url)
        expect(page.locator('.light[data-link="connected"]')).to_be_attached(timeout=SLOW)
        return page, sockets

    return open_page


def ask(page: Page, text: str = "Cheapest path") -> None:
    page.fill("#message", text)
    page.keyboard.press("Enter")


def into(name: str, page: Page, sockets: list[WebSocketRoute]) -> None:
    """Break the connection where the state is one without it."""
    expect(page.locator(".lamp").first).not_to_have_text(re.compile("Ready|Prêt"), timeout=SLOW)
    if name in ("reconnecting", "offline"):
        expect(page.locator(".m-read dd").nth(2)).to_have_text(re.compile("^250"), timeout=SLOW)
        page.context.set_offline(True) if name == "offline" else sockets[0].close()


@pytest.mark.parametrize("name", STATES)
def test_each_state_has_its_shape_words_and_figure(opened: Callable, name: str):
    page, sockets = opened(STATES[name]())
    ask(page)
    into(name, page, sockets)
    lamp, figure, tone, sub = SAID[name]
    expect(page.locator(".meter .lamp")).to_have_text(lamp, timeout=SLOW)
    assert page.locator(".meter .lamp path").first.get_attribute("d")
    expect(page.locator(".fig > span")).to_have_text(re.compile(f"^{figure.split()[0] if figure else 'no value'}$"))
    if figure:
        expect(page.locator(".fig > small")).to_have_text(figure.split()[1] if " line" not in figure else "in line")
    expect(page.locator(".fig")).to_have_class(f"fig {tone}".strip())
    expect(page.locator(".m-sub")).to_contain_text(sub)
    assert page.title().startswith(lamp)
    light = {"reconnecting": "Reconnecting", "offline": "Offline"}.get(name, "Connected")
    expect(page.locator(".light")).to_have_text(light)
    alert = page.locator('.vh[role="alert"]')
    if lamp in ("Interrupted", "Failed"):
        expect(alert).to_have_text(f"{lamp}. {sub}")
        page.locator(".ans summary").click()
        expect(page.locator(".ans details code")).to_have_text(re.compile(r"^(engine_stopped|invalid_numbers|model_error) · "))
    else:
        expect(alert).to_be_empty()
    if name == "offline":
        expect(page.locator(".rowerr")).to_contain_text("No connection. What you type is kept in this browser.")
        page.context.set_offline(False)


@pytest.mark.parametrize("language", ["en", "fr"])
@pytest.mark.parametrize("window", WINDOWS)
def test_no_state_moves_a_part_of_the_instrument(opened: Callable, window: str, language: str):
    page, _ = opened([], language, window)
    page.evaluate("document.fonts.ready.then(() => {})")
    still = page.evaluate(EDGES)
    page.close()
    for name in STATES:
        page, sockets = opened(STATES[name](), language, window)
        ask(page)
        into(name, page, sockets)
        page.wait_for_timeout(200)
        moved = [edge for edge in page.evaluate(EDGES) if edge not in still]
        page.context.set_offline(False)
        page.close()
        assert moved == [], name


def test_the_place_in_the_queue_moves_and_the_load_counts(opened: Callable):
    page, sockets = opened([{"type": "queued", "position": 3}])
    ask(page)
    figure, sub = page.locator(".fig > span"), page.locator(".m-sub")
    expect(figure).to_have_text("3", timeout=SLOW)
    wait = page.locator(".m-read dd").nth(1).inner_text()
    say = lambda **frame: sockets[0].send(json.dumps({"generation_id": "g"} | frame))  # noqa: E731
    say(type="queued", position=1)
    expect(figure).to_have_text("1")
    expect(sub).to_have_text("You are next. Your place is kept if you leave.")
    expect(page.locator(".m-read dd").nth(1)).not_to_have_text(wait)
    for fraction in (0.1, 0.9):
        say(type="loading", fraction=fraction, detail="Reading Laneformer 2B.")
        expect(figure).to_have_text(f"{fraction:.0%}"[:-1])
    for number, frame in enumerate([*run(), done("stop")], 1):
        say(event_id=f"{number}-0", **frame)
    expect(page.locator(".meter .lamp")).to_have_text("Complete")


def test_the_bound_and_the_bandwidth_use_of_a_gpu_are_shown(opened: Callable):
    page, _ = opened(STATES["finished"]())
    expect(page.locator(".plate")).to_contain_text("1 × H200")
    ask(page)
    expect(page.locator(".meter .lamp")).to_have_text("Complete", timeout=SLOW)
    expect(page.locator(".mbu p")).to_have_text(re.compile(r"^MBU 93\.7\s%4\.23 of 4\.51\sTB/s$"))  # 951 x 4.443 GB of 4.51 TB/s
    assert page.locator(".bar").get_attribute("aria-valuenow") == "94"
    assert page.locator(".bar u").evaluate("e => e.style.left").startswith("93.95")  # measured 4.51 of 4.8 by the datasheet
    expect(page.locator(".trace .bv")).to_have_text("1,015")
    assert page.locator(".trace").get_attribute("aria-label").endswith("bound 1,015")
    page.get_by_role("button", name="How this is measured").click()
    sheet = page.get_by_role("dialog")
    expect(sheet).to_contain_text("4.80 TB/s")
    expect(sheet).to_contain_text("4.51 TB/s")


def test_only_generating_and_complete_are_announced(opened: Callable):
    page, _ = opened(STATES["finished"]())
    page.evaluate(
        """() => { window.heard = [];
        for (const region of document.querySelectorAll('[role=status], [role=alert], [role=log], [aria-live]'))
          new MutationObserver(() => region.textContent && heard.push(region.textContent))
            .observe(region, {subtree: true, childList: true, characterData: true}); }"""
    )
    ask(page)
    expect(page.locator(".ticket")).to_be_visible(timeout=SLOW)
    assert page.evaluate("heard") == ["Generating", "Complete, 703 tokens in 0.664 seconds"]
    live = page.locator("main").locator("[role=status], [role=alert], [role=log], [aria-live]:not([aria-live=off])")
    assert live.count() == 0, "nothing that grows is a live region"


def test_reduced_motion_moves_nothing_and_draws_the_curve_four_times_a_second(synthetic: Product, page: Page):
    page.emulate_media(reduced_motion="reduce")
    page.add_init_script(unlimited())
    page.add_init_script(
        "window.strokes = 0; const stroke = CanvasRenderingContext2D.prototype.stroke;"
        "CanvasRenderingContext2D.prototype.stroke = function (...a) { window.strokes++; return stroke.apply(this, a); };"
    )
    page.goto(synthetic.url)
    page.get_by_role("button", name="Parameters", exact=True).click()
    assert page.evaluate("document.getAnimations().length") == 0
    page.keyboard.press("Escape")
    ask(page)
    expect(page).to_have_title(re.compile("^Streaming"), timeout=SLOW)
    page.wait_for_timeout(1500)
    strokes = page.evaluate(
        "() => new Promise(done => { const from = window.strokes; setTimeout(() => done(window.strokes - from), 2000); })"
    )
    page.keyboard.press("Escape")
    assert 0 < strokes <= 10


def test_a_system_prompt_a_preset_and_a_prompt_of_the_gallery_go_with_the_request(synthetic: Product, page: Page):
    page.goto(synthetic.url)
    expect(page.get_by_text("Connected")).to_be_visible(timeout=SLOW)
    page.get_by_role("button", name="Parameters", exact=True).click()
    sheet = page.get_by_role("dialog")
    sheet.get_by_role("combobox", name="Preset").select_option("The same every time")
    sheet.get_by_role("textbox", name="System prompt").fill("You write short Python.")
    sheet.get_by_role("textbox", name="Most tokens").fill("30")
    sheet.get_by_role("button", name="Close").click()
    page.get_by_role("button", name=re.compile("^A stack as a class")).click()
    expect(page).to_have_title(re.compile("^Complete"), timeout=SLOW)
    chat = page.evaluate("path => fetch(path).then(r => r.json())", f"/api/conversations/{page.url.rsplit('/', 1)[1]}")
    asked, answer = chat["messages"]
    stored = answer["generation"]
    assert asked["content"].startswith("Write a Python class Stack")
    assert stored["system_prompt"] == "You write short Python."
    params = stored["params"]
    assert (params["temperature"], params["seed"], params["max_tokens"]) == (0, 1, 30)


def test_deleting_a_chat_stops_its_running_answer(synthetic: Product, page: Page):
    page.add_init_script(unlimited(100_000))
    page.goto(synthetic.url)
    expect(page.get_by_text("Connected")).to_be_visible(timeout=SLOW)
    ask(page, "A long one")
    expect(page).to_have_title(re.compile("^Streaming"), timeout=SLOW)
    path = f"/api/conversations/{page.url.rsplit('/', 1)[1]}"
    read = "path => fetch(path).then(r => r.json())"
    generation = page.evaluate(read, path)["messages"][-1]["generation"]["id"]
    page.get_by_role("button", name="Chats", exact=True).click()
    page.get_by_role("button", name="More for A long one").click()
    page.get_by_role("button", name="Delete", exact=True).click()
    expect(page.get_by_role("button", name="Undo")).to_be_visible()
    page.goto(synthetic.url)  # leaving does what could still be undone
    expect(page.get_by_text("Connected")).to_be_visible(timeout=SLOW)
    page.wait_for_function(
        "path => fetch(path).then(r => r.json()).then(one => one.state === 'stopped')",
        arg=f"/api/generations/{generation}",
        timeout=SLOW,
    )
    assert page.evaluate("path => fetch(path).then(r => r.status)", path) == 404


def test_a_tab_that_slept_takes_a_fresh_connection_and_misses_nothing(synthetic: Product, page: Page):
    """A phone puts the tab to sleep; its connection dies without a sign, and the answer goes on meanwhile."""
    page.add_init_script(unlimited(600))
    page.add_init_script(
        "window.slept = 0; const now = performance.now.bind(performance); performance.now = () => now() + window.slept;"
        "window.sleep = on => { Object.defineProperty(document, 'hidden', {get: () => on, configurable: true});"
        "  if (!on) window.slept += 60_000; document.dispatchEvent(new Event('visibilitychange')); };"
    )
    sockets: list[dict] = []

    def serve(socket: WebSocketRoute) -> None:
        one = {"dead": False}
        sockets.append(one)
        server = socket.connect_to_server()
        server.on_message(lambda text: one["dead"] or socket.send(text))
        socket.on_message(lambda text: one["dead"] or server.send(text))

    page.route_web_socket(re.compile("/ws/"), serve)
    page.goto(synthetic.url)
    expect(page.get_by_text("Connected")).to_be_visible(timeout=SLOW)
    ask(page, "Add two numbers")
    expect(page).to_have_title(re.compile("^Streaming"), timeout=SLOW)
    page.evaluate("sleep(true)")
    sockets[0]["dead"] = True
    page.wait_for_timeout(1500)
    page.evaluate("sleep(false)")
    expect(page).to_have_title(re.compile("^Complete"), timeout=SLOW)
    assert len(sockets) == 2
    chat = page.evaluate("path => fetch(path).then(r => r.json())", f"/api/conversations/{page.url.rsplit('/', 1)[1]}")
    text = chat["messages"][-1]["generation"]["text"]
    assert is_prefix(text)
    body = page.locator(".ans .body")
    live = body.inner_html()
    page.reload()
    expect(page.locator(".ans .ticket")).to_contain_text("600 tokens", timeout=SLOW)
    assert body.inner_html() == live
