"""The monokernel on several GPUs: one spawned process per rank; rank 0 lives in the engine's process and answers to its loop.

The door between the processes is narrow: rank 0 sends a method's name and its arguments, every other rank calls the same method of
its own MonokernelBackend and answers once it has ended. The generation itself needs no message: the kernels agree on every token,
on the stop word and on errors through each other's memory. What is guaranteed: all ranks make the same tokens; they are those of
one GPU wherever the order of float32 sums decides nothing. The lanes of a Laneformer (on the fast path 2, 4 or 8 of them) are summed in
the same order on any number of GPUs; top-p's masses and the partial sums of a one-lane model are not.
"""

import multiprocessing
import os
import signal
import sys
import time
import traceback
from dataclasses import replace
from multiprocessing.connection import Connection, wait

import torch

from engine.backend import EngineInfo, Token, check_ids
from engine.config import ModelConfig, Reduction
from engine.errors import DeviceError, EngineError, InvalidRequest, ModelError, NumericalError
from engine.kernel.backend import MonokernelBackend, MonokernelRun
from engine.kernel.params import DEFAULT_SPIN_LIMIT
from engine.kernel.peers import Peers, serve_store
from engine.loading import load_config
from engine.models import resolve
from engine.request import Progress, SamplingParams

MAX_RANKS = 16  # words of one sign in the inbox
ANSWER_SECONDS = 0.5  # a rank that ends a generation later than this after rank 0 is lost
LOGITS_SECONDS = 60.0  # the same for the logits of a whole prompt, which pass through the door
FAILURE_SECONDS = 0.1  # how long the others' accounts of a failure are awaited
START_SECONDS = 900.0  # load and compile
END_SECONDS = 2.0  # for a rank to end by itself
POLL_SECONDS = 0.02
START = 0  # number of the first answer: the rank is ready


def make_backend(model: str, *, gpus=None, **settings) -> "MonokernelBackend | MultiGpuBackend":
    """A MonokernelBackend on one GPU (also when ``gpus`` is None), a MultiGpuBackend on several.

    A number of GPUs that the model does not divide over is refused; of GPUs that are named (an engine's share of a pool, whatever
    its model) the first is then used alone.
    """
    count = len(gpus) if isinstance(gpus, tuple) else gpus  # the worker shows this process the named ones only
    if isinstance(gpus, tuple) and count > 1:
        try:
            check(load_config(resolve(model)), count)
        except ModelError as error:
            print(f"engine: one of {count} GPUs is used: {error}", file=sys.stderr)
            count = 1
    if count and count > 1:
        return MultiGpuBackend(model, gpus=count, **settings)
    return MonokernelBackend(model, gpus=count, **settings)


def check(config: ModelConfig, ranks: int) -> None:
    """Raises ModelError or DeviceError, naming the rule, unless this model can run on the first ``ranks`` GPUs of this machine."""
    config.check_ranks(ranks)
    if ranks > MAX_RANKS:
        raise InvalidRequest(f"At most {MAX_RANKS} GPUs make one engine; {ranks} were asked for.")
    kinds = config.layer_reductions
    if config.n_lanes > 1:
        early, late = kinds[: config.delay], kinds[config.delay :]
        if config.delay < 1 or Reduction.PAST in early or Reduction.PRESENT in late:
            raise ModelError(
                f"{config.name}: several GPUs take lane models with a delay of at least 1 whose layers before the delay have no past sums "
                f"and whose later layers no present sums."
            )
    if os.environ.get("TRITON_INTERPRET") == "1":
        return
    if torch.version.hip is not None:
        raise DeviceError("Several GPUs per engine are supported on NVIDIA GPUs only; use one GPU.")
    found = torch.cuda.device_count()
    if found < ranks:
        raise DeviceError(f"{ranks} GPUs were asked for; this machine has {found}.")
    sizes = [torch.cuda.get_device_properties(gpu).multi_processor_count for gpu in range(ranks)]
    if len(set(sizes)) > 1:
        raise DeviceError(f"The GPUs of one engine must be of one kind; these have {sizes} multiprocessors. Use one GPU.")
    for one in range(ranks):
        for other in range(ranks):
            if one != other and not torch.cuda.can_device_access_peer(one, other):
                raise DeviceError(f"GPU {one} cannot read the memory of GPU {other} (no peer access); use one GPU.")


