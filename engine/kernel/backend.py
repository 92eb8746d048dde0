"""The monokernel behind the engine's Backend interface: weights, path choice, warm-up, runs."""

import os
import threading
import time
from collections.abc import Callable

import torch

from engine import sampling as sampler
from engine.backend import EngineInfo, Token, check_ids
from engine.errors import DeviceError, InvalidRequest, ModelError
from engine.hardware import datasheet_bytes_per_s, driver
from engine.kernel.cache import KVCache
from engine.kernel.control import Control
from engine.kernel.params import DEFAULT_SPIN_LIMIT, ParamBlock
from engine.kernel.path import KernelPath
from engine.kernel.peers import Peers
from engine.kernel.portable.path import PortablePath
from engine.loading import load_config, load_weights, pick_dtype
from engine.memory import fit_context, free_bytes, host_free_bytes
from engine.models import resolve
from engine.request import Progress, SamplingParams
from engine.weights import Shard

KERNEL_VARIABLE = "MONOKERNEL_PATH"  # auto, portable or gluon
TRIAL_TOKENS = 33  # what each path decodes at warm-up when there is a choice


class MonokernelBackend:
    """See engine.backend.Backend. One GPU; or, for tests, the CPU in Triton's interpreter (TRITON_INTERPRET=1).

    ``kernel``: auto takes the path that decodes faster at warm-up; portable or gluon insists. Default: the environment
    variable MONOKERNEL_PATH, else auto.
    """

    def __init__(
        self,
        model: str,
        *,
        gpus=None,
        dtype: str = "auto",
        context_tokens: int | None = None,
        on_progress=None,
        kernel: str | None = None,
        measure_bandwidth: bool = True,
        peers: Peers | None = None,
    ):
        report = on_progress or (lambda progress: None)
        kernel = kernel or os.environ.get(KERNEL_VARIABLE, "auto")
        if kernel not in ("auto", "portable", "gluon"):
            raise InvalidRequest(f"{KERNEL_VARIABLE} must be auto, portable or gluon; got {kernel!r}.")
        source = resolve(model)
        self.config = config = load_config(source)
        self.peers, ranks = peers, peers.shard.ranks if peers else 1
        self.device = device = peers.device if peers else _device(gpus)
        self.dtype = pick_dtype(dtype, config, device)
        reason = PortablePath.supports(config, device, self.dtype)
        if reason:
            raise ModelError(f"{model}: {reason}.")
        shard = peers.shard if peers else None
        self.eos_ids = frozenset(config.eos_ids)
        self.weights = load_weights(source, config, dtype=self.dtype, device=device, shard=shard, on_progress=report)
        self.context_tokens = self._fit_context(context_tokens, ranks)
        try:
            self.control = Control(self.context_tokens, device, rank=shard.rank if shard else 0)
            self.params = ParamBlock(device)
            self.cache = KVCache.allocate(config, self.context_tokens, self.dtype, device, ranks)
            self.portable = PortablePath(config, self.weights, self.cache, self.control, self.params, device, peers)
        except torch.OutOfMemoryError as error:
            raise DeviceError(
                f"{model}: no memory left on GPU {device.index or 0} for a context of {self.context_tokens:,} tokens beside the weights."
            ) from error
        self.path: KernelPath = self.portable
        self._ids = torch.zeros(self.context_tokens + 1, dtype=torch.int32, device=device)
        self._run: MonokernelRun | None = None
        self.speeds: dict[str, float] = {}  # decode tokens/s of each path at warm-up
        self._warm_up(kernel, report)
        self.info = self._info(model, source.title, measure_bandwidth and device.type == "cuda")

    def start(
        self,
        prompt_ids: list[int],
        sampling: SamplingParams,
        stop_ids: frozenset[int],
        max_tokens: int,
        spin_limit: int = DEFAULT_SPIN_LIMIT,
    ) -> "MonokernelRun":
        if self._run is not None:
            self._run.close()
        self._run = MonokernelRun(self, self._path_for(sampling), prompt_ids, sampling, stop_ids, max_tokens, spin_limit)
        return self._run

    def logits(self, ids: list[int], decode: bool = False) -> torch.Tensor:
        """[T, V] float32 on the CPU. By the prefill phases, or one position after the other by the decode phases."""
        check_ids(ids, self.context_tokens, self.config.vocab_size)
        if self._run is not None:
            self._run.close()
        self.control.reset()
        self.params.write(SamplingParams(), 0, frozenset(), len(ids))
        rows = self._upload(ids)[: len(ids)]
        out = self.portable.decode_logits(rows) if decode else self.portable.prefill_logits(rows)
        out = out.cpu()
        self.control.raise_for_error()
        return out

    def check_room(self, rows: int) -> None:
        """Raises InvalidRequest when ``rows`` rows of logits, of which log-probabilities keep one for each token, do not fit the memory."""
        free, row = free_bytes(self.device), self.portable.shape.vocab * 4
        if rows * row > free:
            raise InvalidRequest(
                f"Log-probabilities of up to {rows:,} tokens take {rows * row / 1e9:,.1f} GB of memory, "
                f"of which {free / 1e9:,.1f} GB are free; set max_tokens to at most {free // row:,}."
            )

    def trace(self, barriers: int) -> None:
        """From now on generate with a kernel that keeps clocks, for a profile: the portable one those of the last ``barriers`` barriers,
        the fast path those of the last token."""
        if self._run is not None:
            self._run.close()
        arguments = (self.config, self.weights, self.cache, self.control, self.params, self.device, self.peers)
        fast = self.path is not self.portable
        traced = type(self.path)(*arguments, profile=fast or barriers)
        if not fast:
            traced.compile()  # the fast path compiles when it is made
        if self.peers:
            self.peers.barrier("traced")
        self.path.close()
        self.path = traced
        if not fast:
            self.portable = traced

    def close(self) -> None:
        if self._run is not None:
            self._run.close()
        for path in {id(p): p for p in (self.path, self.portable)}.values():
            path.close()
        self.weights = self.cache = None

    def _path_for(self, sampling: SamplingParams) -> KernelPath:
        """Log-probabilities need every token's logits, which the portable path keeps."""
        return self.path if sampling.logprobs is None else self.portable

    def _upload(self, ids: list[int]) -> torch.Tensor:
        self._ids[: len(ids)] = torch.tensor(ids, dtype=torch.int32)
        return self._ids

    def _fit_context(self, asked: int | None, ranks: int) -> int:
        """Equal on all ranks: by the size of the GPU's memory, not by what others use of it."""
        on_gpu = self.device.type == "cuda"
        memory = torch.cuda.get_device_properties(self.device).total_memory - self.weights.nbytes if on_gpu else host_free_bytes()
        position = self.config.kv_bytes_per_token(self.dtype.itemsize) // ranks + 16 * self.config.head_size + 16  # and rotary tables, ids
        return fit_context(self.config, asked, position, memory, quiet=self.peers is not None and self.peers.shard.rank > 0)

    @property
    def ranks(self) -> int:
        return self.portable.shape.ranks

    def _warm_up(self, kernel: str, report) -> None:
        """Compile (about a minute the first time; cached on disk) and choose the path."""
        report(Progress("compile", 0.0, "Compiling the portable kernel"))
        if self.device.type == "cpu":
            if kernel == "gluon":
                raise ModelError("The gluon kernel needs a GPU.")
            report(Progress("warmup", 1.0, "Ready"))
            return
        if self.peers:
            self.portable.compile()
            self.peers.barrier("compiled")
        self.speeds["portable"] = self._trial(self.portable)
        if kernel != "portable":
            report(Progress("compile", 0.5, "Compiling the fast kernel"))
            self._try_gluon(insist=kernel == "gluon")
        report(Progress("warmup", 1.0, f"Ready ({self.path.name} kernel)"))

    def _try_gluon(self, insist: bool) -> None:
        try:
            from engine.kernel.gluon.path import GluonPath
        except ImportError as error:
            if insist:
                raise ModelError(f"The gluon kernel cannot be loaded: {error}") from error
            return
        shard = self.peers.shard if self.peers else Shard()
        reason = GluonPath.supports(self.config, self.device, self.dtype, shard)
        if reason is None:
            path = GluonPath(self.config, self.weights, self.cache, self.control, self.params, self.device, self.peers)
            if self.peers:
                self.peers.barrier("compiled fast")
            self.speeds["gluon"] = self._trial(path)
            if insist or self.peers or self.speeds["gluon"] > self.speeds["portable"]:  # ranks must choose alike
                self.path = path
            else:
                path.close()
        elif insist:
            raise ModelError(f"{self.config.name}: {reason}.")

    def _trial(self, path: KernelPath) -> float:
        """Decode tokens/s of a short greedy generation, after one that compiles."""
        count = min(TRIAL_TOKENS, self.context_tokens - 2)
        speed = 0.0
        for number, tokens in enumerate((2, count)):
            run = MonokernelRun(self, path, [0, 0], SamplingParams(), frozenset(), max(1, tokens), DEFAULT_SPIN_LIMIT)
            seen = []
            while run.finish_reason is None:
                seen += run.poll(1.0)
            run.close()
            if self.peers:  # a launch may begin when all ranks have ended the one before
                self.peers.barrier(f"trial {path.name} {number}")
            if len(seen) > 1 and seen[-1].time_ns > seen[0].time_ns:
                speed = (len(seen) - 1) / (seen[-1].time_ns - seen[0].time_ns) * 1e9
        return speed

    def _info(self, model: str, title: str, measure: bool) -> EngineInfo:
        on_gpu = self.device.type == "cuda"
        name = torch.cuda.get_device_name(self.device) if on_gpu else "CPU, Triton interpreter"
        measured = None
        if measure:
            from engine.bench.bandwidth import read_bandwidth

            measured = read_bandwidth(self.device)
            torch.cuda.empty_cache()
        return EngineInfo(
            model=model,
            title=title,
            architecture=self.config.architecture,
            backend="monokernel",
            device=name,
            gpus=self.ranks if on_gpu else 0,
            dtype=str(self.dtype).removeprefix("torch."),
            parameters=self.config.parameters,
            context_tokens=self.context_tokens,
            vocab_size=self.config.vocab_size,
            bytes_per_token=self.config.bytes_per_token(self.dtype.itemsize),
            datasheet_bytes_per_s=_times(datasheet_bytes_per_s(name), self.ranks),
            measured_bytes_per_s=_times(measured, self.ranks),
            driver=driver() if on_gpu else None,
        )


