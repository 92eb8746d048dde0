"""What a person gets of the engine's speed: a model through all processes of the product, on this machine's GPU or CPU.

    python -m tests.benchmarks.whole_product MODEL [--dtype float16] [--pool 1x1|cpu] [--prompt-tokens 128] [--output-tokens 512] [--runs 5]

Prints a line of JSON for each part as it is measured: start, answers over the socket (greedy, then with the page's own settings), eight
at once, stop, answers over /v1 as server-sent events, clients that leave, what the pages about the engine say, and idle seconds.
Arrival is the client's clock; decode tokens/s, TTFT and queue are the engine's and worker's own figures in the same answer.
"""

import argparse
import json
import os
import statistics
import time
import traceback
from collections.abc import Callable
from dataclasses import dataclass, field
from datetime import UTC, datetime
from urllib.request import Request, urlopen

from engine.tokenizer import load_tokenizer
from tests.benchmarks.path_cost import CpuShares
from tests.e2e.conftest import ROOT, Product, Socket, manage, rows, wait_for

GREEDY = {"temperature": 0.0}
PAGE = {"temperature": 0.2, "top_p": 0.95, "top_k": 40}  # the page's defaults
AT_ONCE = 8
STOP_AFTER, LEAVE_AFTER = 100, 5  # tokens, chunks
IDLE_SECONDS = 2
WORDS = "write a program that reads a file of words and prints how often each of them is in it".split()

PREPARE = """
from django.contrib.auth import BACKEND_SESSION_KEY, HASH_SESSION_KEY, SESSION_KEY, get_user_model
from django.contrib.sessions.backends.db import SessionStore
from playground.accounts.models import Quota
from playground.api.services import key_create
for kind in ("users", "visitors"):
    Quota.objects.create(applies_to=kind, tokens_per_day=10**9, requests_per_minute=10**6)
user = get_user_model().objects.create_superuser("bench", "", "long enough")
session = SessionStore()
session[SESSION_KEY], session[HASH_SESSION_KEY] = str(user.pk), user.get_session_auth_hash()
session[BACKEND_SESSION_KEY] = "django.contrib.auth.backends.ModelBackend"
session.create()
print(key_create(user=user, name="bench")[1], session.session_key)
"""


@dataclass
class Answer:
    """One answer over the socket: its frames, each with the time at which it arrived (ns)."""

    sent_ns: int
    frames: list[tuple[dict, int]] = field(default_factory=list)

    @property
    def deltas(self) -> list[tuple[dict, int]]:
        return [(frame, at) for frame, at in self.frames if frame["type"] == "delta"]

    @property
    def tokens(self) -> int:
        return sum(frame["tokens"] for frame, _ in self.deltas)

    @property
    def text(self) -> str:
        return "".join(frame["text"] for frame, _ in self.deltas)

    @property
    def end(self) -> dict:
        return self.frames[-1][0]

    @property
    def ended(self) -> bool:
        return bool(self.frames) and self.end["type"] in ("done", "error")

    def at(self, kind: str) -> int:
        return next(at for frame, at in self.frames if frame["type"] == kind)

    def arrival_tokens_per_s(self) -> float:
        (first, began), *_, (_, ended) = self.deltas
        return (self.tokens - first["tokens"]) / (ended - began) * 1e9

    def figures(self) -> dict:
        timings = self.end["timings"]
        behind = [at / 1e6 - frame["elapsed_ms"] for frame, at in self.deltas]
        return {
            "tokens": self.tokens,
            "engine tokens/s": timings["decode_tokens_per_s"],
            "arrival tokens/s": self.arrival_tokens_per_s(),
            "sent to end tokens/s": self.tokens / (self.frames[-1][1] - self.sent_ns) * 1e9,
            "accepted ms": (self.at("accepted") - self.sent_ns) / 1e6,
            "TTFT ms at the client": (self.at("delta") - self.sent_ns) / 1e6,
            "TTFT ms of the engine": timings["ttft_ms"],
            "queue ms": timings["queue_ms"],
            "frames": len(self.deltas),
            "behind the quickest frame, ms, p50": statistics.median(behind) - min(behind),
            "behind the quickest frame, ms, max": max(behind) - min(behind),
        }

    def whole(self, product: Product, cookies: str) -> bool:
        """In order, nothing lost or repeated, and stored as it was sent."""
        numbers = [int(frame["event_id"].split("-")[0]) for frame, _ in self.frames if "event_id" in frame]
        stored = product.get(f"/api/generations/{self.end['generation_id']}", cookies)
        counted = self.tokens == self.end["usage"]["completion_tokens"] == stored["usage"]["completion_tokens"]
        return counted and numbers == sorted(set(numbers)) and self.text == stored["text"]