class MultiGpuBackend:
    """See engine.backend.Backend. ``gpus``: the number of ranks; rank r takes the r-th visible GPU.

    In Triton's interpreter (TRITON_INTERPRET=1) the ranks are processes on the CPU that share memory: for tests.
    """

    def __init__(self, model: str, *, gpus: int, on_progress=None, **settings):
        check(load_config(resolve(model)), gpus)
        self._store = serve_store()
        self._ranks: list[_Rank] = []
        self._run: MultiGpuRun | None = None
        self._peers: Peers | None = None
        self._local: MonokernelBackend | None = None
        try:
            context = multiprocessing.get_context("spawn")
            for rank in range(1, gpus):
                self._ranks.append(_Rank(context, rank, gpus, self._store.port, model, settings))
            self._peers = _peers(0, gpus, self._store.port, self._check_ranks)
            self._local = MonokernelBackend(model, on_progress=self._watched(on_progress), peers=self._peers, **settings)
            for rank in self._ranks:
                rank.answer(START, START_SECONDS)
        except BaseException as error:
            others = self._failures(error)
            self.close()
            raise others or error from None
        self.info: EngineInfo = self._local.info
        self.config, self.eos_ids, self.speeds = self._local.config, self._local.eos_ids, self._local.speeds
        self.path = self._local.path

    def start(
        self,
        prompt_ids: list[int],
        sampling: SamplingParams,
        stop_ids: frozenset[int],
        max_tokens: int,
        spin_limit: int = DEFAULT_SPIN_LIMIT,
    ) -> "MultiGpuRun":
        self._end_run()
        check_ids(prompt_ids, self.info.context_tokens, self.config.vocab_size)
        if sampling.logprobs is not None:
            self._check_room(max_tokens)
        calls = [rank.call("generate", prompt_ids, sampling, stop_ids, max_tokens, spin_limit) for rank in self._ranks]
        try:
            own = self._local.start(prompt_ids, sampling, stop_ids, max_tokens, spin_limit)
        except Exception:
            self._drain(calls)
            raise
        self._run = MultiGpuRun(own, self._ranks, calls)
        return self._run

    def logits(self, ids: list[int], decode: bool = True) -> torch.Tensor:
        """[T, V] float32 on the CPU, one position after the other (``decode`` must be true)."""
        if not decode:
            raise InvalidRequest("On several GPUs logits are computed one position after the other.")
        self._end_run()
        check_ids(ids, self.info.context_tokens, self.config.vocab_size)
        calls = [rank.call("logits", ids, True) for rank in self._ranks]
        try:
            parts = [self._local.logits(ids, decode=True)]
        except Exception:
            self._drain(calls)
            raise
        parts += [torch.from_numpy(rank.answer(call, LOGITS_SECONDS)) for rank, call in zip(self._ranks, calls, strict=True)]
        return torch.cat(parts, dim=1)

    def trace(self, barriers: int) -> None:
        """See MonokernelBackend.trace: all ranks, of which rank 0 can be looked at."""
        self._end_run()
        calls = [rank.call("trace", barriers) for rank in self._ranks]
        self._local.trace(barriers)
        self.path = self._local.path
        for rank, call in zip(self._ranks, calls, strict=True):
            rank.answer(call, START_SECONDS)

    def _end_run(self) -> None:
        if self._run is None:
            return
        if self._run.failed:
            raise DeviceError("A GPU of this engine has failed before; start a new engine.")
        self._run.close()

    def waited_us(self) -> dict[str, float]:
        """Microseconds that a processor of rank 0 waited for other GPUs in the last generation, mean over the processors: for sums
        of old layers ("delayed"), for what was needed at once ("present"), for tokens, stop and chunks ("agreement")."""
        clocks = self.path.waited_clocks()
        clock_mhz = getattr(torch.cuda.get_device_properties(0), "clock_rate", 1_980_000) / 1000  # an H200's where torch does not say
        return dict(zip(("delayed", "present", "agreement"), (count / clock_mhz for count in clocks), strict=True))

    def _check_room(self, rows: int) -> None:
        """See MonokernelBackend.check_room. Asked of all ranks before any starts: one that refused alone would be out of step."""
        self._local.check_room(rows)
        calls = [rank.call("check_room", rows) for rank in self._ranks]
        for rank, call in zip(self._ranks, calls, strict=True):
            rank.answer(call, ANSWER_SECONDS)

    def _drain(self, calls: list[int]) -> None:
        """Await the answers of calls that rank 0 could not make itself."""
        for rank, call in zip(self._ranks, calls, strict=True):
            try:
                rank.answer(call, ANSWER_SECONDS)
            except EngineError:
                pass  # theirs is the same error, or they waited in vain for rank 0

    def close(self) -> None:
        """End all ranks. Idempotent."""
        healthy = all(rank.alive for rank in self._ranks) and not (self._run and self._run.failed)
        if self._run is not None and healthy:
            self._run.close()
        for rank in self._ranks:
            rank.close(END_SECONDS if healthy else 0.0)
        self._ranks = []
        if self._local is not None:
            try:
                if not healthy and self._run is not None:
                    self._run._own.close(END_SECONDS)
                self._local.close()
            except DeviceError as error:  # its memory comes back when the process ends
                print(f"engine: {error}", file=sys.stderr)
            self._local = None
        if self._peers is not None:
            self._peers.close()
            self._peers = None

    def _watched(self, on_progress):
        """Progress of rank 0 that also looks whether another rank has failed while loading."""

        def report(progress: Progress) -> None:
            self._check_ranks()
            if on_progress:
                on_progress(replace(progress, detail=f"{progress.detail} (GPU 0 of {len(self._ranks) + 1})"))

        return report

    def _check_ranks(self) -> None:
        for rank in self._ranks:
            rank.check()

    def _failures(self, error: BaseException) -> EngineError | None:
        """The error of the rank that failed first, when rank 0 only saw the consequences."""
        if isinstance(error, ModelError):
            return None
        for rank in self._ranks:
            try:
                if rank.connection.poll(0.5):
                    rank.answer(START, 0.5)
            except EngineError as failure:
                return failure
        return None


