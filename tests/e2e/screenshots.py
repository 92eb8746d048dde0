"""Every state of the playground as a picture, to be looked at: desktop, narrow desktop and phone, dark and light, English and French.

    python -m tests.e2e.screenshots FOLDER [--only desktop-dark-en,phone-light-fr]
    python -m tests.e2e.screenshots docs/images --docs

The page is the real one; what the engine says is scripted at the socket, so every state stands still. The numbers are made up.
With --docs nothing is scripted: the pictures of the documentation, of the default model on this machine.
"""

import argparse
import io
import json
import re
from collections.abc import Callable, Iterator
from pathlib import Path

from PIL import Image
from playwright.sync_api import Browser, Page, WebSocketRoute, sync_playwright

from tests.benchmarks.browser_cost import TITLED
from tests.e2e.conftest import SYNTHETIC, Product, chromium

WINDOWS = {"desktop": (1440, 900), "narrow": (1024, 768), "phone": (390, 844)}
CARD = {"device": "H200", "gpus": 1, "precision": "float16", "backend": "monokernel", "bytes_per_token": 4_443_000_000}
CARD |= {"bound_tokens_per_s": 1015.0, "datasheet_bytes_per_s": 4.8e12, "measured_bytes_per_s": 4.51e12, "title": "Laneformer 2B"}
CARD |= {"context_tokens": 4096, "ready": True, "engines": 1}
ANSWER = '''Breadth-first search no longer works once steps differ in cost, so this is **Dijkstra** with a heap:

- the heap may hold old, dearer entries; they are skipped;
- the path is rebuilt from `came_from`.

```python shortest_path.py
"""Cheapest path on a grid."""
from heapq import heappop, heappush

Cell = tuple[int, int]


def neighbours(cell: Cell, grid: list[str]) -> list[tuple[Cell, int]]:
    """Cells beside `cell`, each with the cost of the step."""
    row, column = cell
    found = []
    for r, c in ((row - 1, column), (row + 1, column), (row, column - 1), (row, column + 1)):
        if 0 <= r < len(grid) and 0 <= c < len(grid[r]) and grid[r][c] != "#":
            found.append(((r, c), int(grid[r][c])))
    return found


def shortest_path(grid: list[str], start: Cell, goal: Cell) -> list[Cell]:
    """The cells from `start` to `goal`, or an empty list."""
    heap = [(0, start)]
    came_from: dict[Cell, Cell | None] = {start: None}
    costs = {start: 0}
    while heap:
        cost, cell = heappop(heap)
        if cell == goal:
            break
        for other, step in neighbours(cell, grid):
            if cost + step < costs.get(other, 10**9):
                costs[other] = cost + step
                came_from[other] = cell
                heappush(heap, (cost + step, other))
    path = [goal] if goal in came_from else []
    while path and came_from[path[-1]] is not None:
        path.append(came_from[path[-1]])
    return path[::-1]
```

It takes about `n log n` steps for `n` cells.
'''
USAGE = {"prompt_tokens": 412, "completion_tokens": 703}


def run(characters: int | None = None) -> Iterator[dict]:
    """The answer as the engine writes it: 4 characters a token, 950 tokens/s with a little noise."""
    yield {"type": "started", "prompt_tokens": 412, "queue_ms": 4}
    text, elapsed = ANSWER[:characters], 21.0
    for at in range(0, len(text), 40):
        yield {"type": "delta", "text": text[at : at + 40], "tokens": 10, "elapsed_ms": elapsed}
        elapsed += 10 * 1000 / (950 + at % 7 - at % 13)


def done(reason: str) -> dict:
    timings = {"queue_ms": 4, "ttft_ms": 21, "total_ms": 664, "decode_tokens_per_s": 951}
    return {"type": "done", "finish_reason": reason, "usage": USAGE, "timings": timings}


