"""What the way from engine to an API client costs: 10,000 tokens at 3,000 tokens/s from the synthetic backend to one SSE client.

    python -m tests.benchmarks.sse_cost [--rate 3000] [--tokens 10000] [--runs 3]

Added time: from the engine's start of the answer to the client's last token, against tokens / rate.
"""

import argparse
import json
import time
from urllib.request import Request, urlopen

from tests.benchmarks.path_cost import CpuShares, run_start_ns
from tests.e2e.conftest import SYNTHETIC, Product, is_prefix, manage
from tests.e2e.test_openai_client import MODEL, new_key

ALLOW = "from playground.accounts.models import Quota; Quota.objects.create(applies_to='users', tokens_per_day=10**9)"


def measure(product: Product, key: str, rate: float, tokens: int) -> dict:
    body = {"model": MODEL, "messages": [{"role": "user", "content": "Go"}], "max_tokens": tokens, "stream": True}
    body["stream_options"] = {"include_usage": True}
    headers = {"Authorization": f"Bearer {key}", "Content-Type": "application/json"}
    text, chunks, last_ns, usage = [], 0, 0, {}
    sent_ns = time.monotonic_ns()
    with CpuShares(product) as cpu, urlopen(Request(f"{product.url}v1/chat/completions", json.dumps(body).encode(), headers)) as response:
        for line in response:
            if not line.startswith(b"data: {"):
                continue
            chunk = json.loads(line[6:])
            usage = chunk["usage"] or usage
            if chunk["choices"] and chunk["choices"][0]["delta"].get("content"):
                last_ns, chunks = time.monotonic_ns(), chunks + 1
                text.append(chunk["choices"][0]["delta"]["content"])
    started_ns = run_start_ns(product)
    due_s = tokens / rate
    return {
        "tokens": usage["completion_tokens"],
        "in order, nothing lost or repeated": is_prefix("".join(text)),
        "chunks": chunks,
        "engine needs s": round(due_s, 3),
        "client has them after s": round((last_ns - started_ns) / 1e9, 3),
        "added %": round(((last_ns - started_ns) / 1e9 / due_s - 1) * 100, 2),
        "from request to engine ms": round((started_ns - sent_ns) / 1e6, 1),
        "CPU": cpu.shares,
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rate", type=float, default=3000)
    parser.add_argument("--tokens", type=int, default=10_000)
    parser.add_argument("--runs", type=int, default=3)
    args = parser.parse_args()
    product = Product(ENGINE_BACKEND=SYNTHETIC, SYNTHETIC_TOKENS_PER_S=str(args.rate)).start()
    try:
        key = new_key(product, "bench")
        manage(product, "shell", "-c", ALLOW)
        for _ in range(args.runs):
            print(json.dumps(measure(product, key, args.rate, args.tokens)), flush=True)
    finally:
        product.remove()


if __name__ == "__main__":
    main()
