"""The engine's process: owns the backend, runs one request after another, ends with its parent."""

import os
import queue
import signal
import sys
import threading
import traceback
from collections.abc import Callable
from dataclasses import dataclass, field
from importlib import import_module
from multiprocessing.connection import Connection

from engine.backend import Backend
from engine.errors import DeviceError, EngineError, ModelError
from engine.request import Event, Progress, SamplingParams


@dataclass
class Job:
    """A request on its way through the process. ``cancelled`` is set by the reader thread."""

    request_id: str
    prompt_ids: list[int]
    sampling: SamplingParams
    received_ns: int
    cancelled: threading.Event = field(default_factory=threading.Event)
    stop_run: Callable[[], None] = lambda: None  # set while the job runs

    def cancel(self) -> None:
        self.cancelled.set()
        self.stop_run()


def main(connection: Connection, config) -> None:
    """Entry point of the spawned process. ``config``: EngineConfig."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C goes to the whole group; the parent decides when to end
    # Before torch is loaded. Threads that wait spin for a few microseconds and then sleep: sleeping at once halves the speed of idle
    # cores, spinning long starves every thread when the cores are busy with other work (figures in docs/log.md).
    os.environ.setdefault("GOMP_SPINCOUNT", "1000")
    if isinstance(config.gpus, tuple):
        os.environ["CUDA_VISIBLE_DEVICES"] = ",".join(map(str, config.gpus))
    elif config.gpus == 0:
        os.environ["CUDA_VISIBLE_DEVICES"] = ""
    jobs: queue.SimpleQueue[Job | None] = queue.SimpleQueue()
    threading.Thread(target=_read, args=(connection, jobs), daemon=True).start()
    try:
        backend = make_backend(config, lambda progress: connection.send(("progress", progress)))
        from engine.loop import Loop

        loop = Loop(backend, _tokenizer(config.model))
    except EngineError as error:
        connection.send(("failed", error.code, str(error)))
        return
    except Exception as error:
        traceback.print_exc()
        connection.send(("failed", EngineError.code, f"The engine could not start: {type(error).__name__}: {error}"))
        return
    connection.send(("ready", backend.info))
    healthy = _serve(connection, jobs, loop)
    try:
        backend.close()
    finally:
        if not healthy:
            os._exit(1)  # what is left on a failed device can abort an orderly end


def make_backend(config, on_progress: Callable[[Progress], None]) -> Backend:
    """auto: the monokernel where there is a GPU and it takes the model, otherwise torch. "module:factory" names any other.

    A number of GPUs is what the caller insists on; GPUs that are named are an engine's share, of which the backend may use fewer.
    """
    settings = {"gpus": config.gpus, "dtype": config.dtype, "context_tokens": config.context_tokens, "on_progress": on_progress}
    if config.backend not in ("auto", "torch"):
        return _factory(config.backend)(config.model, **settings)
    if config.backend == "torch":
        return _factory("torch")(config.model, **settings)
    import torch

    if isinstance(config.gpus, int) and config.gpus > torch.cuda.device_count():
        raise DeviceError(f"gpus={config.gpus} is more than this machine's {torch.cuda.device_count()}.")
    if torch.cuda.is_available() and config.gpus not in (0, ()):
        try:
            return _factory("monokernel")(config.model, **settings)
        except ModelError as error:  # torch says the same again when it is the model's fault
            if isinstance(config.gpus, int) and config.gpus > 1:
                raise  # torch uses one GPU only
            print(f"engine: the monokernel does not take this model, torch runs it: {error}", file=sys.stderr)
    return _factory("torch")(config.model, **settings)


def _factory(name: str) -> Callable[..., Backend]:
    if name == "monokernel":
        from engine.kernel.ranks import make_backend

        return make_backend
    if name == "torch":
        from engine.torch_backend import TorchBackend

        return TorchBackend
    module, _, factory = name.partition(":")
    if not factory:
        raise ModelError(f"The backend must be auto, torch, monokernel or module:factory; got {name!r}.")
    return getattr(import_module(module), factory)


def _tokenizer(model: str):
    """None for a model without tokenizer files: it takes and gives token ids only."""
    from engine.tokenizer import load_tokenizer

    try:
        tokenizer = load_tokenizer(model)
    except ModelError:
        return None
    tokenizer.stream()  # its table of bytes is made now, not by the first request
    return tokenizer


def _read(connection: Connection, jobs: "queue.SimpleQueue[Job | None]") -> None:
    """Messages of the parent, as they come: a cancel must not wait for the running request."""
    known: dict[str, Job] = {}
    try:
        while True:
            kind, *content = connection.recv()
            if kind == "submit":
                job = Job(*content)
                known = {i: j for i, j in known.items() if not j.cancelled.is_set()}
                known[job.request_id] = job
                jobs.put(job)
            elif kind == "cancel" and content[0] in known:
                known[content[0]].cancel()
            elif kind == "close":
                for job in known.values():
                    job.cancel()
                jobs.put(None)
    except (EOFError, OSError):
        os._exit(0)  # the parent is gone


def _serve(connection: Connection, jobs: "queue.SimpleQueue[Job | None]", loop) -> bool:
    """Run jobs until the parent closes. False when the device has failed."""
    while (job := jobs.get()) is not None:

        def emit(events: list[Event], request_id: str = job.request_id) -> None:
            connection.send((request_id, events))

        try:
            loop.run(job, emit)
        except DeviceError as error:  # reported to the request; the device is not to be trusted any more
            print(f"engine: {error}", file=sys.stderr)
            return False
        finally:
            job.cancelled.set()  # done: the reader may forget it
    return True