STATES: dict[str, Callable[[], list[dict]]] = {
    "queued": lambda: [{"type": "queued", "position": 3}],
    "loading": lambda: [{"type": "loading", "fraction": 0.62, "detail": "Reading Laneformer 2B, 2.8 of 4.6 GB."}],
    "prefill": lambda: [{"type": "started", "prompt_tokens": 2048, "queue_ms": 4}, {"type": "prefill", "done": 1536, "total": 2048}],
    "streaming": lambda: list(run(1300)),
    "finished": lambda: [*run(), done("stop")],
    "stopped": lambda: [*run(900), done("cancelled")],
    "interrupted": lambda: [*run(700), {"type": "error", "code": "engine_stopped", "message": "The engine process went away."}],
    "failed": lambda: [*run(500), {"type": "error", "code": "invalid_numbers", "message": "NaN in the logits."}],
    "model-error": lambda: [{"type": "error", "code": "model_error", "message": "model.safetensors: no tensor 'norm.weight'."}],
    "reconnecting": lambda: list(run(1000)),
    "offline": lambda: list(run(1000)),
}
DIALOGS = {
    "parameters": "Parameters|Paramètres",
    "gallery": "Gallery|Exemples",
    "keyboard": "Help|Aide",
    "find": "Find|Chercher",
    "measured": "How this is measured|Comment c'est mesuré",
}

FILES = [
    {"name": "shortest_path.py", "mimeType": "text/x-python", "buffer": ANSWER[ANSWER.index('"""') : ANSWER.rindex("```")].encode()},
    {"name": "measurements-of-the-second-night.csv", "mimeType": "text/csv", "buffer": b"night,value\n" * 2000},
]
REFUSED = [
    {"name": "grid.png", "mimeType": "image/png", "buffer": b"\x89PNG"},
    {"name": "big.log", "mimeType": "text/plain", "buffer": b"x" * 6_200_000},
]
DRAG = """() => { const data = new DataTransfer(); data.items.add(new File(['x'], 'x.txt'));
  document.querySelector('.composer').dispatchEvent(new DragEvent('dragover', {dataTransfer: data, bubbles: true, cancelable: true})); }"""


def speak(page: Page, frames: list[dict]) -> list[WebSocketRoute]:
    """Answer the page's request with `frames`; the sockets that it opens."""
    sockets: list[WebSocketRoute] = []

    def serve(socket: WebSocketRoute) -> None:
        if sockets:
            return socket.close()  # a page that has lost its connection stays without
        sockets.append(socket)

        def on_message(text: str) -> None:
            request = json.loads(text)
            if request["type"] != "generate":
                return
            ids = {"generation_id": "g", "conversation_id": "c", "user_message_id": "u", "assistant_message_id": "a"}
            socket.send(json.dumps({"type": "accepted", "request_id": request["request_id"]} | ids))
            for number, frame in enumerate(frames):
                event = {} if frame["type"] in ("queued", "loading") else {"event_id": f"{number + 1}-0"}
                socket.send(json.dumps({"generation_id": "g"} | event | frame))

        socket.on_message(on_message)

    page.route_web_socket(re.compile("/ws/"), serve)
    return sockets


def with_card(page: Page) -> None:
    """Serve the page as if an H200 ran the model."""

    def serve(route) -> None:
        response = route.fetch()
        body = response.text()
        boot = re.search(r'(<script[^>]* id="boot"[^>]*>)(.*?)(</script>)', body, re.DOTALL)
        data = json.loads(boot[2])
        data["models"] = [data["models"][0] | CARD]
        route.fulfill(response=response, body=body[: boot.start(2)] + json.dumps(data) + body[boot.end(2) :])

    page.route(re.compile(r"^http://[^/]+/(race)?$"), serve)


