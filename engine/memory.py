"""How much memory is free, and the context that fits into it. Imports torch only to ask a GPU."""

import sys
from pathlib import Path
from typing import TYPE_CHECKING

from engine.config import ModelConfig
from engine.errors import DeviceError

if TYPE_CHECKING:
    import torch

SHARE = 0.5  # of the memory that is free once the weights are loaded; the rest is for activations and for others


def host_free_bytes() -> int:
    """What this process may still take: of the machine, and of its control group (containers) where that has a limit."""
    import psutil  # not needed where the model is on a GPU

    return min(psutil.virtual_memory().available, _group_free_bytes(Path("/proc/self/cgroup"), Path("/sys/fs/cgroup")))


def free_bytes(device: "torch.device") -> int:
    """What may still be taken: of a GPU's memory, or of the host's."""
    if device.type != "cuda":
        return host_free_bytes()
    import torch

    return torch.cuda.mem_get_info(device)[0]


def _group_free_bytes(membership: Path, root: Path) -> float:
    """Limit minus what is used and cannot be dropped; infinity without a limit (or with control groups of version 1)."""
    try:
        path = next(line[3:].strip() for line in membership.read_text().splitlines() if line.startswith("0::"))
        folder = root / path.lstrip("/")
        limit = (folder / "memory.max").read_text().strip()
        used = int((folder / "memory.current").read_text())
        files = dict(line.split() for line in (folder / "memory.stat").read_text().splitlines()).get("inactive_file", "0")
    except (OSError, StopIteration, ValueError):
        return float("inf")
    return float("inf") if limit == "max" else max(0, int(limit) - used + int(files))


def fit_context(config: ModelConfig, asked: int | None, position_bytes: int, free_bytes: int, quiet: bool = False) -> int:
    """The context to make room for: ``asked``, or the model's own, or what fits, which is then said on stderr.

    ``position_bytes``: what one position takes. Raises DeviceError when ``asked`` does not fit, or when nothing does.
    """
    wanted = min(asked or config.context_tokens, config.context_tokens)
    fits = int(free_bytes * SHARE) // position_bytes
    if fits >= wanted:
        return wanted
    room = f"{SHARE:.0%} of the free memory, {free_bytes * SHARE / 1e9:.1f} GB, holds {fits:,}"
    if asked or fits < 1:
        raise DeviceError(f"{config.name}: a context of {wanted:,} tokens takes {wanted * position_bytes / 1e9:,.1f} GB; {room}.")
    if not quiet:
        print(f"engine: {config.name}: a context of {fits:,} of the model's {wanted:,} tokens: {room}.", file=sys.stderr)
    return fits