class Client:
    """A visitor's socket."""

    def __init__(self, product: Product, socket: Socket, cookies: str, prompt: str):
        self.product, self.socket, self.cookies, self.prompt = product, socket, cookies, prompt

    def ask(self, count: int = 1, **params) -> list[Answer]:
        """Ask ``count`` times at once and wait for all ends."""
        return self.collect(*(self.send(f"r{i}", **params) for i in range(count)))

    def send(self, name: str, **params) -> tuple[str, Answer]:
        sent_ns = time.monotonic_ns()
        messages = [{"role": "user", "content": self.prompt}]
        self.socket.send({"type": "generate", "request_id": name, "messages": messages, "params": params})
        return name, Answer(sent_ns)

    def collect(self, *sent: tuple[str, Answer], until: Callable[[Answer], bool] = lambda answer: answer.ended) -> list[Answer]:
        """Read frames until every answer has come that far. Answers keep their order of sending."""
        named = dict(sent)
        of_id = {frame["generation_id"]: answer for answer in named.values() for frame, _ in answer.frames}
        while not all(map(until, named.values())):
            frame, at = self.socket.receive(), time.monotonic_ns()
            if frame["type"] == "accepted":
                of_id[frame["generation_id"]] = named[frame["request_id"]]
            assert frame["type"] != "error", frame
            of_id[frame["generation_id"]].frames.append((frame, at))
        return list(named.values())


def medians(all_figures: list[dict]) -> dict:
    """Median, least and greatest of each figure."""
    found = {}
    for name in all_figures[0]:
        values = [round(figures[name], 2) for figures in all_figures]
        found[name] = (
            values[0] if len(set(values)) == 1 else {"median": round(statistics.median(values), 2), "of": [min(values), max(values)]}
        )
    return found


def measure_answers(client: Client, runs: int, **params) -> dict:
    client.ask(max_tokens=32, **GREEDY)  # warm up
    with CpuShares(client.product) as cpu:
        answers = [client.ask(**params)[0] for _ in range(runs)]
    return {
        **medians([answer.figures() for answer in answers]),
        "whole and in order": [answer.whole(client.product, client.cookies) for answer in answers],
        "CPU share of one core": cpu.shares,
    }


def measure_at_once(client: Client, **params) -> dict:
    answers = client.ask(AT_ONCE, **params)
    ends = sorted(answers, key=lambda answer: answer.at("delta"))
    pauses = [(after.at("delta") - before.deltas[-1][1]) / 1e6 for before, after in zip(ends, ends[1:], strict=False)]
    seconds = (max(answer.frames[-1][1] for answer in answers) - answers[0].sent_ns) / 1e9
    return {
        "engine tokens/s": medians([{"": answer.end["timings"]["decode_tokens_per_s"]} for answer in answers])[""],
        "tokens/s of all, first request to last end": round(sum(answer.tokens for answer in answers) / seconds, 1),
        "last token of one to first of the next, ms": [round(pause, 1) for pause in pauses],
        "TTFT ms of the engine": medians([{"": answer.end["timings"]["ttft_ms"]} for answer in answers])[""],
        "queue ms": [round(answer.end["timings"]["queue_ms"], 1) for answer in ends],
        "whole and in order": [answer.whole(client.product, client.cookies) for answer in answers],
    }


