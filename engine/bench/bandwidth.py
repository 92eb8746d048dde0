"""What one GPU reads at most: the denominator of MBU beside the datasheet."""

import torch
import triton
import triton.language as tl


@triton.jit
def _read(source, out, n, PROGRAMS: tl.constexpr, BLOCK: tl.constexpr):
    """Every program reads its share of n blocks of BLOCK 16-bit words and keeps one sum, so that no load is removed."""
    pid = tl.program_id(0)
    acc = tl.full([BLOCK], 0, tl.int32)
    for i in tl.range(pid, n, PROGRAMS, num_stages=3):
        acc += tl.load(source + i.to(tl.int64) * BLOCK + tl.arange(0, BLOCK)).to(tl.int32)
    tl.store(out + pid, tl.sum(acc, 0))


def read_bandwidth(device: torch.device, size: int = 4 << 30) -> float:
    """Bytes/s of a pure read of ``size`` bytes (several times the L2 cache; less when memory is short): best of two grids, median of 7."""
    free, _ = torch.cuda.mem_get_info(device)
    block = 16384
    n = max(1, min(size, free // 2) // (2 * block))
    # random, not zero: memory that compresses or does not toggle reads faster than real weights
    piece = torch.randint(-32768, 32767, (block,), dtype=torch.int16, device=device)
    source = piece.repeat(n)
    units = torch.cuda.get_device_properties(device).multi_processor_count
    out = torch.zeros(4 * units, dtype=torch.int32, device=device)
    best = 0.0
    for programs in (units, 2 * units):
        times = [_timed(lambda p=programs: _read[(p,)](source, out, n, p, block, num_warps=16)) for _ in range(9)][2:]
        best = max(best, n * block * 2 / sorted(times)[3])
    return best


def _timed(launch) -> float:
    """Seconds on the GPU."""
    start, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
    start.record()
    launch()
    end.record()
    end.synchronize()
    return start.elapsed_time(end) / 1000
