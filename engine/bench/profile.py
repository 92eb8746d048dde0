"""Where a token's time goes: work and wait of every phase, from the processors' own clocks.

The portable kernel waits at the end of a phase, the fast path at its beginning (for its input, and until that is staged).
"""

from dataclasses import asdict, dataclass

import torch

from engine.kernel.backend import MonokernelBackend
from engine.kernel.portable.path import PortablePath
from engine.kernel.ranks import MultiGpuBackend
from engine.request import SamplingParams

PHASES = ("norm, QKV", "attention", "output projection", "norm, gate and up", "down projection")
TOKENS = 8
TRACE = 4096  # barriers


@dataclass(frozen=True)
class PhaseTime:
    """Per token, all layers together. ``work_us``: mean over the processors; ``slowest_us``: the slowest processor in each layer;
    ``wait_us``: mean wait for others. ``bytes``: weights that the phase reads."""

    name: str
    count: int
    work_us: float
    slowest_us: float
    wait_us: float
    bytes: int

    def to_dict(self) -> dict:
        return asdict(self)


def profile_decode(backend: MonokernelBackend | MultiGpuBackend, prompt_tokens: int) -> list[PhaseTime]:
    """Phases of the last full token of a short generation after ``prompt_tokens`` tokens, on the first GPU.

    The backend keeps the traced kernel, which this compiles.
    """
    backend.trace(TRACE)
    prompt = [0] * prompt_tokens
    for _ in range(2):
        run = backend.start(prompt, SamplingParams(ignore_eos=True), frozenset(), TOKENS)
        times: list[int] = []
        while run.finish_reason is None:
            times += [token.time_ns for token in run.poll(1.0)]
        run.close()
    token_ns = (times[-1] - times[0]) / (TOKENS - 1)
    portable = isinstance(backend.path, PortablePath)
    return _phases(backend.path, prompt_tokens, token_ns) if portable else _fast_phases(backend.path, token_ns)


def _fast_phases(path, token_ns: float) -> list[PhaseTime]:
    """Phases of the fast path: its trace holds the last token's clocks (begin, others ready, input staged, end) of every step.

    A group's lanes alternate, so that steps of the two kinds of layers have an order each."""
    plan, unit = path.plan, path.plan.boxes * 8192
    order = ("norm, QKV", "norm, gate and up", "attention", "down projection", "output projection")  # of two lanes, half a layer apart
    halves = plan.halves if plan.whole_layers < plan.layers else 0
    names = list(PHASES) * plan.whole_layers + [f"{name}, lanes" for name in order] * halves + ["head", "choice"]
    sizes = {"head": plan.units_head * unit}
    for name, units in zip(PHASES, ("units_qkv", None, "units_o", "units_w13", "units_w2"), strict=True):
        if units:
            sizes[name] = plan.whole_layers * getattr(plan.common, units) * unit
            sizes[f"{name}, lanes"] = (halves - 1) * plan.groups * getattr(plan.lane, units) * unit
    steps = [*range(5 * (plan.whole_layers + halves)), plan.steps - 2, plan.steps - 1]
    trace = path.trace.double().cpu()[:, steps].transpose(0, 1)
    clocks_per_us = (trace[-1, :, 3] - trace[0, :, 0]).mean().item() / token_ns * 1000
    work, wait = (trace[:, :, 3] - trace[:, :, 2]) / clocks_per_us, (trace[:, :, 2] - trace[:, :, 0]) / clocks_per_us
    return [_phase(name, names, work, wait, sizes.get(name, 0)) for name in dict.fromkeys(names)]


def _phases(path: PortablePath, prompt_tokens: int, token_ns: float) -> list[PhaseTime]:
    """``token_ns``: host time of a token, which gives the processors' clock rate."""
    shape, trace = path.shape, path.buffers.trace.double().cpu()
    chunks = -(-(prompt_tokens - 1) // shape.rows)
    per_token = len(PHASES) * shape.layers + 2
    first = 8 * shape.layers * chunks + per_token * (TOKENS - 1)
    barriers = (first + torch.arange(per_token)) % TRACE
    before = (barriers - 1) % TRACE
    work = trace[barriers, :, 0] - trace[before, :, 1]
    wait = trace[barriers, :, 1] - trace[barriers, :, 0]
    clocks_per_us = (work + wait).sum(0).mean().item() / token_ns * 1000
    work, wait = work / clocks_per_us, wait / clocks_per_us
    names = list(PHASES) * shape.layers + ["final norm", "head"]
    return [_phase(name, names, work, wait, _bytes(path, name)) for name in dict.fromkeys(names)]


def _phase(name: str, names: list[str], work: torch.Tensor, wait: torch.Tensor, size: int) -> PhaseTime:
    rows = [i for i, other in enumerate(names) if other == name]
    slowest = work[rows].max(1).values.sum().item()
    return PhaseTime(name, len(rows), work[rows].mean(1).sum().item(), slowest, wait[rows].mean(1).sum().item(), size)


def _bytes(path: PortablePath, name: str) -> int:
    shape = path.shape
    matrices = dict(zip(PHASES, (shape.qkv, None, shape.o, shape.w13, shape.w2), strict=True))
    item = path.buffers.embedding.element_size()
    if name == "head":
        return shape.head_lanes * shape.lm.n * shape.lm.k * item
    matrix = matrices.get(name)
    return 0 if matrix is None else shape.layers * shape.lanes * matrix.n * matrix.k * item