def measure_stop(client: Client, runs: int, **params) -> dict:
    found = []
    for _ in range(runs):
        long = client.send("long", **params | {"max_tokens": 3000})
        client.collect(long, until=lambda answer: answer.tokens >= STOP_AFTER)
        seen, stopped_ns = long[1].tokens, time.monotonic_ns()
        client.socket.send({"type": "stop", "generation_id": long[1].end["generation_id"]})
        client.collect(long)
        ended_ns = long[1].frames[-1][1]
        [after] = client.ask(max_tokens=8, **GREEDY)
        found.append(
            {
                "tokens seen when stop was sent": seen,
                "tokens of the answer": long[1].end["usage"]["completion_tokens"],
                "more after stop": long[1].end["usage"]["completion_tokens"] - seen,
                "stop sent to last token seen, ms": (long[1].deltas[-1][1] - stopped_ns) / 1e6,
                "stop sent to end stored and said, ms": (ended_ns - stopped_ns) / 1e6,
                "TTFT ms of a request right after": (after.at("delta") - after.sent_ns) / 1e6,
                "its TTFT ms of the engine": after.end["timings"]["ttft_ms"],
                "its queue ms": after.end["timings"]["queue_ms"],
                "reason is cancelled": long[1].end["finish_reason"] == "cancelled",
            }
        )
    return medians(found)


class Api:
    """``/v1`` with a key."""

    def __init__(self, product: Product, key: str, model: str, prompt: str):
        self.product, self.key, self.model, self.prompt = product, key, model, prompt

    def open(self, **params):
        body = {"model": self.model, "messages": [{"role": "user", "content": self.prompt}], "stream": True, **params}
        body["stream_options"] = {"include_usage": True}
        headers = {"Authorization": f"Bearer {self.key}", "Content-Type": "application/json"}
        return urlopen(Request(f"{self.product.url}v1/chat/completions", json.dumps(body).encode(), headers), timeout=60)

    def ask(self, **params) -> tuple[str, dict]:
        """The text, and the figures."""
        sent_ns, chunks, last = time.monotonic_ns(), [], {}
        with self.open(**params) as response:
            for line in response:
                at = time.monotonic_ns()
                if line.startswith(b"data: {"):
                    last = json.loads(line[6:])
                    if last["choices"] and (text := last["choices"][0]["delta"].get("content")):
                        chunks.append((text, at))
        text = "".join(chunk for chunk, _ in chunks)
        tokens, seconds = last["usage"]["completion_tokens"], (chunks[-1][1] - chunks[0][1]) / 1e9
        return text, {
            "tokens": tokens,
            "engine tokens/s": last["timings"]["decode_tokens_per_s"],
            "arrival tokens/s": tokens * (1 - len(chunks[0][0]) / len(text)) / seconds,  # by characters
            "TTFT ms at the client": (chunks[0][1] - sent_ns) / 1e6,
            "TTFT ms of the engine": last["timings"]["ttft_ms"],
            "queue ms": last["timings"]["queue_ms"],
            "chunks": len(chunks),
        }

    def leave(self) -> dict:
        """Read a few chunks of a long answer and close the connection."""
        with self.open(max_tokens=3000, temperature=0) as response:
            chunks = first_chunks(response, LEAVE_AFTER)
        left = datetime.now(UTC)
        identifier = json.loads(chunks[-1])["id"].removeprefix("chatcmpl-").replace("-", "")
        sql = "select state, completion_tokens, finished_at from chat_generation where id = ? and finished_at is not null"
        [(state, tokens, finished)] = wait_for(lambda: rows(self.product, sql, identifier), what="the end of the answer")
        after = datetime.fromisoformat(finished).replace(tzinfo=UTC) - left
        return {
            "state is stopped": state == "stopped",
            "tokens made of 3,000": tokens,
            "end stored after, ms": after.total_seconds() * 1000,
        }


def first_chunks(response, count: int) -> list[bytes]:
    """The JSON of the first ``count`` chunks with text."""
    found = []
    while len(found) < count:
        line = response.readline()
        if line.startswith(b"data: {") and json.loads(line[6:])["choices"][0]["delta"].get("content"):
            found.append(line[6:])
    return found


