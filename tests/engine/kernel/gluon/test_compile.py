"""What the compiler makes of the Gluon kernel for sm_90, checked without a GPU."""

import importlib.util
import re
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

import pytest
import torch

pytest.importorskip("triton")

from engine.kernel.gluon import ptx_edits
from engine.kernel.gluon.plan import make_plan, unsupported
from engine.shapes import SHAPES
from engine.weights import Shard
from tests.engine.kernel.gluon.compiling import compile_decode, disassemble

SHARED_LIMIT = 232_448
# shape, weights, whether it draws (top-k, top-p), ranks: bytes of stack at most, under Triton 3.6.0 and 3.7.1
CASES = {
    ("smollm2-135m", torch.bfloat16, False, 1): 0,
    ("smollm2-135m", torch.float16, True, 1): 128,
    ("llama-3.2-1b", torch.bfloat16, False, 1): 96,  # head size 64
    ("laneformer-2b", torch.float16, False, 1): 128,  # lanes, head size 96
    ("llama-3.2-3b", torch.bfloat16, False, 1): 320,  # head size 128
    ("qwen2.5-coder-7b", torch.bfloat16, False, 1): 96,  # head size 128, biases, 7 query heads per KV head
    ("laneformer-2b", torch.float16, False, 2): 160,
    ("laneformer-2b", torch.float16, False, 4): 320,
    ("laneformer-2b", torch.float16, False, 8): 256,  # one lane per rank
}


def case_name(case) -> str:
    shape, dtype, draws, ranks = case
    return f"{shape}-{dtype}-{'draws' if draws else 'greedy'}-{ranks}".replace("torch.", "")


@pytest.fixture(scope="module", params=CASES, ids=case_name)
def compiled(request, tmp_path_factory):
    shape, dtype, draws, ranks = request.param
    plan = replace(make_plan(SHAPES[shape], 2048, 132, shard=Shard(ranks - 1, ranks)), draws=draws)
    kernel = compile_decode(plan, dtype)
    sass, usage = disassemble(kernel.asm["cubin"], tmp_path_factory.mktemp("cubin") / "decode.cubin")
    return kernel, sass, usage, CASES[request.param]


def test_resources(compiled):
    kernel, _, usage, stack_limit = compiled
    registers, stack, local = (int(re.search(rf"{name}:(\d+)", usage)[1]) for name in ("REG", "STACK", "LOCAL"))
    assert registers <= 255
    assert stack <= stack_limit and local == 0
    assert kernel.metadata.shared <= SHARED_LIMIT


def multiplications(sass: str) -> list[list[str]]:
    """Instructions of every innermost loop that multiplies, and of every stretch outside of those from a first multiplication to a last:
    fewer than 100 instructions lie between two."""
    code = [(int(address, 16), text) for address, text in re.findall(r"/\*([0-9a-f]{4,})\*/\s+(.*?);", sass)]
    jumps = [(address, re.search(r"\bBRA\b.*?0x([0-9a-f]+)", text)) for address, text in code]
    loops = sorted((int(to[1], 16), address) for address, to in jumps if to and int(to[1], 16) < address)
    inner = [(start, end) for start, end in loops if not any(start <= s and e <= end and (s, e) != (start, end) for s, e in loops)]
    found = [address for address, text in code if "HGMMA.64x" in text]
    places = [(start, end) for start, end in inner if any(start <= address <= end for address in found)]
    alone = [address for address in found if not any(start <= address <= end for start, end in places)]
    stretches: list[tuple[int, int]] = []
    for address in alone:
        if stretches and address - stretches[-1][1] < 100 * 16:
            stretches[-1] = (stretches[-1][0], address)
        else:
            stretches.append((address, address))
    return [[text for address, text in code if start <= address <= end] for start, end in places + stretches]


def test_weights_are_multiplied_without_spills(compiled):
    _, sass, _, _ = compiled
    phases = multiplications(sass)
    assert len(phases) >= 5  # QKV, attention, O, gate and up, down, the head
    assert not [text for phase in phases for text in phase if re.match(r"(@\S+ )?(LDL|STL)", text)]


def test_loops_over_weights_hold_one_barrier(compiled):
    """The one before a pair of slots is given back."""
    _, sass, _, _ = compiled
    loops = [phase for phase in multiplications(sass) if "BRA" in phase[-1] and not any("HGMMA.64x64" in text for text in phase)]
    assert loops  # in small models the head only
    assert [sum("BAR.SYNC" in text for text in loop) for loop in loops] == [1] * len(loops)


def test_weights_come_by_bulk_copies(compiled):
    kernel, sass, _, _ = compiled
    asked = re.findall(r"cp\.async\.bulk\.tensor\.2d\.shared::\S+", kernel.asm["ptx"])
    made = re.findall(r"UTMALDG\.2D[^;]*;", sass)
    assert asked and made
    assert all(".mbarrier::complete_tx::bytes.L2::cache_hint" in copy for copy in asked)  # the weights are evicted first
    assert all("desc[" in copy for copy in made)