def pictures(browser: Browser, url: str, folder: Path, window: str, theme: str, language: str) -> None:
    width, height = WINDOWS[window]

    def fresh(frames: list[dict]) -> tuple[Page, list[WebSocketRoute]]:
        context = browser.new_context(viewport={"width": width, "height": height}, color_scheme=theme, device_scale_factor=1)
        context.add_init_script(f"localStorage.setItem('language', '{language}'); localStorage.setItem('theme', '{theme}')")
        page = context.new_page()
        page.set_default_timeout(20_000)
        sockets = speak(page, frames)
        with_card(page)
        page.goto(url)
        page.locator('.light[data-link="connected"]').wait_for()
        return page, sockets

    def keep(page: Page, name: str) -> None:
        page.wait_for_timeout(400)
        page.screenshot(path=folder / f"{window}-{theme}-{language}-{name}.png")

    for name, frames in STATES.items():
        page, sockets = fresh(frames())
        page.fill("#message", "Cheapest path on a grid of costs, in Python")
        page.keyboard.press("Enter")
        page.wait_for_timeout(600)
        if name == "reconnecting":
            sockets[0].close()
            page.wait_for_timeout(1200)
        elif name == "offline":
            page.context.set_offline(True)
        keep(page, name)
        if window == "phone" and name == "finished":
            for view in ("Chat", "Output|Sortie"):
                page.get_by_role("tab", name=re.compile(f"^({view})")).click()
                keep(page, f"{name}-{view.split('|')[0].lower()}")
        page.context.close()
    page, _ = fresh([])
    page.set_input_files(".composer input", FILES)
    page.fill("#message", "Why does it skip the last cell?" if language == "en" else "Pourquoi saute-t-il la dernière case ?")
    keep(page, "files")
    page.evaluate(DRAG)
    keep(page, "files-dragged")
    page.locator(".composer").dispatch_event("dragleave")
    page.set_input_files(".composer input", REFUSED)
    keep(page, "files-refused")
    page.keyboard.press("Enter")
    if window == "phone":
        page.locator(".views [role=tab]").first.click()
    keep(page, "files-sent")
    page.context.close()
    page, _ = fresh([])
    keep(page, "empty")
    for name, words in DIALOGS.items():
        opener = page.get_by_role("button", name=re.compile(f"^({words})")).locator("visible=true")
        if window == "phone" and opener.count() == 0:
            page.locator(".top .menu").click()  # there it is a line of the menu
        opener.first.click()
        keep(page, name)
        page.keyboard.press("Escape")
    page.goto(f"{url}race")
    keep(page, "race")
    page.context.close()


def documentation(browser: Browser, url: str, folder: Path) -> None:
    """A finished answer (dark, light, phone) and a race against a paced replay, as this machine runs them."""
    greedy = json.dumps({"temperature": 0, "seed": 1})

    def fresh(theme: str, width: int, height: int, path: str = "") -> Page:
        context = browser.new_context(viewport={"width": width, "height": height}, color_scheme=theme)
        context.add_init_script(f"localStorage.setItem('settings', '{greedy}')")
        page = context.new_page()
        page.goto(url + path)
        page.locator('.light[data-link="connected"]').wait_for()
        return page

    def keep(page: Page, name: str) -> None:
        page.wait_for_timeout(500)
        Image.open(io.BytesIO(page.screenshot())).convert("RGB").save(folder / f"{name}.webp", quality=90, method=6)
        page.context.close()

    for name, theme, size in (("dark", "dark", (1440, 810)), ("light", "light", (1440, 810)), ("phone", "dark", WINDOWS["phone"])):
        page = fresh(theme, *size)
        page.get_by_role("button", name=re.compile("^A stack as a class")).click()
        page.evaluate(TITLED, "Complete")
        page.locator(".wb-tab").first.click()
        page.locator(".wb-code").evaluate("e => (e.scrollTop = 0)")
        keep(page, f"playground-{name}")
    page = fresh("dark", 1440, 810, "race")
    page.get_by_role("button", name="Start").click()
    page.locator(".lane.a .s-complete").wait_for()
    page.locator(".lane.b .s-complete").wait_for()
    keep(page, "race")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--only", default="", help="some of WINDOW-THEME-LANGUAGE, comma-separated")
    parser.add_argument("--docs", action="store_true", help="the pictures of the documentation instead")
    args = parser.parse_args()
    args.folder.mkdir(parents=True, exist_ok=True)
    product = Product(**({} if args.docs else {"ENGINE_BACKEND": SYNTHETIC})).start()
    try:
        with sync_playwright() as playwright:
            browser = playwright.chromium.launch(executable_path=chromium(), args=["--no-sandbox", "--disable-gpu"])
            if args.docs:
                return documentation(browser, product.url, args.folder)
            for window in WINDOWS:
                for theme in ("dark", "light"):
                    for language in ("en", "fr"):
                        if not args.only or f"{window}-{theme}-{language}" in args.only.split(","):
                            pictures(browser, product.url, args.folder, window, theme, language)
            browser.close()
    finally:
        product.remove()
    print(f"{len(list(args.folder.glob('*.png')))} pictures in {args.folder}")


if __name__ == "__main__":
    main()
