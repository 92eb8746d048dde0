"""What the way from engine to browser costs: the synthetic backend at 5,000 tokens/s for 10 s through real processes.

    python -m tests.benchmarks.path_cost [--rate 5000] [--seconds 10] [--browser]

Without --browser a WebSocket client stands at the end: every token in order, added latency of each frame (from the engine's time of its
last token to its arrival), CPU share of each process. With --browser the page: frames received, figure shown, long tasks.
"""

import argparse
import json
import re
import statistics
import time

import psutil

from tests.e2e.conftest import SYNTHETIC, Product, Socket, chromium, is_prefix, text_of, unlimited

NAMES = {
    "valkey": "Redis",
    "daphne": "Daphne",
    "engine_worker": "Celery worker",
    "spawn_main": "engine process",
    "supervisor": "supervisor",
}


class CpuShares:
    """Share of one core that each process of the product used inside the block."""

    def __init__(self, product: Product):
        self._processes = {self._name(p): p for p in product.processes() if self._name(p)}

    def __enter__(self) -> "CpuShares":
        self._before, self._started = self._seconds(), time.monotonic()
        return self

    def __exit__(self, *_) -> None:
        passed, after = time.monotonic() - self._started, self._seconds()
        self.shares = {name: round((after[name] - self._before[name]) / passed, 3) for name in after}

    def _seconds(self) -> dict[str, float]:
        return {name: sum(p.cpu_times()[:2]) for name, p in self._processes.items()}

    @staticmethod
    def _name(process: psutil.Process) -> str | None:
        command = " ".join(process.cmdline())
        return next((name for word, name in NAMES.items() if word in command), None)


def run_start_ns(product: Product) -> int:
    """When the engine's last run began, on the machine's monotonic clock; the synthetic backend prints it."""
    log = (product.folder / "logs" / "worker.log").read_text()
    return int(re.findall(r"synthetic run started at (\d+) ns", log)[-1])


def measure_socket(product: Product, rate: float, tokens: int) -> dict:
    with product.socket(product.visit()) as client:
        client.generate("Warm up", max_tokens=1000)
        client.to_end()
        client.log.clear()
        with CpuShares(product) as cpu:
            client.generate("Go", max_tokens=tokens)
            frames, arrivals = receive_all(client)
    deltas = [(f, at) for f, at in zip(frames, arrivals, strict=True) if f["type"] == "delta"]
    first, _ = deltas[0]
    received_ns = run_start_ns(product) + first["tokens"] / rate * 1e9 - first["elapsed_ms"] * 1e6
    added_ms = sorted((at - received_ns) / 1e6 - f["elapsed_ms"] for f, at in deltas)
    shown = (sum(f["tokens"] for f, _ in deltas) - first["tokens"]) / (deltas[-1][1] - deltas[0][1]) * 1e9
    return {
        "tokens": sum(f["tokens"] for f, _ in deltas),
        "in order, nothing lost or repeated": is_prefix(text_of(frames)),
        "frames": len(deltas),
        "engine's rate": round(frames[-1]["timings"]["decode_tokens_per_s"], 1),
        "rate of arrival": round(shown, 1),
        "added latency ms": {
            "p50": round(statistics.median(added_ms), 2),
            "p99": round(added_ms[int(len(added_ms) * 0.99)], 2),
            "max": round(added_ms[-1], 2),
        },
        "CPU share of one core": cpu.shares,
    }


def receive_all(client: Socket) -> tuple[list[dict], list[int]]:
    frames, arrivals = [], []
    while not frames or frames[-1]["type"] not in ("done", "error"):
        frames.append(client.receive())
        arrivals.append(time.monotonic_ns())
    return frames, arrivals


WATCH = """
window.longTasks = []; window.figures = [];
const observer = new PerformanceObserver(list => list.getEntries().forEach(e => window.longTasks.push(Math.round(e.duration))));
observer.observe({entryTypes: ['longtask']});
setInterval(() => {
  if (!document.title.startsWith('Streaming')) return;
  const figure = document.querySelector('.meter .fig');
  if (figure) window.figures.push(figure.textContent);
}, 100);
"""


def measure_browser(product: Product, tokens: int) -> dict:
    from playwright.sync_api import expect, sync_playwright

    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=chromium(), args=["--no-sandbox", "--disable-gpu"])
        page = browser.new_page()
        page.add_init_script(WATCH)
        page.add_init_script(unlimited(tokens))  # the page's own limit is lower
        received: list[dict] = []
        page.on("websocket", lambda ws: ws.on("framereceived", lambda payload: received.append(json.loads(payload))))
        page.goto(product.url)
        page.wait_for_timeout(2000)
        page.get_by_role("textbox", name="Message").fill("Go")
        page.evaluate("window.longTasks.length = 0")
        with CpuShares(product) as cpu:
            page.get_by_role("button", name=re.compile("^Send")).click()
            expect(page).to_have_title(re.compile("^(Complete|Stopped)"), timeout=300_000)
        page.wait_for_timeout(500)
        long_tasks, figures = page.evaluate("[window.longTasks, window.figures]")
        final = page.locator(".meter .fig").inner_text()
        browser.close()
    deltas = [f for f in received if f["type"] == "delta"]
    done = next(f for f in received if f["type"] == "done")
    live = [float(m[0]) for text in figures if (m := re.findall(r"\d+", re.sub(r"[\s,\u202f\u2009]", "", text)))]
    return {
        "tokens": sum(f["tokens"] for f in deltas),
        "in order, nothing lost or repeated": is_prefix("".join(f["text"] for f in deltas)),
        "frames": len(deltas),
        "engine's rate": round(done["timings"]["decode_tokens_per_s"], 1),
        "live figure, median": statistics.median(live) if live else None,
        "final figure": final,
        "long tasks over 50 ms": long_tasks,
        "CPU share of one core": cpu.shares,
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rate", type=float, default=5000, help="tokens/s")
    parser.add_argument("--seconds", type=float, default=10)
    parser.add_argument("--browser", action="store_true")
    args = parser.parse_args()
    tokens = int(args.rate * args.seconds)
    product = Product(ENGINE_BACKEND=SYNTHETIC, SYNTHETIC_TOKENS_PER_S=str(args.rate)).start()
    try:
        result = measure_browser(product, tokens) if args.browser else measure_socket(product, args.rate, tokens)
    finally:
        product.remove()
    print(json.dumps(result, indent=1, ensure_ascii=False))


if __name__ == "__main__":
    main()
