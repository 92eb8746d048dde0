"""Decode speed and TTFT of a backend, as docs and reports define them.

Decode tokens/s = (output tokens - 1) / (time of the last token - time of the first), TTFT = request to first token visible,
both on the host's clock, median of several runs after warm-up. End ids are ignored, so every run has the same length.
"""

import random
import statistics
import time
from dataclasses import asdict, dataclass, replace

from engine.backend import Backend
from engine.request import SamplingParams

RUNS = 5
GREEDY = SamplingParams()


@dataclass(frozen=True)
class Speed:
    """Medians and extremes over the runs."""

    prompt_tokens: int
    output_tokens: int
    runs: int
    decode_tokens_per_s: float
    decode_tokens_per_s_min: float
    decode_tokens_per_s_max: float
    ttft_ms: float
    ttft_ms_max: float

    def to_dict(self) -> dict:
        return asdict(self)


def measure(backend: Backend, prompt_tokens: int, output_tokens: int, runs: int = RUNS, sampling: SamplingParams = GREEDY) -> Speed:
    """Generations of the same random prompt, prompt and draws seeded."""
    sampling = replace(sampling, seed=0, ignore_eos=True)
    prompt = random.Random(0).choices(range(backend.info.vocab_size), k=prompt_tokens)
    results = [_one(backend, prompt, output_tokens, sampling) for _ in range(runs + 1)][1:]
    speeds = [speed for speed, _ in results]
    ttfts = [ttft for _, ttft in results]
    return Speed(
        prompt_tokens,
        output_tokens,
        runs,
        statistics.median(speeds),
        min(speeds),
        max(speeds),
        statistics.median(ttfts),
        max(ttfts),
    )


def _one(backend: Backend, prompt: list[int], output_tokens: int, sampling: SamplingParams) -> tuple[float, float]:
    """(decode tokens/s, TTFT in ms)."""
    received = time.monotonic_ns()
    run = backend.start(prompt, sampling, frozenset(), output_tokens)
    try:
        times: list[int] = []
        while run.finish_reason is None:
            times += [token.time_ns for token in run.poll(1.0)]
    finally:
        run.close()
    seconds = max(times[-1] - times[0], 1) / 1e9
    return (len(times) - 1) / seconds, (times[0] - received) / 1e6
