"""The only place where the Django project meets the engine.

Web processes count prompt tokens and read model cards (no torch). A worker owns an ``EnginePool``: one slot for each engine,
each slot with one engine for every model served; slots run one request at a time.
"""

import logging
import os
import socket
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field
from functools import cache
from pathlib import Path

from engine.errors import EngineError
from playground import streams
from playground.config import Config, config
from playground.exceptions import EngineRefused, InvalidParameter
from playground.memory import DeviceMemory
from playground.schemas import ModelCard

log = logging.getLogger(__name__)

# Web side --------------------------------------------------------------------------------------------------------------


@cache
def tokenizer(model: str):
    """The model's tokenizer, loaded once a process; needs no torch."""
    from engine.tokenizer import load_tokenizer

    return load_tokenizer(model)


def warm_up() -> None:
    """Load the default model's tokenizer, with its table of bytes, in the background, so that the first prompt does not wait for it."""
    threading.Thread(target=lambda: tokenizer(config.model_names[0]).stream(), name="tokenizer", daemon=True).start()


def count_prompt_tokens(model: str, request: dict) -> int:
    """Tokens of ``{"messages"}``, ``{"prompt"}`` or ``{"prompt_ids"}`` as the engine will see them. Raises EngineRefused."""
    try:
        if "prompt_ids" in request:
            return len(_known_ids(model, request["prompt_ids"]))
        if "prompt" in request:
            return len(tokenizer(model).encode_prompt(request["prompt"]))
        return tokenizer(model).count(request["messages"])
    except EngineError as error:
        raise EngineRefused(error.code, str(error)) from error


def far_over(model: str, request: dict, limit: int) -> int | None:
    """Tokens that a very long prompt has at least, when they are surely more than ``limit``: cheap. Raises EngineRefused."""
    if "prompt_ids" in request:
        return None
    try:
        return tokenizer(model).far_over(request.get("prompt") or request["messages"], limit)
    except EngineError as error:
        raise EngineRefused(error.code, str(error)) from error


def _known_ids(model: str, ids: list[int]) -> list[int]:
    size = tokenizer(model).vocab_size
    unknown = next((i for i in ids if not 0 <= i < size), None)
    if unknown is not None:
        raise EngineRefused("invalid_request", f"Token ids of this model lie between 0 and {size - 1:,}; got {unknown}.")
    return ids


def model_cards() -> list[ModelCard]:
    """One card for each model served, from the engines that report; ``ready`` when one of them can answer."""
    engines = [e for report in streams.workers().values() for e in report["engines"]]
    return [_card(model, [e for e in engines if e["model"] == model]) for model in config.model_names]


def _card(model: str, engines: list[dict]) -> ModelCard:
    known = next((e["info"] for e in engines if e["info"]), None)
    ready = sum(e["state"] in READY for e in engines)
    if known is None:
        return ModelCard(name=model, title=model, context_tokens=_described_context(model))
    measured = known["measured_bytes_per_s"]
    return ModelCard(
        name=model,
        title=known["title"],
        context_tokens=known["context_tokens"],
        parameters=known["parameters"],
        precision=known["dtype"],
        device=known["device"],
        gpus=known["gpus"],
        backend=known["backend"],
        bytes_per_token=known["bytes_per_token"],
        bound_tokens_per_s=measured / known["bytes_per_token"] if measured else None,
        datasheet_bytes_per_s=known["datasheet_bytes_per_s"],
        measured_bytes_per_s=measured,
        ready=ready > 0,
        engines=ready,
        driver=known.get("driver"),
    )


def context_tokens(model: str) -> int | None:
    """Tokens that prompt and answer may have together; None while unknown."""
    return next((card.context_tokens for card in model_cards() if card.name == model), None)


def title(model: str) -> str:
    return next((card.title for card in model_cards() if card.name == model), model)


@cache
def _described_context(model: str) -> int | None:
    """The context that the model's files name, while no engine reports; None when they cannot be read here."""
    from engine.loading import load_config
    from engine.models import resolve

    try:
        described = load_config(resolve(model)).context_tokens
    except EngineError:
        return config.context_tokens
    return min(described, config.context_tokens or described)


