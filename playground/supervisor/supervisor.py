"""Start everything on one machine, print one URL when a prompt can be answered, stop everything in order."""

import asyncio
import errno
import fcntl
import os
import shutil
import signal
import socket
import sys
import time
from pathlib import Path

import redis

from playground.config import BASE_DIR, config, without_password
from playground.supervisor.embedded_redis import embedded_redis, url_file
from playground.supervisor.processes import Child

FREE_BYTES_NEEDED = 200_000_000
FIRST_PORT, PORTS_TRIED = 8000, 20
START_SECONDS = 30  # for Redis and the web server
STOP_SECONDS = 8
RESTART_SECONDS = (0.5, 2, 5, 15)
MAX_FRAME_BYTES = 16 * 1024 * 1024  # a frame over the message limit still reaches the consumer, which answers with a named error


class CannotStart(Exception):
    """One line for the person who typed the command."""


def main() -> int:
    """Run until Ctrl-C or SIGTERM. 0 after a clean stop, 1 with one line on stderr when it cannot start."""
    try:
        return asyncio.run(Supervisor().run())
    except CannotStart as error:
        print(f"error: {error}", file=sys.stderr)
        return 1
    except OSError as error:
        if error.errno != errno.ENOSPC:
            raise
        print(f"error: The disk of {config.data_dir} is full.", file=sys.stderr)
        return 1


class Supervisor:
    def __init__(self):
        self.logs = config.data_dir / "logs"
        self.children: list[Child] = []  # in the order in which they are stopped
        self.stopping = asyncio.Event()
        self._signals = 0

    async def run(self) -> int:
        check_disk(config.data_dir)
        self._lock = lock(config.data_dir)
        loop = asyncio.get_running_loop()
        for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
            loop.add_signal_handler(number, self._on_signal)
        listener = listen(config.host, config.port)
        try:
            return await self._until_stopped(listener)
        finally:
            await self._stop_all()
            listener.close()

    async def _until_stopped(self, listener: socket.socket) -> int:
        env = dict(os.environ, DJANGO_SETTINGS_MODULE="playground.settings", PYTHONUNBUFFERED="1")
        if not config.redis_url:
            server, config.redis_url = embedded_redis(config.data_dir, log=self.logs / "redis.log", env=env)
            await server.start()
            self.children.append(server)
        env["REDIS_URL"] = config.redis_url
        await self._wait_redis()
        await asyncio.to_thread(prepare_database)

        python, manage = sys.executable, str(BASE_DIR / "manage.py")
        worker = Child("engine worker", [python, manage, "engine_worker"], log=self.logs / "worker.log", env=env)
        web = Child("web server", [python, "-m", *daphne(listener)], log=self.logs / "web.log", env=env, pass_fds=[listener.fileno()])
        for child in (worker, web):
            await child.start()
            self.children.insert(0, child)
        if not await self._wait_ready(worker, web):
            return 0
        host, port = listener.getsockname()[:2]
        print(f"\n  Playground ready:  http://{'127.0.0.1' if host == '0.0.0.0' else host}:{port}/", flush=True)
        print(f"  Ctrl-C stops it. Logs: {shown(self.logs)}/\n", flush=True)
        await asyncio.gather(*(self._keep_running(child) for child in self.children))
        return 0

    async def _wait_redis(self) -> None:
        client = redis.Redis.from_url(config.redis_url, socket_timeout=2)
        deadline = time.monotonic() + START_SECONDS
        while not self.stopping.is_set():
            try:
                client.ping()
                return
            except redis.RedisError as error:
                if self.children and not self.children[0].running:
                    raise CannotStart(f"The embedded Redis server ended: {self.children[0].last_line()}") from None
                if time.monotonic() > deadline:
                    raise CannotStart(f"Redis at {without_password(config.redis_url)} does not answer: {error}") from None
                await asyncio.sleep(0.05)

    async def _wait_ready(self, worker: Child, web: Child) -> bool:
        """Show the engine's progress until it can answer. False when asked to stop meanwhile."""
        from playground import engine_client, streams

        progress = Progress()
        while not self.stopping.is_set():
            for child in (worker, web):
                if not child.running:
                    raise CannotStart(f"The {child.name} ended: {child.last_line()} (log: {shown(child.log)})")
            engines = [e for report in streams.workers().values() for e in report["engines"]]
            failed = next((e for e in engines if e["state"] == "failed"), None)
            if failed:
                progress.end()
                raise CannotStart(f"The model '{failed['model']}' cannot run: {failed['detail']}")
            if engines and all(card.ready for card in engine_client.model_cards()):
                progress.end()
                return True
            if engines:
                slowest = min(engines, key=lambda e: e["fraction"])
                progress.show(slowest["fraction"], slowest["detail"])
            else:
                progress.show(0.0, "Starting the engine")
            await asyncio.sleep(0.1)
        return False

    async def _keep_running(self, child: Child) -> None:
        """Restart a child that ends by itself, with growing pauses."""
        failures = 0
        while not self.stopping.is_set():
            started = time.monotonic()
            ended = asyncio.create_task(child.process.wait())
            stop = asyncio.create_task(self.stopping.wait())
            await asyncio.wait({ended, stop}, return_when=asyncio.FIRST_COMPLETED)
            stop.cancel()
            if self.stopping.is_set():
                return
            failures = failures + 1 if time.monotonic() - started < 60 else 0
            pause = RESTART_SECONDS[min(failures, len(RESTART_SECONDS) - 1)]
            print(f"The {child.name} ended ({child.process.returncode}); starting it again.", file=sys.stderr, flush=True)
            await asyncio.sleep(pause)
            if not self.stopping.is_set():
                await child.start()

    def _on_signal(self) -> None:
        self._signals += 1
        self.stopping.set()
        if self._signals > 1:  # asked twice: at once
            for child in self.children:
                child.kill()

    async def _stop_all(self) -> None:
        """Web first (nothing new comes in), then the worker (ends its generations and stores them), Redis last."""
        if self._signals:
            print("Stopping.", flush=True)
        for child in self.children:
            await child.stop(STOP_SECONDS)
        url_file(config.data_dir).unlink(missing_ok=True)