def test_no_product_is_joined_with_a_sum_that_the_source_keeps_apart(compiled):
    """Every sum and product says how it is rounded, so that the assembler joins none either: kernels of 1 and N ranks then round alike."""
    kernel, _, _, _ = compiled
    ptx = kernel.asm["ptx"]
    assert re.search(r"\badd\.rn\.f32", ptx) and re.search(r"\bmul\.rn\.f32", ptx)
    assert not re.findall(r"\b(?:add|sub|mul)(?:\.ftz|\.sat)*\.(?:f16|f16x2|bf16|bf16x2|f32|f32x2|f64)\b", ptx)
    assert "fma.rn.f32" in ptx  # those of the source: the norms' squares, the softmax, the sum over splits


def test_counters_are_compared_unsigned():
    from engine.kernel.gluon.flags import count_asm

    for counters in (1, 2):
        asm = getattr(count_asm(counters), "value", count_asm(counters))
        compared = re.findall(r"setp\.ge\.(?:and\.)?(\w+) q, c\d", asm)
        assert compared == ["u32"] * counters


def test_polls_hold_no_barrier(compiled):
    """Between a load and the jump back to it lies no CTA barrier: threads wait for their own values only."""
    kernel, _, _, _ = compiled
    ptx = kernel.asm["ptx"]
    values = re.findall(r"SPIN:.*?DONE:", ptx, flags=re.S)  # values of other CTAs
    slots = re.findall(r"waitLoop:.*?bra\S* waitLoop", ptx, flags=re.S)  # slots of the ring
    assert len(values) > 10 and len(slots) > 10
    for loop in values + slots:
        assert "bar.sync" not in loop and "barrier.cta" not in loop and "barrier.sync" not in loop
    for loop in values:
        assert "barrier" not in loop
        assert "ld.relaxed.gpu" in loop
        assert "atom.relaxed.gpu.global.cas" in loop  # every wait has a limit that names its place


def test_a_unit_in_registers_gives_its_slot_back_after_a_barrier(compiled, request):
    """``gemv.hold_unit``: all threads have their part then."""
    kernel, _, _, _ = compiled
    shape, _, _, ranks = request.node.callspec.params["compiled"]
    plan = make_plan(SHAPES[shape], 2048, 132, shard=Shard(ranks - 1, ranks))
    given_back = re.findall(r"ldmatrix(?:(?!ldmatrix).)*?mbarrier\.arrive", kernel.asm["ptx"], flags=re.S)
    assert bool(given_back) == (plan.common.holds and plan.all_lanes == 1)
    assert all(re.search(r"\bbar(?:rier)?\.(?:cta\.)?sync", part) for part in given_back)


def test_barriers_are_taken_out_of_marked_parts_only():
    from engine.kernel.gluon.ptx_edits import without_barriers

    kept, out = "bar.sync \t0, 128;\n", "\tbar.sync \t0, 128;\n\tbarrier.sync 1;\n"
    ptx = f"{kept}// barriers off\nmov.u32 %r1, 0;\n{out}add.s32 %r2, %r1, 8;\n// barriers on\nmov.u32 %r3, 0;\n{kept}"
    assert without_barriers(ptx) == ptx.replace(out, "")


def test_descriptors_are_made_once_a_warp_from_the_first_of_a_run_of_tiles():
    from engine.kernel.gluon.ptx_edits import descriptors_once_a_warp, weight_descriptors_once_a_warp

    ptx = """
\tmov.b32 \t%r1, %r9;
\tmov.b32 \t%r5, %r9;
\tmov.b32 \t%r5, %r8;
$L__BB0_1:
\tadd.s32 \t%r2, %r1, 8192;
\tbfe.u32 \t%r3, %r1, 4, 14;
\tcvt.u64.u32 \t%rd1, %r3;
\tbfe.u32 \t%r4, %r2, 4, 14;
\tcvt.u64.u32 \t%rd2, %r4;
\tor.b64 \t%rd3, %rd1, 4611686293305294848;
\tadd.s64 \t%rd4, %rd1, 4611686293305294850;
\tor.b64 \t%rd5, %rd2, 4611686293305294848;
\tadd.s64 \t%rd6, %rd2, 4611686293305294854;
$L__BB0_2:
\tadd.s64 \t%rd7, %rd1, 4611686293305294852;
\tor.b64 \t%rd8, %rd1, -9223372036854775808;
\tadd.s64 \t%rd9, %rd1, 72;
\tadd.s32 \t%r6, %r5, 4096;
\tbfe.u32 \t%r7, %r6, 4, 14;
\tcvt.u64.u32 \t%rd10, %r7;
\tor.b64 \t%rd11, %rd10, 4611686018427387904;
\tbfe.u32 \t%r10, %r5, 4, 14;
\tcvt.u64.u32 \t%rd12, %r10;
\tor.b64 \t%rd13, %rd12, 4611686293305294848;
\tmov.b32 \t%r5, %r7;
\tbfe.u32 \t%r11, %r5, 4, 14;
\tcvt.u64.u32 \t%rd14, %r11;
\tor.b64 \t%rd15, %rd14, 4611686293305294848;
\tadd.s64 \t%rd16, %rd14, 4611686293305294850;
\tadd.s64 \t%rd17, %rd12, 4611686293305294850;
"""
    alike = "{{ .reg .b32 alike; .reg .b64 wide; redux.sync.or.b32 alike, {}, -1; cvt.u64.u32 wide, alike; {}, wide, {}; }}".format
    edited = descriptors_once_a_warp(ptx)
    changed = [new.strip() for old, new in zip(ptx.splitlines(), edited.splitlines(), strict=True) if old != new]
    assert changed == [
        alike("%r3", "or.b64 %rd3", 4611686293305294848),
        "add.s64 %rd4, %rd3, 2;",
        "add.s64 %rd5, %rd3, 512;",  # 8,192 bytes further
        "add.s64 %rd6, %rd3, 518;",
        alike("%r3", "add.s64 %rd7", 4611686293305294852),  # after a label: %rd3 may not have been made
        alike("%r3", "or.b64 %rd8", -9223372036854775808),
        alike("%r7", "or.b64 %rd11", 4611686018427387904),  # %r5 is made in several places: it says nothing about this address
        alike("%r10", "or.b64 %rd13", 4611686293305294848),
        alike("%r11", "or.b64 %rd15", 4611686293305294848),  # %r5 is another one now
        "add.s64 %rd16, %rd15, 2;",
        "add.s64 %rd17, %rd13, 2;",
    ]
    assert weight_descriptors_once_a_warp(ptx).count("redux") == 5  # not the tile of 64 bytes a row