class MonokernelRun:
    """See engine.backend.Run. The launch is under way when the constructor returns; the GPU needs nothing from the host."""

    def __init__(
        self,
        backend: MonokernelBackend,
        path: KernelPath,
        prompt_ids: list[int],
        sampling: SamplingParams,
        stop_ids: frozenset[int],
        max_tokens: int,
        spin_limit: int,
    ):
        check_ids(prompt_ids, backend.context_tokens, backend.config.vocab_size)
        self.finish_reason: str | None = None
        self._backend, self._control, self._sampling = backend, backend.control, sampling
        self._prompt_tokens, self._closed, self._seen = len(prompt_ids), False, 0
        self._thread: threading.Thread | None = None
        self._event: torch.cuda.Event | None = None
        self._logits = None
        self.gather_logits: Callable[[int], list[torch.Tensor]] = lambda index: []  # the other ranks' parts of a row of logits
        if sampling.logprobs is not None:
            backend.check_room(max_tokens)
            self._logits = torch.zeros(max_tokens, backend.portable.shape.vocab, dtype=torch.float32, device=backend.device)
        self._control.reset()
        backend.params.write(sampling, sampling.seed or 0, stop_ids, max_tokens, spin_limit)
        ids = backend._upload(prompt_ids)
        if backend.device.type == "cpu":  # the interpreter computes inside the launch
            self._thread = threading.Thread(target=self._launch, args=(path, ids, prompt_ids), daemon=True)
            self._thread.start()
        else:
            with torch.cuda.device(backend.device):
                self._launch(path, ids, prompt_ids)
                self._event = torch.cuda.Event()
                self._event.record()

    def _launch(self, path: KernelPath, ids: torch.Tensor, prompt_ids: list[int]) -> None:
        n = len(prompt_ids) - 1
        if isinstance(path, PortablePath):
            path.generate(ids, 0, n, prompt_ids[-1], self._logits)
            return
        if n:
            self._backend.portable.prefill(ids, 0, n)
        path.launch(prompt_ids[-1], n)

    @property
    def prefill_done(self) -> int:
        """Whole chunks of the prompt; all of it once the first token is there."""
        return self._prompt_tokens if self._seen or self._control.done else self._control.prefill_done

    def poll(self, timeout_s: float) -> list[Token]:
        if self.finish_reason is not None:
            return []
        ended = self._ended()  # before the tokens are read: what an ended launch wrote is then all there
        ids, now = self._control.wait(0.0 if ended else timeout_s)
        tokens = [self._token(token, now) for token in ids]
        if self._control.done and not self._remaining():
            self.finish_reason = self._control.finish_reason
        if not tokens:
            self._control.raise_for_error()
            if ended and self.finish_reason is None:
                raise DeviceError("The kernel ended without finishing the generation.")
        return tokens

    def stop(self) -> None:
        self._control.stop()

    def abandon_peers(self) -> None:
        """Another rank is gone: end without waiting for it."""
        for path in {id(p): p for p in (self._backend.portable, self._backend.path)}.values():
            path.abandon_peers()

    def close(self, seconds: float = 60.0) -> None:
        """Stop, and wait so long for the kernel's end. Raises DeviceError when the GPU has failed."""
        if self._closed:
            return
        self._closed = True
        self.stop()
        if self._thread is not None:
            self._thread.join()
        if self._event is not None:
            self._synchronize(seconds)
        self._logits = None

    def _remaining(self) -> bool:
        return self._control.count > self._seen

    def _token(self, token: int, now: int) -> Token:
        self._seen += 1
        if self._logits is None or self._control.rank != 0:
            return Token(token, now)
        row = torch.cat([self.logits_row(self._seen - 1), *self.gather_logits(self._seen - 1)])
        return Token(token, now, *sampler.logprobs(row, token, self._sampling.logprobs))

    def logits_row(self, index: int) -> torch.Tensor:
        """This rank's logits from which token ``index`` was chosen, float32 on the CPU. Copied on a stream of its own: the current
        one is busy until the generation ends."""
        if self._thread is not None:
            return self._logits[index].cpu()
        with torch.cuda.stream(torch.cuda.Stream(self._backend.device)):
            return self._logits[index].cpu()

    def _ended(self) -> bool:
        if self._thread is not None:
            return not self._thread.is_alive()
        try:
            return self._event.query()
        except RuntimeError as error:
            raise DeviceError(f"The GPU failed: {error}") from error

    def _synchronize(self, seconds: float) -> None:
        deadline = time.monotonic() + seconds
        while not self._ended():
            if time.monotonic() > deadline:
                raise DeviceError(f"The kernel did not end within {seconds:.0f} s of being stopped.")
            time.sleep(0.0005)


def _times(value: float | None, count: int) -> float | None:
    return None if value is None else value * count


def _device(gpus) -> torch.device:
    if torch.cuda.is_available() and gpus not in (0, ()):
        index = gpus[0] if isinstance(gpus, tuple) else 0
        wanted = len(gpus) if isinstance(gpus, tuple) else gpus or 1
        if wanted > 1:
            raise InvalidRequest(f"One rank runs on one GPU; {wanted} were asked for.")
        return torch.device("cuda", index)
    if os.environ.get("TRITON_INTERPRET") == "1":
        return torch.device("cpu")
    raise DeviceError("The monokernel needs a GPU; none was found. Use the torch backend on a CPU.")