def loading_progress() -> tuple[float, str] | None:
    """(fraction, detail) while no engine can answer; None as soon as one can."""
    engines = [e for report in streams.workers().values() for e in report["engines"]]
    if any(e["state"] in READY for e in engines):
        return None
    if not engines:
        return 0.0, "No engine is running. Your request waits; you can stop it."
    best = max(engines, key=lambda e: e["fraction"])
    return best["fraction"], best["detail"]


# Worker side -----------------------------------------------------------------------------------------------------------

READY = ("ready", "busy")
BEAT_SECONDS = 1.0
UNREAD_BEATS = 15  # so many beats without a reader end an answer of the API
RESTART_SECONDS = (1, 5, 15, 60)  # pauses between attempts to load an engine that failed


@dataclass
class Member:
    """One engine of a slot: a model on the slot's devices."""

    model: str
    state: str = "loading"  # loading, ready, busy, failed
    fraction: float = 0.0
    detail: str = ""
    engine: object | None = None
    failures: int = 0
    retry_at: float = 0.0

    @property
    def info(self) -> dict | None:
        return asdict(self.engine.info) if self.engine else None


@dataclass
class Slot:
    index: int
    gpus: tuple[int, ...]  # () is the CPU
    members: dict[str, Member] = field(default_factory=dict)
    generation: str | None = None
    draining: bool = False  # takes no more requests
    restarting: bool = False  # its engines are loaded anew once it is free


def parse_pool(text: str, gpu_count: int) -> list[tuple[int, ...]]:
    """GPU indices for each engine: "2x4" -> [(0, 1, 2, 3), (4, 5, 6, 7)], "cpu" -> [()]. "" gives each GPU an engine of its own,
    which answers faster than one engine over several until the fast kernel runs on several (docs/scaling.md).

    Raises InvalidParameter for a pool that the machine cannot hold.
    """
    if not text:
        text = f"{gpu_count}x1" if gpu_count else "cpu"
    if text == "cpu":
        return [()]
    engines, _, gpus = text.partition("x")
    if not (engines.isdecimal() and gpus.isdecimal() and int(engines) and int(gpus)):
        raise InvalidParameter(f"ENGINE_POOL must be cpu or ENGINESxGPUS as in 2x4; got {text!r}.")
    count, width = int(engines), int(gpus)
    if count * width > gpu_count:
        raise InvalidParameter(f"ENGINE_POOL={text} needs {count * width} GPUs; this machine has {gpu_count}.")
    return [tuple(range(i * width, (i + 1) * width)) for i in range(count)]


