"""What the GPUs of this machine can read at most, by their datasheets."""

from dataclasses import dataclass
from pathlib import Path

# Peak memory bandwidth in bytes/s, by a part of the name that the driver reports; the first match counts.
DATASHEET_BYTES_PER_S = (
    ("H200", 4.8e12),
    ("H100 NVL", 3.9e12),
    ("H100 PCIe", 2.0e12),
    ("H100", 3.35e12),
    ("GH200", 4.0e12),
    ("B200", 8.0e12),
    ("A100-SXM4-40GB", 1.555e12),
    ("A100-PCIE-40GB", 1.555e12),
    ("A100", 2.039e12),
    ("L40S", 0.864e12),
    ("L4", 0.3e12),
    ("RTX 5090", 1.792e12),
    ("RTX 4090", 1.008e12),
    ("RTX 3090", 0.936e12),
    ("MI355X", 8.0e12),
    ("MI325X", 6.0e12),
    ("MI300X", 5.3e12),
)


@dataclass(frozen=True)
class Gpu:
    """``memory`` in bytes; ``datasheet_bytes_per_s`` is None for a card that the table does not know."""

    name: str
    memory: int
    datasheet_bytes_per_s: float | None


def datasheet_bytes_per_s(name: str) -> float | None:
    """Peak memory bandwidth of one GPU of this name."""
    return next((speed for part, speed in DATASHEET_BYTES_PER_S if part in name), None)


def gpus() -> list[Gpu]:
    """The GPUs that torch sees; [] without one."""
    import torch

    if not torch.cuda.is_available():
        return []
    found = [torch.cuda.get_device_properties(index) for index in range(torch.cuda.device_count())]
    return [Gpu(gpu.name, gpu.total_memory, datasheet_bytes_per_s(gpu.name)) for gpu in found]


def driver() -> str | None:
    """The NVIDIA driver's version, from the file that its kernel module offers."""
    try:
        words = Path("/proc/driver/nvidia/version").read_text().split()
    except OSError:
        return None
    return next((word for word in words if word.count(".") >= 1 and word.replace(".", "").isdigit()), None)
