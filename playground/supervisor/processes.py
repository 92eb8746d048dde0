"""Child processes that never outlive us."""

import asyncio
import ctypes
import os
import signal
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path

PR_SET_PDEATHSIG = 1
_libc = ctypes.CDLL(None) if sys.platform == "linux" else None


def die_with_parent() -> None:
    """Runs in the child before exec: the kernel kills it when the supervisor dies, however that happens (Linux)."""
    if _libc is not None:
        _libc.prctl(PR_SET_PDEATHSIG, signal.SIGKILL)
        if os.getppid() == 1:  # the parent was gone before the call
            os._exit(1)


class Child:
    """One process with its log file. It has its own session, so that Ctrl-C reaches the supervisor alone."""

    def __init__(self, name: str, command: Sequence[str], *, log: Path, env: Mapping[str, str], pass_fds: Sequence[int] = ()):
        self.name = name
        self.log = log
        self.process: asyncio.subprocess.Process | None = None
        self._command, self._env, self._pass_fds = command, env, tuple(pass_fds)

    async def start(self) -> None:
        self.log.parent.mkdir(parents=True, exist_ok=True)
        with self.log.open("ab") as file:
            self.process = await asyncio.create_subprocess_exec(
                *self._command,
                stdin=asyncio.subprocess.DEVNULL,
                stdout=file,
                stderr=file,
                env=dict(self._env),
                pass_fds=self._pass_fds,
                start_new_session=True,
                preexec_fn=die_with_parent,
            )

    @property
    def running(self) -> bool:
        return self.process is not None and self.process.returncode is None

    async def stop(self, grace_seconds: float) -> None:
        """SIGTERM, then SIGKILL to the whole session after ``grace_seconds``."""
        if not self.running:
            return
        self.process.terminate()
        try:
            await asyncio.wait_for(self.process.wait(), grace_seconds)
        except TimeoutError:
            self.kill()
            await self.process.wait()

    def kill(self) -> None:
        if self.running:
            os.killpg(self.process.pid, signal.SIGKILL)

    def last_line(self) -> str:
        """The last line of its log that says something."""
        try:
            lines = self.log.read_text(errors="replace").splitlines()
        except OSError:
            return ""
        return next((line.strip() for line in reversed(lines) if line.strip()), "")
