"""What a fast answer costs the browser: the synthetic backend at 5,000 tokens/s, real processes, the page in Chromium.

    python -m tests.benchmarks.browser_cost [--rate 5000] [--answers 20] [--cases python,markdown,long] [--plot browser.png]

Cases: `python`, 8,000 tokens of one Python file; `markdown`, 8,000 of mixed Markdown; `long`, 10 s of mixed Markdown. For each: every
task of the page's main thread (wall and processor time, from Chromium's trace, with what the longest ones did), how far the screen is
behind the engine (each line of the text is numbered; a line's lag runs from the engine's time of its last token to the end of the frame
that drew it), how long a key press needs to be painted, and the heap after each of `--answers` more answers, each in a new chat.
"""

import argparse
import bisect
import collections
import json
import re
import tempfile
import time
from pathlib import Path

from playwright.sync_api import Browser, Page, sync_playwright

from engine.tokenizer import load_tokenizer
from tests.benchmarks.path_cost import run_start_ns
from tests.e2e.conftest import SYNTHETIC, Product, chromium, manage, unlimited
from tests.fakes import FAKE_INFO

SHORT = 8000  # tokens
ALLOW = (
    "from playground.accounts.models import Quota; "
    "Quota.objects.create(applies_to='visitors', tokens_per_day=10**9, requests_per_minute=10**6)"
)
FUNCTION = '''def step_{n}(value: int, scale: float = 1.5) -> float:
    """Step {n} of a walk."""  # n{m:06d}
    if value > {n}:
        return value * scale + {n}  # n{m1:06d}
    return step_{n}(value + 1, scale)  # n{m2:06d}


'''
SECTION = """## Part {n} n{m:06d}

A paragraph with **strong words**, *quieter ones*, `code_{n}` and [a link](https://example.org/{n}) n{m1:06d}
that goes on over a second line, so that it wraps where the column is narrow. Déjà vu, 数字, 🙂 n{m2:06d}

- First point of {n} n{m3:06d}
  - a point under it, with ~~a mistake~~ n{m4:06d}
- Second point n{m5:06d}

| name | value | note |
|---|---:|---|
| part | {n} | n{m6:06d} |
| next | {n}.5 | **bold** n{m7:06d} |

> Quoted, with `code` n{m8:06d}

```python
def part_{n}(first: int, second: int) -> int:
    return first + second + {n}  # n{m9:06d}
```

"""
WATCH = """
window.painted = []; window.keys = [];
new PerformanceObserver(list => list.getEntries().forEach(e => e.name === 'keydown' && window.keys.push(e.duration)))
  .observe({type: 'event', durationThreshold: 16});
let newest = -1, waiting = false;
const channel = new MessageChannel();
channel.port1.onmessage = () => { waiting = false; window.painted.push([newest, performance.now()]); };
const read = text => {
  for (const found of text.matchAll(/n(\\d{6})/g)) newest = Math.max(newest, Number(found[1]));
};
document.addEventListener('DOMContentLoaded', () => new MutationObserver(list => {
  const before = newest;
  for (const one of list) {
    if (one.type === 'characterData') read(one.target.data);
    for (const node of one.addedNodes) read(node.textContent);
  }
  if (newest > before && !waiting) {
    waiting = true;
    requestAnimationFrame(() => channel.port2.postMessage(null));
  }
}).observe(document, {subtree: true, childList: true, characterData: true}));
window.forget = () => { newest = -1; window.painted.length = window.keys.length = 0; };
"""
TITLED = """words => new Promise(done => {
  const look = () => document.title.startsWith(words) && (watch.disconnect(), done());
  const watch = new MutationObserver(look);
  watch.observe(document.head, {subtree: true, childList: true, characterData: true});
  look();
})"""
CATEGORIES = ["toplevel", "blink", "blink.user_timing", "v8", "devtools.timeline", "disabled-by-default-devtools.timeline"]


def numbered(template: str, per_part: int, parts: int) -> str:
    names = ["m", *(f"m{k}" for k in range(1, per_part))]
    return "".join(template.format(n=n, **{name: n * per_part + k for k, name in enumerate(names)}) for n in range(parts))


def python_text(functions: int = 400) -> str:
    return f"```python steps.py\n{numbered(FUNCTION, 3, functions)}```\n"


def markdown_text(sections: int = 400) -> str:
    return numbered(SECTION, 10, sections)


