"""The backend in plain torch: for CPUs, and for GPUs that the monokernel does not take."""

import ctypes
import math
import os
import sys
import time

import torch
from torch import Tensor

from engine import sampling as sampler
from engine.backend import EngineInfo, Token, check_ids
from engine.config import ModelConfig
from engine.errors import DeviceError, InvalidRequest, NumericalError
from engine.hardware import driver
from engine.loading import load_config, load_weights, pick_dtype
from engine.memory import fit_context, free_bytes
from engine.models import resolve
from engine.request import Progress, SamplingParams
from engine.torch_model import LaneModel, OneLaneModel

PREFILL_ROWS = 512  # tokens between two looks at the stop flag while a prompt is read
SCORE_BYTES = 256 << 20  # attention scores of a chunk: fewer rows far into a long context
POLL_NS = 10_000_000  # one poll computes tokens for about this long


class TorchBackend:
    """See engine.backend.Backend. Uses the first GPU, or all CPU cores that this process may use (OMP_NUM_THREADS sets another number).

    Raises InvalidRequest for more than one GPU and DeviceError for one that is not there; of GPUs that are named it takes the first.
    """

    def __init__(self, model: str, *, gpus=None, dtype: str = "auto", context_tokens: int | None = None, on_progress=None):
        report = on_progress or (lambda progress: None)
        _check_gpus(gpus)
        source = resolve(model)
        config = load_config(source)
        on_gpu = torch.cuda.is_available() and gpus not in (0, ())
        device = torch.device("cuda:0" if on_gpu else "cpu")
        if not on_gpu and "OMP_NUM_THREADS" not in os.environ:
            torch.set_num_threads(len(os.sched_getaffinity(0)))
        chosen = _dtype(dtype, config, device)
        weights = load_weights(source, config, dtype=chosen, device=device, on_progress=report)
        self.eos_ids, self._vocab_size = frozenset(config.eos_ids), config.vocab_size
        self._context = fit_context(config, context_tokens, _position_bytes(config), free_bytes(device))
        self._model = (OneLaneModel if config.n_lanes == 1 else LaneModel)(config, weights, self._context)
        del weights
        _return_freed_memory()
        report(Progress("warmup", 0.0, "Warming up"))
        self._warm_up()
        report(Progress("warmup", 1.0, "Ready"))
        self.info = _info(model, source.title, config, self._context, device, chosen)

    def start(self, prompt_ids: list[int], sampling: SamplingParams, stop_ids: frozenset[int], max_tokens: int) -> "TorchRun":
        return TorchRun(self._model, prompt_ids, sampling, stop_ids, max_tokens)

    @torch.inference_mode()
    def logits(self, ids: list[int]) -> Tensor:
        """See Backend. Raises InvalidRequest unless there are 1 to context_tokens ids, all in the vocabulary."""
        check_ids(ids, self._context, self._vocab_size)
        self._model.reset()
        chunks = []
        while self._model.length < len(ids):
            start = self._model.length
            chunks.append(self._model.forward(ids[start : start + chunk_rows(self._model)], all_rows=True))
        return torch.cat(chunks).float().cpu()

    def close(self) -> None:
        self._model = None

    def _warm_up(self) -> None:
        self.logits([0] * min(8, self._context))