class EnginePool:
    """The engines of one worker process. Loads them, restarts dead ones, lends them to one request at a time."""

    def __init__(self, layout: list[tuple[int, ...]], *, settings: Config = config, factory: Callable | None = None):
        self.worker_id = f"{socket.gethostname()}-{os.getpid()}-{int(time.time())}"
        self.slots = [Slot(i, gpus, {m: Member(m) for m in settings.model_names}) for i, gpus in enumerate(layout)]
        self._settings = settings
        self._factory = factory or _make_engine
        self._changed = threading.Condition()
        self._closing = False
        self._active: dict[str, Lease] = {}
        self._holds: dict[str, int] = {}
        self._started_at = time.time()
        self._beating = threading.Lock()  # an older report never overwrites a newer one, nor the last good-bye
        self._memory = DeviceMemory()

    def start(self) -> None:
        """Begin loading, heartbeats and listening for cancels, each in a thread of its own."""
        for slot in self.slots:
            threading.Thread(target=self._keep_loaded, args=(slot,), name=f"engine-{slot.index}", daemon=True).start()
        threading.Thread(target=self._beat_loop, name="heartbeat", daemon=True).start()
        threading.Thread(target=self._cancel_loop, name="cancel", daemon=True).start()

    def wait_ready(self) -> None:
        """Return when some engine of each model can answer."""
        with self._changed:
            self._changed.wait_for(lambda: self._closing or all(self._any_ready(m) for m in self._settings.model_names))

    def close(self) -> None:
        """End every engine process and report this worker as gone."""
        with self._changed:
            self._closing = True
            self._changed.notify_all()
            engines = [m.engine for s in self.slots for m in s.members.values() if m.engine]
        for engine in engines:
            engine.close()
        try:
            with self._beating:
                streams.worker_gone(self.worker_id)
        except Exception:
            log.info("worker %s leaves while Redis is gone", self.worker_id)

    def interrupt_all(self) -> None:
        """The worker is asked to end: running generations end ``interrupted`` and keep their text."""
        for lease in list(self._active.values()):
            lease.interrupt()

    @contextmanager
    def hold(self, generation_id: str) -> Iterator[None]:
        """Say in heartbeats that this worker has the generation's task in hand."""
        with self._changed:
            self._holds[generation_id] = self._holds.get(generation_id, 0) + 1
        try:
            yield
        finally:
            with self._changed:
                self._holds[generation_id] -= 1
                if not self._holds[generation_id]:
                    del self._holds[generation_id]

    @contextmanager
    def lease(self, generation_id: str, model: str) -> Iterator["Lease"]:
        """Wait for a free slot whose engine for ``model`` is ready, and keep it for the block."""
        with self._changed:
            slot = self._changed.wait_for(lambda: self._free_slot(model))
            member = slot.members[model]
            slot.generation, member.state = generation_id, "busy"
        lease = Lease(self, slot, member)
        self._active[generation_id] = lease
        try:
            yield lease
        finally:
            with self._changed:
                del self._active[generation_id]
                slot.generation = None
                if member.state == "busy":
                    member.state = "ready" if member.engine.alive else "loading"  # a dead one is loaded again
                self._changed.notify_all()

    def report(self) -> dict:
        """What the heartbeat says: host, tasks in hand, and each engine's state, progress, EngineInfo and current request."""
        memory = [self._memory.of(slot.gpus) for slot in self.slots]
        with self._changed:
            return {
                "host": socket.gethostname(),
                "pid": os.getpid(),
                "pool": streams.POOL,
                "started_at": self._started_at,
                "holds": list(self._holds),
                "engines": [
                    {
                        "engine": f"{slot.index}/{member.model}",
                        "slot": slot.index,
                        "model": member.model,
                        "state": member.state,
                        "fraction": round(member.fraction, 3),
                        "detail": member.detail,
                        "generation": slot.generation if member.state == "busy" else None,
                        "info": member.info,
                        "draining": slot.draining,
                        "memory": memory[slot.index],
                    }
                    for slot in self.slots
                    for member in slot.members.values()
                ],
            }

    def _any_ready(self, model: str) -> bool:
        return any(slot.members[model].state in READY for slot in self.slots)

    def _free_slot(self, model: str) -> Slot | None:
        free = (s for s in self.slots if s.generation is None and not s.draining and not s.restarting)
        return next((s for s in free if s.members[model].state == "ready"), None)

    def _keep_loaded(self, slot: Slot) -> None:
        while not self._closing:
            if slot.restarting and slot.generation is None:
                self._unload(slot)
            for member in slot.members.values():
                if slot.generation is None:
                    self._check(slot, member)
            time.sleep(0.2)

    def _unload(self, slot: Slot) -> None:
        with self._changed:
            engines = [m.engine for m in slot.members.values() if m.engine]
            for member in slot.members.values():
                member.engine, member.state = None, "loading"
            slot.restarting = slot.draining = False
        for engine in engines:
            engine.close()

    def _command(self, slot: Slot, command: str) -> None:
        log.info("engine %s: %s", slot.index, command)
        with self._changed:
            slot.draining = command == "drain"
            slot.restarting = command == "restart"
            self._changed.notify_all()

    def _check(self, slot: Slot, member: Member) -> None:
        if member.engine is not None and not member.engine.alive:
            log.error("engine %s/%s stopped; loading it again", slot.index, member.model)
            with self._changed:
                dead, member.engine, member.state = member.engine, None, "loading"
            dead.close()
        if member.engine is None and time.monotonic() >= member.retry_at:
            self._load(slot, member)

    def _load(self, slot: Slot, member: Member) -> None:
        member.state, member.fraction, member.detail = "loading", 0.0, f"Loading {member.model}"

        def on_progress(progress) -> None:
            member.fraction, member.detail = progress.fraction, progress.detail

        try:
            engine = self._factory(member.model, slot.gpus, self._settings, on_progress)
        except Exception as error:
            pause = RESTART_SECONDS[min(member.failures, len(RESTART_SECONDS) - 1)]
            log.error("engine %s/%s did not load (again in %d s): %s", slot.index, member.model, pause, error)
            member.failures += 1
            member.state, member.detail = "failed", str(error)
            member.retry_at = time.monotonic() + pause
            return
        with self._changed:
            member.engine, member.state, member.failures = engine, "ready", 0
            member.fraction, member.detail = 1.0, ""
            self._changed.notify_all()
        self._beat()

    def _beat_loop(self) -> None:
        while not self._closing:
            self._beat()
            time.sleep(BEAT_SECONDS if self._any_ready_at_all() else BEAT_SECONDS / 4)

    def _any_ready_at_all(self) -> bool:
        return any(self._any_ready(m) for m in self._settings.model_names)

    def _beat(self) -> None:
        try:
            with self._beating:
                if not self._closing:
                    streams.worker_beat(self.worker_id, self.report())
            for index, command in streams.worker_commands(self.worker_id).items():
                self._command(self.slots[index], command)
            for generation_id in streams.cancel_requested(list(self._active)):
                self._cancel(generation_id)
            self._cancel_unread()
        except Exception as error:
            log.warning("heartbeat failed: %s", error)

    def _cancel_unread(self) -> None:
        """An API's answer whose web process has died is read by nobody, and nobody can resume it."""
        wanted = {i: lease for i, lease in list(self._active.items()) if lease.needs_reader}
        read = streams.with_reader(wanted)
        for generation_id, lease in wanted.items():
            lease.unread_beats = 0 if generation_id in read else lease.unread_beats + 1
            if lease.unread_beats >= UNREAD_BEATS:
                log.warning("generation %s has no reader any more", generation_id)
                lease.cancel()

    def _cancel_loop(self) -> None:
        while not self._closing:
            try:
                with streams.client().pubsub(ignore_subscribe_messages=True) as pubsub:
                    pubsub.subscribe(streams.CANCEL_CHANNEL)
                    while not self._closing:
                        if message := pubsub.get_message(timeout=1.0):
                            self._cancel(message["data"])
            except Exception as error:
                if self._closing:
                    return
                log.warning("cancel channel lost: %s", error)
                time.sleep(0.5)

    def _cancel(self, generation_id: str) -> None:
        lease = self._active.get(generation_id)
        if lease:
            lease.cancel()


