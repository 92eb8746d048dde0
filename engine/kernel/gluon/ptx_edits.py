"""Edits of the PTX between Triton and the assembler, and which kernel has which of them."""

import hashlib
import re
from collections import Counter
from contextlib import contextmanager
from pathlib import Path

DIGEST = hashlib.sha256(Path(__file__).read_bytes()).hexdigest()[:16]  # of this file: part of every plan, and so of Triton's cache keys


@contextmanager
def edited_ptx(plan):
    """Kernels of a ``Plan`` compiled inside have their PTX edited. Launches belong inside too: newer Triton looks them up by the hook."""
    from triton import knobs

    edits = (without_barriers,)
    if plan.ranks == 1:  # more spills in kernels of several ranks (Laneformer on four: 192 -> 344 bytes of stack)
        edits += (descriptors_once_a_warp if plan.head_size < 128 else weight_descriptors_once_a_warp,)
    if plan.evict_first:
        edits += (weights_leave_cache_first,)

    def edit(ptx: str) -> str:
        for change in edits:
            ptx = change(ptx)
        return ptx

    def hook(backend=None, stages=None, options=None, language=None, capability=None):
        if stages is None:  # newer Triton asks for what belongs into its cache key
            return plan.edits, plan.edits
        inner = stages["ptx"]
        stages["ptx"] = lambda source, metadata: edit(inner(source, metadata))

    previous = knobs.runtime.add_stages_inspection_hook
    knobs.runtime.add_stages_inspection_hook = hook
    try:
        yield
    finally:
        knobs.runtime.add_stages_inspection_hook = previous


BARRIERS_OFF = re.compile(r"// barriers off\n.*?// barriers on\n", re.S)  # flags.barriers_off
BARRIER = re.compile(r"^\s*(?:bar|barrier)\.(?:cta\.)?sync(?:\.aligned)?\s[^;]*;\n", re.M)


def without_barriers(ptx: str) -> str:
    """Take the barriers out of the marked parts."""
    return BARRIERS_OFF.sub(lambda part: BARRIER.sub("", part[0]), ptx)


# descriptor of a tile: an address of 14 bits and constants from bit 32 on
DESCRIPTOR = re.compile(r"(?:add\.s64|or\.b64)\s+(%rd\d+), (%rd\d+), (-?\d{18,20});")
ADDRESS = re.compile(r"cvt\.u64\.u32\s+(%rd\d+), (%r\d+);")
SIXTEENTHS = re.compile(r"bfe\.u32\s+(%r\d+), (%r\d+), 4, 14;")
OFFSET = re.compile(r"add\.s32\s+(%r\d+), (%r\d+), (\d+);")
RESULT = re.compile(r"^\s*(?:@!?%p\d+ )?[a-z][\w.:]*\s+(%rd?\d+),", re.M)


def weight_descriptors_once_a_warp(ptx: str) -> str:
    """``descriptors_once_a_warp`` for weights and their inputs only, for wide heads, with which attention's leave no register free."""
    return descriptors_once_a_warp(ptx, (1,))


def descriptors_once_a_warp(ptx: str, kinds: tuple[int, ...] = (1, 2)) -> str:
    """Make the descriptors of the tiles that are multiplied from one address for each run of tiles, of which the compiler knows that it is alike in all
    threads of a warp. Else it may compute every descriptor in every thread: a third of all instructions between two products. kinds: top two bits of the
    descriptors to make so, 1 of tiles of 128 bytes a row, 2 of 64.

    A register that is made in several places (``made``) says nothing about an address that it is a part of."""
    made = Counter(RESULT.findall(ptx))
    offsets = {to: (base, int(k)) for to, base, k in OFFSET.findall(ptx) if made[to] == made[base] == 1}
    places = {to: offsets.get(of, (of if made[of] == 1 else to, 0)) for to, of in SIXTEENTHS.findall(ptx)}  # (register, bytes from it)
    places = {to: (of, *places[of]) for to, of in ADDRESS.findall(ptx) if of in places and made[of] == made[to] == 1}
    first: dict[tuple, tuple[str, int]] = {}  # descriptor and its bytes, by register and upper half

    def descriptor(found: re.Match) -> str:
        high, low = divmod(int(found[3]) % 2**64, 2**32)
        if found[2] not in places or low >= 64 or high >> 30 not in kinds:
            return found[0]
        address, register, offset = places[found[2]]
        offset += 16 * low
        if (register, high) in first:
            base, start = first[register, high]
            return f"add.s64 {found[1]}, {base}, {(offset - start) // 16};"
        if low == 0 and made[found[1]] == 1:
            first[register, high] = found[1], offset
        alike = f"{{ .reg .b32 alike; .reg .b64 wide; redux.sync.or.b32 alike, {address}, -1; cvt.u64.u32 wide, alike; "
        return f"{alike}{'add.s64' if low else 'or.b64'} {found[1]}, wide, {found[3]}; }}"

    lines = []
    for line in ptx.splitlines(keepends=True):
        if line.startswith("$"):  # a label: what was made before it need not have been made
            first.clear()
        lines.append(DESCRIPTOR.sub(descriptor, line))
    return "".join(lines)


BULK_COPY = re.compile(r"(@%p\d+ )?(cp\.async\.bulk\.tensor\.2d\.shared::(?:cluster|cta)\.global\.mbarrier::complete_tx::bytes)( [^;]*);")
EVICT_FIRST = "0x12F0000000000000"  # createpolicy.fractional.L2::evict_first, fraction 1


def weights_leave_cache_first(ptx: str) -> str:
    """Give the bulk copies the evict-first policy: weights are read once a token, while code, norms and activations are read by every CTA."""
    return BULK_COPY.sub(rf"{{ .reg .b64 once; mov.b64 once, {EVICT_FIRST}; \1\2.L2::cache_hint\3, once; }}", ptx)