class MultiGpuRun:
    """See engine.backend.Run: rank 0's run, ended together with the others'."""

    def __init__(self, own: MonokernelRun, ranks: "list[_Rank]", calls: list[int]):
        self._own, self._ranks, self._calls = own, ranks, calls
        self.finish_reason: str | None = None
        self.failed = False  # the engine must end: a GPU or its process is lost
        self._answered = False  # the others said how it ended
        self._bad_numbers = False  # they said so before their kernels' ends
        self._rows = own._sampling.logprobs is not None
        own.gather_logits = self._gather

    @property
    def prefill_done(self) -> int:
        return self._own.prefill_done

    def poll(self, timeout_s: float) -> list[Token]:
        if self.finish_reason is not None:
            return []
        try:
            tokens = self._own.poll(min(timeout_s, POLL_SECONDS))
            for rank in self._ranks:
                rank.check()
            if self._own.finish_reason is not None:
                self._collect()
        except EngineError as error:
            cause = self._cause(error)
            self._bad_numbers = isinstance(cause, NumericalError)
            self.failed = not self._bad_numbers
            raise (DeviceError(str(cause)) if self.failed else cause) from None
        self.finish_reason = self._own.finish_reason
        return tokens

    def stop(self) -> None:
        self._own.stop()

    def close(self) -> None:
        """Wait for the end of all kernels: one that still ran could tell the next generation of this one's failure.

        Bad numbers in tokens that nobody has polled are no error.
        After a DeviceError nothing is awaited: the kernels may hang, and the engine's process ends."""
        if self.failed:
            return
        self._own.close()
        try:
            self._collect()
        except NumericalError:
            self._bad_numbers = True
        if self._bad_numbers:
            self._bad_numbers = False
            self._await_ends()

    def _gather(self, index: int) -> list[torch.Tensor]:
        calls = [rank.call("row", index) for rank in self._ranks]
        return [torch.from_numpy(rank.answer(call, ANSWER_SECONDS)) for rank, call in zip(self._ranks, calls, strict=True)]

    def _collect(self) -> None:
        """Wait until every rank has ended the generation. Raises the error of one that failed."""
        if self._answered:
            return
        self._answered = True
        for rank, call in zip(self._ranks, self._calls, strict=True):
            if self._rows:
                rank.release()
            rank.answer(call, ANSWER_SECONDS)

    def _await_ends(self) -> None:
        try:
            for rank, call in zip(self._ranks, self._calls, strict=True):
                rank.answer(-call, ANSWER_SECONDS)
        except DeviceError:
            self.failed = True
            raise

    def _cause(self, error: EngineError) -> EngineError:
        """Of all ranks' errors the one that is not "another GPU did not answer". Ends this rank's kernel too."""
        errors = [error]
        try:
            self._own.abandon_peers()
        except RuntimeError as failure:
            errors.append(DeviceError(f"GPU 0 failed: {failure}"))
        deadline = time.monotonic() + FAILURE_SECONDS
        for rank, call in [] if self._answered else zip(self._ranks, self._calls, strict=True):
            try:
                rank.answer(call, deadline - time.monotonic())
            except EngineError as other:
                errors.append(other)
        self._answered = True
        return next((e for e in errors if "Another GPU" not in str(e)), error)