class TorchRun:
    """See engine.backend.Run. Computes inside poll, in the caller's thread."""

    def __init__(self, model, prompt_ids: list[int], sampling: SamplingParams, stop_ids: frozenset[int], max_tokens: int):
        self._model = model
        self._todo = list(prompt_ids)  # tokens the model has not seen yet
        self._sampling, self._stop_ids, self._tokens_left = sampling, stop_ids, max_tokens
        self._stop_asked = False
        self.finish_reason: str | None = None
        self.prefill_done = 0
        self._prompt_tokens = len(prompt_ids)
        model.reset()

    def poll(self, timeout_s: float) -> list[Token]:
        """Computes one chunk of the prompt, or tokens for about 10 ms; the first token comes alone."""
        tokens: list[Token] = []
        end_ns = time.monotonic_ns() + POLL_NS
        while self.finish_reason is None:
            prefilling = self.prefill_done < self._prompt_tokens
            tokens += self._step()
            if prefilling or time.monotonic_ns() >= end_ns:
                break
        return tokens

    def stop(self) -> None:
        self._stop_asked = True

    def close(self) -> None:
        self.stop()

    @torch.inference_mode()
    def _step(self) -> list[Token]:
        if self._stop_asked:
            self.finish_reason = "cancelled"
            return []
        rows = chunk_rows(self._model)
        chunk, self._todo = self._todo[:rows], self._todo[rows:]
        try:
            logits = self._model.forward(chunk)[-1]
        except torch.OutOfMemoryError as error:
            raise DeviceError(f"The device has no memory left: {error}") from error
        self.prefill_done = min(self.prefill_done + len(chunk), self._prompt_tokens)
        return [] if self._todo else [self._next_token(logits)]

    def _next_token(self, logits: Tensor) -> Token:
        if not math.isfinite(logits.sum().item()):
            raise NumericalError("The model's output holds NaN or infinite numbers; the generation was ended.")
        position = self._model.length
        chosen = sampler.sample(logits, self._sampling, self._sampling.seed or 0, position)
        now = time.monotonic_ns()
        self._todo = [chosen]
        self._tokens_left -= 1
        if chosen in self._stop_ids:
            self.finish_reason = "stop"
        elif self._tokens_left == 0:
            self.finish_reason = "length"
        if self._sampling.logprobs is None:
            return Token(chosen, now)
        return Token(chosen, now, *sampler.logprobs(logits, chosen, self._sampling.logprobs))


def chunk_rows(model: OneLaneModel | LaneModel) -> int:
    """Rows of the next chunk of a prompt."""
    return max(1, min(PREFILL_ROWS, SCORE_BYTES // (4 * model.n_heads * (model.length + PREFILL_ROWS))))


def _check_gpus(gpus: int | tuple[int, ...] | None) -> None:
    if isinstance(gpus, tuple):
        if len(gpus) > 1:
            print(f"engine: one of {len(gpus)} GPUs is used: the torch backend uses at most one.", file=sys.stderr)
    elif gpus and gpus > 1:
        raise InvalidRequest(f"gpus={gpus}: the torch backend uses at most one GPU.")
    elif gpus and not torch.cuda.is_available():
        raise DeviceError("gpus=1: the torch backend found no GPU; gpus=0 is the CPU.")


def _return_freed_memory() -> None:
    """The C library keeps what packing freed in pieces (190 MB of SmolLM2 135M) unless it is told, where it can be."""
    trim = getattr(ctypes.CDLL(None), "malloc_trim", None)
    if trim:
        trim(0)


def _position_bytes(config: ModelConfig) -> int:
    """Keys and values in float32, and rotary tables with what it takes to make them."""
    return config.kv_bytes_per_token(4) + 8 * config.head_size


def _dtype(name: str, config: ModelConfig, device: torch.device) -> torch.dtype:
    """auto on a CPU: float16 for one-lane models that are stored in at most 16 bits, because decoding is bound by the bytes
    of the weights; float32 otherwise."""
    if name == "auto" and device.type == "cpu" and config.n_lanes == 1 and config.dtype != "float32":
        return torch.float16
    return pick_dtype(name, config, device)


def _info(model: str, title: str, config: ModelConfig, context: int, device: torch.device, dtype: torch.dtype) -> EngineInfo:
    on_gpu = device.type == "cuda"
    threads = torch.get_num_threads()
    return EngineInfo(
        model=model,
        title=title,
        architecture=config.architecture,
        backend="torch",
        device=torch.cuda.get_device_name(device) if on_gpu else f"CPU, {threads} thread{'s' * (threads != 1)}",
        gpus=1 if on_gpu else 0,
        dtype=str(dtype).removeprefix("torch."),
        parameters=config.parameters,
        context_tokens=context,
        vocab_size=config.vocab_size,
        bytes_per_token=config.bytes_per_token(dtype.itemsize),
        driver=driver() if on_gpu else None,
    )
