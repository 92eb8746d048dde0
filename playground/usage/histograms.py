"""Fixed log-scale histograms: buckets 5 % wide, so a percentile read from one is within 2.5 % of the true value."""

import math
from collections.abc import Iterable

BASE = 1.05
_LOG = math.log(BASE)
_MIN = 0.001  # smaller values count as this


def bucket_of(value: float) -> int:
    return math.floor(math.log(max(value, _MIN)) / _LOG)


def lower_edge(bucket: int) -> float:
    return BASE**bucket


def merge(into: dict[str, int], histogram: dict[str, int]) -> None:
    """Adds a stored histogram, whose keys are bucket numbers as text."""
    for bucket, count in histogram.items():
        into[bucket] = into.get(bucket, 0) + count


def merged(histograms: Iterable[dict[str, int]]) -> dict[int, int]:
    out: dict[str, int] = {}
    for histogram in histograms:
        merge(out, histogram)
    return {int(bucket): count for bucket, count in out.items()}


def percentile(histogram: dict[int, int] | dict[str, int], share: float) -> float | None:
    """The value below which ``share`` (0 to 1) of the entries lie; None without entries."""
    total = sum(histogram.values())
    if not total:
        return None
    wanted, seen = share * total, 0
    for bucket in sorted(histogram, key=int):
        count = histogram[bucket]
        if seen + count >= wanted:
            return lower_edge(int(bucket)) * BASE ** ((wanted - seen) / count)
        seen += count
    raise AssertionError("shares end at 1")


def rebinned(histogram: dict[int, int], edges: list[float]) -> list[int]:
    """Entries between successive ``edges`` by bucket centre; the first and last take what lies outside."""
    counts = [0] * (len(edges) - 1)
    for bucket, count in histogram.items():
        centre = lower_edge(bucket) * BASE**0.5
        at = next((i for i, edge in enumerate(edges[1:]) if centre < edge), len(counts) - 1)
        counts[at] += count
    return counts