class _Rank:
    """Rank 0's end of the door to another rank."""

    def __init__(self, context, rank: int, ranks: int, port: int, model: str, settings: dict):
        self.rank = rank
        self.connection, child = context.Pipe()
        arguments = (child, rank, ranks, port, model, settings)
        self._process = context.Process(target=serve, args=arguments, name=f"GPU {rank}", daemon=True)
        self._process.start()
        child.close()
        self._last_call = self._generation = START
        self._answers: dict[int, tuple] = {}  # by number of the call: one may come late, when nobody awaits it any more

    @property
    def alive(self) -> bool:
        return self._process.is_alive()

    def call(self, method: str, *arguments) -> int:
        """The number under which the answer will come."""
        self._last_call += 1
        if method != "row":
            self._answers.clear()
            self._generation = self._last_call
        try:
            self.connection.send((self._last_call, method, *arguments))
        except OSError:
            raise self._lost() from None
        return self._last_call

    def release(self) -> None:
        """No more rows of the generation are asked for. Has no answer."""
        try:
            self.connection.send((0, "release"))
        except OSError:
            pass  # who awaits the generation's answer will see it

    def check(self) -> None:
        """Raises when the process has reported an error or has ended."""
        alive = self._process.is_alive()
        try:
            while self.connection.poll(0):
                self._receive()
        except (DeviceError, OSError):
            alive = False
        for call, (kind, *content) in self._answers.items():
            if kind == "failed" and call >= self._generation:
                raise self._error(*content)
        if not alive:
            raise self._lost()

    def answer(self, call: int, timeout_s: float):
        """What the call returned. Raises its error, or DeviceError when the rank is gone or does not answer."""
        deadline = time.monotonic() + timeout_s
        while call not in self._answers:
            ready = wait([self.connection, self._process.sentinel], max(0.0, deadline - time.monotonic()))
            if self.connection not in ready:
                raise self._lost() if ready else DeviceError(f"GPU {self.rank} does not answer.")
            self._receive()
        kind, *content = self._answers[call]
        if kind == "failed":  # kept: the cause of what is seen next
            raise self._error(*content)
        del self._answers[call]
        return content[0]

    def _receive(self) -> None:
        try:
            number, *content = self.connection.recv()
        except (EOFError, OSError):
            raise self._lost() from None
        self._answers[number] = tuple(content)

    def close(self, seconds: float) -> None:
        """End the process: by itself within so many seconds, or at once."""
        if seconds:
            try:
                self.connection.send((0, "close"))
            except OSError:
                pass
            self._process.join(seconds)
        if self._process.is_alive():
            self._process.kill()
            self._process.join()
        self.connection.close()

    def _error(self, code: str, message: str) -> EngineError:
        kinds = {error.code: error for error in (ModelError, NumericalError, InvalidRequest)}
        name = f"GPU {self.rank}"
        return kinds.get(code, DeviceError)(message if name in message else f"{name}: {message}")

    def _lost(self) -> DeviceError:
        self._process.join(FAILURE_SECONDS)  # its GPU work ends first
        code = self._process.exitcode
        return DeviceError(f"The process of GPU {self.rank} ended" + ("." if code is None else f" (exit code {code})."))