class Case:
    """A text, and at which token each of its line numbers is complete."""

    def __init__(self, name: str, text: str, tokens: int):
        self.name, self.text, self.tokens = name, text, tokens
        tokenizer = load_tokenizer(FAKE_INFO.model)
        ids = tokenizer.encode(text)
        assert len(ids) >= tokens, f"{name}: {len(ids)} tokens of text, {tokens} wanted"
        stream, length, ends = tokenizer.stream(), 0, []
        for one in ids[:tokens]:
            length += len(stream.push(one))
            ends.append(length)
        self.due = [bisect.bisect_left(ends, found.end()) for found in re.finditer(r"n\d{6}", text) if found.end() <= length]


CASES = {
    "python": lambda rate: Case("python", python_text(), SHORT),
    "markdown": lambda rate: Case("markdown", markdown_text(), SHORT),
    "long": lambda rate: Case("long", markdown_text(), int(rate * 10)),
}


def offset_ns(page: Page) -> float:
    """The machine's monotonic clock minus the page's clock, from the quickest of some exchanges."""
    best = (float("inf"), 0.0)
    for _ in range(50):
        before = time.monotonic_ns()
        inside = page.evaluate("performance.now()")
        after = time.monotonic_ns()
        best = min(best, (after - before, (before + after) / 2 - inside * 1e6))
    return best[1]


def answer(page: Page, typing: str = "") -> None:
    """One answer to its end; `typing` goes into the message box while it streams. No locator searches the page meanwhile."""
    page.focus("#message")
    page.keyboard.insert_text("Go")
    page.evaluate("performance.mark('go')")
    page.keyboard.press("Enter")
    page.evaluate(TITLED, "Streaming")
    page.keyboard.type(typing, delay=30)
    page.evaluate(TITLED, "Complete")
    page.wait_for_timeout(500)


def new_chat(page: Page) -> None:
    page.get_by_role("button", name="New", exact=True).click()
    page.fill("#message", "")
    page.evaluate("forget()")


def lags(case: Case, painted: list[list[float]], offset: float, start_ns: int, rate: float) -> list[float]:
    """ms from the engine's time of each line to the frame that showed it or a later one."""
    out, shown = [], -1
    for newest, at_ms in painted:
        for line in range(shown + 1, min(int(newest), len(case.due) - 1) + 1):
            due_ns = start_ns + (case.due[line] + 1) / rate * 1e9
            out.append((at_ms * 1e6 + offset - due_ns) / 1e6)
        shown = max(shown, int(newest))
    return out


def tasks_of(trace: dict) -> list[dict]:
    """Main-thread tasks since the request, longest processor time first: ms since then, and the time each one's parts took."""
    events = trace["traceEvents"]
    sent = next(e["ts"] for e in events if e["name"] == "go")
    pages = {(e["pid"], e["tid"]) for e in events if e["name"] == "thread_name" and e["args"]["name"] == "CrRendererMain"}
    by_thread = collections.defaultdict(list)
    for e in events:
        if e.get("ph") == "X" and e["ts"] >= sent and (e["pid"], e["tid"]) in pages and "tdur" in e:
            by_thread[e["pid"], e["tid"]].append(e)
    busiest = max(by_thread.values(), key=lambda one: sum(e["tdur"] for e in one if "RunTask" in e["name"]))
    busiest.sort(key=lambda e: (e["ts"], -e["dur"]))
    tasks, stack = [], []
    for e in busiest:
        while stack and e["ts"] >= stack[-1]["ts"] + stack[-1]["dur"]:
            stack.pop()
        if "RunTask" in e["name"] and not stack:
            tasks.append({"at": (e["ts"] - sent) / 1000, "wall": e["dur"] / 1000, "cpu": e["tdur"] / 1000, "parts": collections.Counter()})
        if stack:
            tasks[-1]["parts"][stack[-1]["name"]] -= e["tdur"] / 1000
        if stack or "RunTask" in e["name"]:
            tasks[-1]["parts"][e["name"]] += e["tdur"] / 1000
            stack.append(e)
    return sorted(tasks, key=lambda one: -one["cpu"])


def total(tasks: list[dict]) -> collections.Counter:
    return sum((task["parts"] for task in tasks), collections.Counter())


def longest(task: dict) -> dict[str, float]:
    """When a task was, its processor time, and what most of that went to."""
    parts = {name: round(ms, 1) for name, ms in task["parts"].most_common(5) if ms > 1}
    return {"at": round(task["at"]), "all": round(task["cpu"], 1)} | parts