class Lease:
    """An engine in the hands of one request."""

    def __init__(self, pool: EnginePool, slot: Slot, member: Member):
        self.engine_name = f"{slot.index}/{member.model}"
        self.worker_id = pool.worker_id
        self.info = member.info
        self.interrupted = False
        self.needs_reader = False
        self.unread_beats = 0
        self._engine = member.engine
        self._lock = threading.Lock()
        self._cancelled = False
        self._handle = None

    def submit(self, generation_id: str, request: dict, params: dict):
        """The engine's handle for ``{"messages" | "prompt" | "prompt_ids"}`` with sampling ``params``.

        Raises EngineError for a request that the engine refuses.
        """
        from engine.request import GenerationRequest, SamplingParams

        sampling = {k: v for k, v in params.items() if k != "model"}
        sampling["stop"] = tuple(sampling.get("stop", ()))
        handle = self._engine.submit(GenerationRequest(request_id=generation_id, sampling=SamplingParams(**sampling), **request))
        with self._lock:
            self._handle = handle
            if self._cancelled:
                handle.cancel()
        return handle

    def cancel(self) -> None:
        with self._lock:
            self._cancelled = True
            if self._handle is not None:
                self._handle.cancel()

    def interrupt(self) -> None:
        self.interrupted = True
        self.cancel()


def _make_engine(model: str, gpus: tuple[int, ...], settings: Config, on_progress: Callable):
    from engine import Engine, EngineConfig

    return Engine(
        EngineConfig(
            model=model,
            backend=settings.engine_backend,
            gpus=gpus,
            dtype=settings.engine_dtype,
            context_tokens=settings.context_tokens,
        ),
        on_progress=on_progress,
    )


DRIVER_FILES = ("nvidia*", "nvhost*", "nvgpu*", "kfd", "dxg")  # in /dev: NVIDIA's, a Jetson's, AMD's, Windows' Linux


def gpu_count(devices: Path = Path("/dev")) -> int:
    """GPUs of this machine, asked in a child so that this process never touches CUDA. Without a driver's file there is none, and
    torch, which takes seconds, is not asked."""
    import subprocess
    import sys

    if sys.platform == "linux" and not any(found for name in DRIVER_FILES for found in devices.glob(name)):
        return 0
    code = "import torch; print(torch.cuda.device_count())"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=300)
    return int(done.stdout) if done.returncode == 0 and done.stdout.strip().isdecimal() else 0