def _peers(rank: int, ranks: int, port: int, watch=lambda: None) -> Peers:
    interpreted = os.environ.get("TRITON_INTERPRET") == "1"
    return Peers(rank, ranks, torch.device("cpu") if interpreted else torch.device("cuda", rank), port, watch)


def serve(connection: Connection, rank: int, ranks: int, port: int, model: str, settings: dict) -> None:
    """Entry point of the process of a rank other than 0. Ends with the engine's process."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    call = START
    try:
        peers = _peers(rank, ranks, port)
        backend = MonokernelBackend(model, peers=peers, **settings | {"measure_bandwidth": False})
        connection.send((call, "done", None))
        while True:
            call, method, *arguments = connection.recv()
            if method == "close":
                break
            try:
                if method == "generate":
                    _generate(connection, call, backend, arguments)
                elif method == "logits":
                    connection.send((call, "done", backend.logits(*arguments).numpy()))
                elif method in ("check_room", "trace"):
                    connection.send((call, "done", getattr(backend, method)(*arguments)))
            except EngineError as error:  # rank 0 decides whether the engine goes on
                _send_failure(connection, call, error.code, str(error))
        backend.close()
        peers.close()
    except (EOFError, OSError):
        os._exit(0)  # the engine's process is gone: its GPU work ends with this process
    except EngineError as error:
        _send_failure(connection, call, error.code, str(error))
    except torch.OutOfMemoryError as error:
        _send_failure(connection, call, DeviceError.code, f"GPU {rank} has no memory left: {error}")
    except Exception as error:
        traceback.print_exc()
        _send_failure(connection, call, EngineError.code, f"GPU {rank} failed: {type(error).__name__}: {error}")
    os._exit(0)  # no clean-up may wait for a peer


def _generate(connection: Connection, call: int, backend: MonokernelBackend, arguments: list) -> None:
    """Follow a generation to its end, and answer for rows of logits meanwhile."""
    run = backend.start(*arguments)
    failure = None
    released = arguments[1].logprobs is None  # otherwise rows are asked for until rank 0 releases the run
    while failure is None and not (run.finish_reason and released):
        try:
            run.poll(POLL_SECONDS)
        except EngineError as error:
            failure = error
        while connection.poll(0 if run.finish_reason is None else POLL_SECONDS):
            released |= not _answer_row(connection, run)
    if failure:
        _send_failure(connection, call, failure.code, str(failure))  # before the kernel's end is awaited
    run.close()
    if not failure:
        connection.send((call, "done", None))
    connection.send((-call, "done", None))  # the kernel has ended


def _answer_row(connection: Connection, run: MonokernelRun) -> bool:
    """False when there will be no more."""
    call, method, *arguments = connection.recv()
    if method == "row":
        row = run.logits_row(*arguments).numpy().copy()  # a tensor would be moved to shared memory, under the kernel
        connection.send((call, "done", row))
        return True
    if method == "close":
        os._exit(0)
    return False


def _send_failure(connection: Connection, call: int, code: str, message: str) -> None:
    try:
        connection.send((call, "failed", code, message))
    except OSError:
        print(message, file=sys.stderr)