def percentiles(values: list[float]) -> dict[str, float]:
    ordered = sorted(values)
    if not ordered:
        return {}
    return {"p50": round(ordered[len(ordered) // 2], 1), "p99": round(ordered[int(len(ordered) * 0.99)], 1), "max": round(ordered[-1], 1)}


def heap_mb(page: Page) -> float:
    client = page.context.new_cdp_session(page)
    client.send("HeapProfiler.collectGarbage")
    used = client.send("Runtime.getHeapUsage")["usedSize"]
    client.detach()
    return round(used / 1e6, 2)


def measure(case: Case, browser: Browser, rate: float, answers: int) -> tuple[dict, dict]:
    """The figures to print, and the series to draw."""
    file = Path(tempfile.mkstemp(suffix=".txt")[1])
    file.write_text(case.text)
    product = Product(ENGINE_BACKEND=SYNTHETIC, SYNTHETIC_TOKENS_PER_S=str(rate), SYNTHETIC_TEXT=str(file)).start()
    try:
        manage(product, "shell", "-c", ALLOW)
        page = browser.new_page(viewport={"width": 1440, "height": 900})
        page.add_init_script(WATCH)
        page.add_init_script(unlimited(case.tokens))
        page.goto(product.url)
        page.get_by_text("Connected").wait_for()
        answer(page)  # warm up
        new_chat(page)
        offset = offset_ns(page)
        browser.start_tracing(page=page, categories=CATEGORIES)
        answer(page, typing="the next question, typed while this one is answered")
        tasks = tasks_of(json.loads(browser.stop_tracing()))
        painted, keys = page.evaluate("[painted, keys]")
        lag = lags(case, painted, offset, run_start_ns(product), rate)
        heaps = []
        for _ in range(answers):
            new_chat(page)
            answer(page)
            heaps.append(heap_mb(page))
        page.close()
    finally:
        product.remove()
        file.unlink()
    figures = {
        "tokens": case.tokens,
        "tasks": len(tasks),
        "longest task ms": {"processor": round(tasks[0]["cpu"], 1), "wall": round(max(t["wall"] for t in tasks), 1)},
        "tasks over 50 ms": {"processor": sum(t["cpu"] > 50 for t in tasks), "wall": sum(t["wall"] > 50 for t in tasks)},
        "main thread busy s": round(sum(t["cpu"] for t in tasks) / 1000, 2),
        "most of it s": {name: round(ms / 1000, 2) for name, ms in total(tasks).most_common(8)},
        "longest tasks did ms": [longest(task) for task in tasks[:4]],
        "screen behind engine ms": percentiles(lag),
        "lines seen": f"{len(lag)} of {len(case.due)}",
        "key to paint ms (over 16)": percentiles(keys),
        "heap MB after each answer": heaps,
    }
    return figures, {"cpu": [t["cpu"] for t in tasks], "lag": lag, "due": case.due[: len(lag)], "heap": heaps}


def draw(path: Path, rate: float, series: dict[str, dict]) -> None:
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot

    figure, (tasks, lag, heap) = pyplot.subplots(1, 3, figsize=(13, 3.8), layout="constrained")
    for name, one in series.items():
        tasks.plot(range(1, len(one["cpu"]) + 1), [max(ms, 0.05) for ms in one["cpu"]], label=name)
        lag.plot([token / rate for token in one["due"]], one["lag"], label=name, linewidth=0.8)
        heap.plot(range(1, len(one["heap"]) + 1), one["heap"], label=name, marker=".")
    tasks.axhline(50, color="grey", linestyle="--")
    tasks.set(xscale="log", yscale="log", xlabel="task, longest first", ylabel="processor time, ms", title="Tasks of the main thread")
    lag.axhline(150, color="grey", linestyle="--")
    lag.set(xlabel="engine time, s", ylabel="ms", ylim=(0, None), title=f"Screen behind the engine, {rate:,.0f} tokens/s")
    heap.set(xlabel="answer", ylabel="MB", ylim=(0, None), title="Heap after a collection")
    tasks.legend()
    figure.savefig(path, dpi=110)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rate", type=float, default=5000, help="tokens/s")
    parser.add_argument("--answers", type=int, default=20, help="further answers after which the heap is read")
    parser.add_argument("--cases", default="python,markdown,long", help=f"some of {', '.join(CASES)}")
    parser.add_argument("--plot", type=Path, help="file for a plot")
    args = parser.parse_args()
    series = {}
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=chromium(), args=["--no-sandbox", "--disable-gpu"])
        for name in args.cases.split(","):
            answers = args.answers if name != "long" else 0
            figures, series[name] = measure(CASES[name](args.rate), browser, args.rate, answers)
            print(json.dumps({name: figures}, indent=1, ensure_ascii=False), flush=True)
        browser.close()
    if args.plot:
        draw(args.plot, args.rate, series)


if __name__ == "__main__":
    main()