def test_weights_leave_cache_first_edits_bulk_copies_only():
    from engine.kernel.gluon.ptx_edits import weights_leave_cache_first

    copy = "cp.async.bulk.tensor.2d.shared::cluster.global.mbarrier::complete_tx::bytes [%r1], [%rd3, {%r2, %r3}], [%r4];"
    edited = weights_leave_cache_first(f"@%p40 {copy}\nst.global.b32 [%rd1], %r1;")
    assert "@%p40 cp.async.bulk.tensor.2d" in edited and ".L2::cache_hint [%r1], [%rd3, {%r2, %r3}], [%r4], once;" in edited
    assert edited.endswith("st.global.b32 [%rd1], %r1;")


def test_a_changed_edit_compiles_again(tmp_path, monkeypatch):
    """Whatever Triton has on the disk."""
    from triton import knobs

    from engine.kernel.gluon.kernel import decode

    hits = []
    monkeypatch.setenv("TRITON_CACHE_DIR", str(tmp_path / "cache"))
    monkeypatch.setattr(knobs.compilation, "listener", lambda cache_hit, **rest: hits.append(cache_hit))

    def ptx_of(plan) -> str:
        decode.device_caches.clear()  # as in a new process
        return compile_decode(plan, torch.bfloat16).asm["ptx"]

    plan = make_plan(SHAPES["smollm2-135m"], 640, 66)
    ptx = ptx_of(plan)
    assert ptx_of(plan) == ptx
    assert hits == [False, True]

    policy, other = ptx_edits.EVICT_FIRST, "0x14F0000000000000"
    file = tmp_path / "changed_edits.py"
    file.write_text(Path(ptx_edits.__file__).read_text().replace(policy, other))
    spec = importlib.util.spec_from_file_location(file.stem, file)
    changed = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(changed)
    monkeypatch.setattr(ptx_edits, "edited_ptx", changed.edited_ptx)
    assert ptx_of(replace(plan, edits=changed.DIGEST)) == ptx.replace(policy, other)
    assert hits == [False, True, False]


class Built(Exception):
    """The front end has accepted the kernel."""


@contextmanager
def front_end_only(plan):
    """Stands in for ``ptx_edits.edited_ptx``."""
    from triton import knobs

    def built(*arguments):
        raise Built

    def hook(backend=None, stages=None, options=None, language=None, capability=None):
        if stages is None:
            return "front end", "front end"
        stages["ttgir"] = built

    knobs.runtime.add_stages_inspection_hook = hook
    try:
        yield
    finally:
        knobs.runtime.add_stages_inspection_hook = None


@pytest.mark.parametrize("ranks", [3, 6])
def test_layouts_fit_numbers_of_ranks_that_are_no_power_of_two(ranks, monkeypatch):
    """Each rank has 8 or 16 query heads: two or four segments of the output projection's input."""
    config = replace(SHAPES["llama-3.2-1b"], n_heads=48, n_kv_heads=24, ffn_size=6144, vocab_size=24000)
    monkeypatch.setattr(ptx_edits, "edited_ptx", front_end_only)
    assert unsupported(config, 132, Shard(0, ranks)) is None
    with pytest.raises(Built):
        compile_decode(make_plan(config, 1024, 132, shard=Shard(0, ranks)), torch.bfloat16)
