"""Memory of this worker's devices for the heartbeat: the cards' own where there are cards, else this machine's."""

import subprocess
import time

import psutil

PAUSE_SECONDS = 5.0  # between two readings of the cards
_QUERY = ["nvidia-smi", "--query-gpu=memory.used,memory.total", "--format=csv,noheader,nounits"]


class DeviceMemory:
    """``of(gpus)`` gives {"used", "total"} in bytes; for the CPU what this process and its children hold of the machine's memory."""

    def __init__(self):
        self._cards: list[tuple[int, int]] = []
        self._read_at = -PAUSE_SECONDS

    def of(self, gpus: tuple[int, ...]) -> dict[str, int] | None:
        if not gpus:
            me = psutil.Process()
            held = sum(_rss(process) for process in [me, *me.children(recursive=True)])
            return {"used": held, "total": psutil.virtual_memory().total}
        if time.monotonic() - self._read_at >= PAUSE_SECONDS:
            self._cards, self._read_at = _read_cards(), time.monotonic()
        if max(gpus) >= len(self._cards):
            return None
        chosen = [self._cards[i] for i in gpus]
        return {"used": sum(used for used, _ in chosen), "total": sum(total for _, total in chosen)}


def _rss(process: psutil.Process) -> int:
    try:
        return process.memory_info().rss
    except psutil.Error:  # it has ended meanwhile
        return 0


def _read_cards() -> list[tuple[int, int]]:
    """(used, total) in bytes for each card; [] when the driver's tool does not answer."""
    try:
        text = subprocess.run(_QUERY, capture_output=True, text=True, timeout=3, check=True).stdout
        return [tuple(int(value) * 2**20 for value in line.split(",")) for line in text.splitlines()]
    except (OSError, subprocess.SubprocessError, ValueError):
        return []