class Progress:
    """A bar on a terminal, a line for every quarter elsewhere."""

    def __init__(self):
        self._terminal = sys.stdout.isatty()
        self._shown: int | None = None

    def show(self, fraction: float, detail: str) -> None:
        if self._terminal:
            filled = round(30 * fraction)
            print(f"\r\033[K  [{'#' * filled}{'.' * (30 - filled)}] {fraction:4.0%}  {detail[:60]}", end="", flush=True)
        elif self._shown is None or int(4 * fraction) > self._shown:
            print(f"  {fraction:4.0%}  {detail}", flush=True)
        self._shown = max(int(4 * fraction), self._shown or 0)

    def end(self) -> None:
        if self._terminal and self._shown is not None:
            print("\r\033[K", end="", flush=True)


def prepare_database() -> None:
    """Django in this process, and the migrations."""
    import django
    from django.core.management import call_command

    os.environ["DJANGO_SETTINGS_MODULE"] = "playground.settings"
    django.setup()
    from django.db import DatabaseError

    try:
        call_command("migrate", verbosity=0, interactive=False)
    except DatabaseError as error:
        raise CannotStart(f"The database cannot be used: {str(error).splitlines()[0]}") from None


def daphne(listener: socket.socket) -> list[str]:
    """The web server's module and arguments; it takes over our listening socket, so a restart refuses nobody."""
    limit = str(MAX_FRAME_BYTES)
    sizes = ["--websocket-max-message-size", limit, "--websocket-max-frame-size", limit]
    return ["daphne", "--fd", str(listener.fileno()), *sizes, "--verbosity", "1", "playground.asgi:application"]


def listen(host: str, port: int | None) -> socket.socket:
    """A listening socket on ``port``, or on 8000 or the next free one. Raises CannotStart when the port asked for is taken."""
    candidates = range(FIRST_PORT, FIRST_PORT + PORTS_TRIED) if port is None else [port]
    for candidate in candidates:
        listener = socket.socket()
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            listener.bind((host, candidate))
            listener.listen(512)
            return listener
        except OSError as error:
            listener.close()
            if error.errno == errno.EADDRINUSE:
                continue
            raise CannotStart(f"Cannot listen on {host}:{candidate}: {error.strerror}.") from None
    if port is None:
        raise CannotStart(f"Ports {FIRST_PORT} to {FIRST_PORT + PORTS_TRIED - 1} are taken. Choose another: PORT=9000 make run")
    raise CannotStart(f"Port {port} is taken. Choose another, or leave PORT unset to take the next free one.")


def check_disk(folder: Path) -> None:
    try:
        folder.mkdir(parents=True, exist_ok=True)
        free = shutil.disk_usage(folder).free
    except OSError as error:
        raise CannotStart(f"DATA_DIR {folder} cannot be used: {error.strerror}.") from None
    if free < FREE_BYTES_NEEDED:
        raise CannotStart(f"The disk of {folder} has {free / 1e6:.0f} MB free; {FREE_BYTES_NEEDED / 1e6:.0f} MB are needed.")


def lock(folder: Path):
    """One playground for one data folder."""
    file = (folder / "lock").open("a+")
    try:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        raise CannotStart(f"A playground already runs with DATA_DIR {shown(folder)}.") from None
    return file


def shown(path: Path) -> str:
    return os.path.relpath(path)