def measure_api(api: Api, runs: int, socket_text: str, **params) -> dict:
    api.ask(max_tokens=64)  # warm up
    with CpuShares(api.product) as cpu:
        answers = [api.ask(**params) for _ in range(runs)]
    return {
        **medians([figures for _, figures in answers]),
        "text equals the socket's": [text == socket_text for text, _ in answers],
        "CPU share of one core": cpu.shares,
    }


def pages(product: Product, session: str) -> dict:
    """What the product says about its engine and its speed."""
    [card] = product.get("/api/models")
    cookies = f"sessionid={session}"
    fields = ("requests", "completion_tokens", "rate", "ttft_ms", "queue_ms", "read_bound")
    summary = product.get("/api/stats/summary?range=24h", cookies)
    with urlopen(f"{product.url}metrics", timeout=20) as response:
        gauges = [line for line in response.read().decode().splitlines() if "gpu_memory" in line or "engine_up" in line]
    return {
        "card": card,
        "workers": product.get("/api/stats/workers", cookies)["engines"],
        "summary": {name: summary[name] for name in fields if name in summary},
        "engines": product.get("/api/stats/engines?range=24h", cookies),
        "metrics": [line for line in gauges if not line.startswith("#")],
    }


def prompt_of(model: str, tokens: int) -> str:
    """A question of at least so many tokens in the model's chat template."""
    tokenizer, text = load_tokenizer(model), "Please"
    for i in range(10_000):
        if tokenizer.count([{"role": "user", "content": text}]) >= tokens:
            return text
        text += " " + WORDS[i % len(WORDS)]
    raise ValueError(f"no prompt of {tokens:,} tokens")


def show(name: str, part: Callable[..., dict], *args, **params) -> None:
    """A part that fails leaves the others to be measured."""
    try:
        print(json.dumps({name: part(*args, **params)}, ensure_ascii=False), flush=True)
    except Exception:
        print(f"{name} failed:\n{traceback.format_exc()}", flush=True)


def measure(product: Product, args: argparse.Namespace) -> None:
    key, session = manage(product, "shell", "-v", "0", "-c", PREPARE).split()
    prompt, cookies = prompt_of(args.model, args.prompt_tokens), product.visit()
    greedy = {"max_tokens": args.output_tokens, **GREEDY}
    with product.socket(cookies) as socket:
        client = Client(product, socket, cookies, prompt)
        text = client.ask(**greedy)[0].text
        show("socket, greedy", measure_answers, client, args.runs, **greedy)
        show("socket, as the page asks", measure_answers, client, args.runs, max_tokens=args.output_tokens, **PAGE)
        show(f"{AT_ONCE} at once", measure_at_once, client, **greedy)
        show("stop", measure_stop, client, args.runs, **greedy)
    api = Api(product, key, args.model, prompt)
    show("/v1, greedy", measure_api, api, args.runs, text, **greedy)
    show("clients that leave", lambda: medians([api.leave() for _ in range(args.runs)]))
    show("pages", pages, product, session)
    show("idle", idle, product)


def idle(product: Product) -> dict:
    with CpuShares(product) as cpu:
        time.sleep(IDLE_SECONDS)
    return {"CPU share of one core": cpu.shares}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("model")
    parser.add_argument("--dtype", default="auto")
    parser.add_argument("--pool", default="", help="default: one engine on each GPU")
    parser.add_argument("--backend", default="auto")
    parser.add_argument("--prompt-tokens", type=int, default=128)
    parser.add_argument("--output-tokens", type=int, default=512)
    parser.add_argument("--runs", type=int, default=5)
    args = parser.parse_args()
    path = os.pathsep.join([str(ROOT), *filter(None, [os.environ.get("PYTHONPATH")])])
    settings = {"MODELS": args.model, "ENGINE_DTYPE": args.dtype, "ENGINE_POOL": args.pool, "ENGINE_BACKEND": args.backend}
    started = time.monotonic()
    product = Product(PYTHONPATH=path, **settings)
    try:
        product.start()
        show("start", lambda: {"seconds to the printed URL": round(time.monotonic() - started, 1)})
        measure(product, args)
    except BaseException:
        print(product.output.read_text(), product.logs(), flush=True)
        raise
    finally:
        product.remove()


if __name__ == "__main__":
    main()
