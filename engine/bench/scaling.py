"""A model of the time of a token on N GPUs, fitted to measured phases; docs/scaling.md explains and dates it.

A layer streams its weights, and its phases follow each other in a chain of waits; neither hides the other fully:

    layer = (stream ** 3 + chain ** 3) ** (1/3)      stream = bytes of the layer / N / bandwidth, chain = 9.75 us + 8 us / N

The two constants and the power come from one-kernel chains without attention on H200 (990, 505, 276 and 185 us for shards of 1, 2, 4
and 8 GPUs, which the formula gives within 0.4 %). What attention, exchange, head and choice of the token add is taken from runs
with these alone switched on. All times in microseconds.
"""

from dataclasses import dataclass
from html import escape
from pathlib import Path

from engine.config import ModelConfig
from engine.errors import ModelError

CHAIN_US, CHAIN_SHARED_US, POWER = 9.75, 8.0, 3
ATTENTION_US = {1: 0.33}  # per layer, one more dependent phase of 1 us; on 2 and 8 GPUs 2.0 to 2.2
ATTENTION_SHARDED_US = 2.1
DELAYED_US, DELAYED_PER_PEER_US = 0.23, 0.04  # per layer: old sums, with one summation of all peers ahead of their use
NEEDED_NOW_US, NEEDED_NOW_PER_PEER_US = 1.4, 1.2  # per layer: both sums needed at once; 1 peer and 7 peers were measured
AGREEMENT_US = 4.0  # per token on several GPUs: final states, candidates
EXTRA_ONE_GPU_US = 7.0  # per token: head input, choice of the token


@dataclass(frozen=True)
class Machine:
    """``bytes_per_us``: of one GPU's pure read. ``latency``: of its waits, in those of an H200."""

    name: str
    bytes_per_us: float
    latency: float = 1.0


H200 = Machine("H200", 4.51e6)
MI300X = Machine("MI300X", 4.82e6, 1.75)  # the read is a published measurement, the latency an assumption


@dataclass(frozen=True)
class Prediction:
    """Microseconds of one token at a short context."""

    gpus: int
    bound: float  # the weights at the machine's read bandwidth
    layers: float
    attention: float
    exchange: float
    head: float

    @property
    def total(self) -> float:
        return self.layers + self.attention + self.exchange + self.head

    @property
    def tokens_per_s(self) -> float:
        return 1e6 / self.total


def predict(config: ModelConfig, gpus: int, machine: Machine = H200, dtype_bytes: int = 2, latency: float | None = None) -> Prediction:
    """``latency``: another factor than the machine's, for a range. Raises ModelError when the model does not divide."""
    config.check_ranks(gpus)
    slow = machine.latency if latency is None else latency
    share = gpus * machine.bytes_per_us
    total_bytes = config.bytes_per_token(dtype_bytes)
    head_bytes = config.vocab_size * config.head_inputs * dtype_bytes
    stream = (total_bytes - head_bytes) / config.n_layers / share
    chain = slow * (CHAIN_US + CHAIN_SHARED_US / gpus)
    layer = (stream**POWER + chain**POWER) ** (1 / POWER)
    now = config.delay if config.n_lanes > 1 else config.n_layers  # layers whose sums are needed at once
    peers, exchange = gpus - 1, 0.0
    if peers:
        delayed = (config.n_layers - now) * (DELAYED_US + DELAYED_PER_PEER_US * peers)
        exchange = slow * (delayed + now * (NEEDED_NOW_US + NEEDED_NOW_PER_PEER_US * (peers - 1)) + AGREEMENT_US)
    attention = config.n_layers * slow * ATTENTION_US.get(gpus, ATTENTION_SHARDED_US)
    head = head_bytes / share + slow * EXTRA_ONE_GPU_US
    return Prediction(gpus, total_bytes / share, config.n_layers * layer, attention, exchange, head)


def _divides(config: ModelConfig, gpus: int) -> bool:
    try:
        config.check_ranks(gpus)
    except ModelError:
        return False
    return True


def write_scaling_plot(config: ModelConfig, machine: Machine, measured: dict[int, float], path: Path) -> None:
    """Tokens/s over the number of GPUs as SVG: read bound, prediction, and what was measured ({GPUs: tokens/s}). Numbers of GPUs over
    which the model does not divide are left out."""
    counts = [n for n in (1, 2, 4, 8) if _divides(config, n)]
    bounds = {n: 1e6 / predict(config, n, machine).bound for n in counts}
    modelled = {n: predict(config, n, machine).tokens_per_s for n in counts}
    top = max(bounds.values())

    def place(gpus: int, value: float) -> str:
        return f"{70 + 520 * (gpus - 1) / 7:.0f},{360 - 310 * value / top:.0f}"

    parts = ['<svg xmlns="http://www.w3.org/2000/svg" width="640" height="430" font-family="sans-serif" font-size="13">']
    parts.append(f'<text x="20" y="24" font-size="15">{escape(config.name)}, batch 1, {escape(machine.name)}: tokens/s over GPUs</text>')
    parts.append('<path d="M70 50V360H600" fill="none" stroke="#888"/>')
    for values, colour, label, y in ((bounds, "#999", "read bound", 390), (modelled, "#4878a8", "predicted", 406)):
        parts.append(f'<polyline points="{" ".join(place(n, v) for n, v in values.items())}" fill="none" stroke="{colour}"/>')
        parts.append(f'<text x="70" y="{y}" fill="{colour}">{label}: {", ".join(f"{n}: {v:,.0f}" for n, v in values.items())}</text>')
    for gpus, value in measured.items():
        x, y = place(gpus, value).split(",")
        parts.append(f'<circle cx="{x}" cy="{y}" r="5" fill="#b04030"/>')
    if measured:
        parts.append(f'<text x="70" y="422" fill="#b04030">measured: {", ".join(f"{n}: {v:,.0f}" for n, v in measured.items())}</text>')
    parts += [f'<text x="{place(n, 0).split(",")[0]}" y="374" text-anchor="middle">{n}</text>' for n in counts]
    path.write_text("\n".join([*parts, "</svg>\n"]))
