"""What the choice of a token costs: decode speed with several settings, of one engine in one process.

python -m tests.gpu.choice_cost [MODEL [DTYPE]]   (default: random:laneformer-2b float16)
"""

import sys

from engine.bench.measure import GREEDY, measure
from engine.engine import EngineConfig
from engine.request import SamplingParams
from engine.worker import make_backend

SETTINGS = {
    "greedy": GREEDY,
    "temperature 0.8": SamplingParams(temperature=0.8),
    "the page's (0.2, top-k 40, top-p 0.95)": SamplingParams(temperature=0.2, top_k=40, top_p=0.95),
    "temperature 0.8, top-p 0.95": SamplingParams(temperature=0.8, top_p=0.95),
    "temperature 0.8, top-k 200, top-p 0.9": SamplingParams(temperature=0.8, top_k=200, top_p=0.9),
}


def main(model: str = "random:laneformer-2b", dtype: str = "float16") -> None:
    backend = make_backend(EngineConfig(model, dtype=dtype, context_tokens=640), lambda progress: None)
    try:
        print(f"{backend.info.device}, {model}, {dtype}, kernel {backend.path.name}, 128 + 512 tokens", flush=True)
        base = None
        for name, sampling in SETTINGS.items():
            speed = measure(backend, 128, 512, 3, sampling)
            token_us = 1e6 / speed.decode_tokens_per_s
            base = base or token_us
            spread = f"{speed.decode_tokens_per_s_min:.1f} to {speed.decode_tokens_per_s_max:.1f}"
            print(f"{name:40} {speed.decode_tokens_per_s:7.1f} tokens/s ({spread}), {token_us - base:+6.1f} us a token", flush=True)
    finally:
        backend.close()


if __name__ == "__main__":
    main(*sys.argv[1:])
