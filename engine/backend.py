"""What every backend (torch, monokernel) offers to the loop. Token ids only; text stays outside."""

from dataclasses import dataclass
from typing import Protocol

from engine.errors import InvalidRequest
from engine.request import SamplingParams


@dataclass(frozen=True)
class EngineInfo:
    """What runs, where, and what bounds it. Bandwidths in bytes/s; None where unknown (CPU)."""

    model: str
    title: str
    architecture: str
    backend: str  # "torch" | "monokernel"
    device: str  # "NVIDIA H200", "CPU, 2 threads"
    gpus: int  # 0 on the CPU
    dtype: str  # "float16", ...
    parameters: int
    context_tokens: int
    vocab_size: int
    bytes_per_token: int  # weight bytes read per decoded token
    datasheet_bytes_per_s: float | None = None
    measured_bytes_per_s: float | None = None
    driver: str | None = None  # the GPU's

    @property
    def bound_tokens_per_s(self) -> float | None:
        """Read bound: measured bandwidth over the weight bytes of a token."""
        return self.measured_bytes_per_s / self.bytes_per_token if self.measured_bytes_per_s else None


@dataclass(frozen=True)
class Token:
    """One generated token. ``time_ns``: time.monotonic_ns() at which the host saw it (or the step ended)."""

    id: int
    time_ns: int
    logprob: float | None = None
    top: tuple[tuple[int, float], ...] = ()


class Run(Protocol):
    """One generation in progress on a backend."""

    finish_reason: str | None  # None while running, then "stop" | "length" | "cancelled"
    prefill_done: int  # prompt tokens processed so far

    def poll(self, timeout_s: float) -> list[Token]:
        """Tokens made since the last poll, in order; [] after ``timeout_s`` without one or once finished.

        Raises EngineError (DeviceError, NumericalError) when the generation failed. The end-of-sequence token itself is
        included in the last list.
        """

    def stop(self) -> None:
        """Ask for the end; honoured within one token. Thread-safe and idempotent."""

    def close(self) -> None:
        """Free what the run holds. Stops it when it still runs."""


class Backend(Protocol):
    """Made as ``Backend(model, *, gpus, dtype, context_tokens, on_progress)``: the fields of EngineConfig, and a function that
    takes Progress. Raises ModelError or DeviceError."""

    info: EngineInfo
    eos_ids: frozenset[int]  # the model's own end-of-sequence ids

    def start(self, prompt_ids: list[int], sampling: SamplingParams, stop_ids: frozenset[int], max_tokens: int) -> Run:
        """Begin a generation. One at a time per backend; ``max_tokens`` already fits the context."""

    def logits(self, ids: list[int]) -> "torch.Tensor":  # noqa: F821
        """[T, V] float32 logits of a prompt, on the CPU, for checks against other implementations."""

    def close(self) -> None: ...


def check_ids(ids: list[int], context_tokens: int, vocab_size: int) -> None:
    """Raises InvalidRequest unless there are 1 to ``context_tokens`` ids, all in the vocabulary."""
    if not 1 <= len(ids) <= context_tokens:
        raise InvalidRequest(f"A prompt must have 1 to {context_tokens:,} tokens; got {len(ids):,}.")
    if not 0 <= min(ids) <= max(ids) < vocab_size:
        raise InvalidRequest(f"Token ids lie between 0 and {vocab_size - 1:,}; got {min(ids)} to {max(ids)}.")
