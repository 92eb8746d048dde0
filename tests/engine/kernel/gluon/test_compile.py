"""What the compiler makes of the Gluon kernel for sm_90, checked without a GPU."""

import re

import pytest
import torch

pytest.importorskip("triton")

from engine.kernel.gluon.plan import make_plan
from engine.shapes import SHAPES
from tests.engine.kernel.gluon.compiling import compile_decode, disassemble

SHARED_LIMIT = 232_448


@pytest.fixture(scope="module")
def compiled(tmp_path_factory):
    plan = make_plan(SHAPES["smollm2-135m"], 2048, 132)
    kernel = compile_decode(plan, torch.bfloat16)
    sass, usage = disassemble(kernel.asm["cubin"], tmp_path_factory.mktemp("cubin") / "decode.cubin")
    return kernel, sass, usage


def test_resources(compiled):
    kernel, _, usage = compiled
    registers, stack, local = (int(re.search(rf"{name}:(\d+)", usage)[1]) for name in ("REG", "STACK", "LOCAL"))
    assert registers <= 255
    assert stack == 0 and local == 0  # nothing spilled
    assert kernel.metadata.shared <= SHARED_LIMIT


def test_matrix_units_and_bulk_copies_are_used(compiled):
    _, sass, _ = compiled
    assert "HGMMA.64x" in sass
    copies = re.findall(r"UTMALDG\.2D[^;]*;", sass)
    assert copies, sass[:200]
    assert all("desc[" in copy for copy in copies)  # with a cache policy: the weights are evicted first


def test_polls_hold_no_barrier(compiled):
    """Between a relaxed load and the jump back to it lies no CTA barrier: threads wait for their own values only."""
    kernel, _, _ = compiled
    loops = re.findall(r"SPIN:.*?DONE:", kernel.asm["ptx"], flags=re.S)
    assert len(loops) > 10
    for loop in loops:
        assert "bar.sync" not in loop and "barrier" not in loop
        assert "ld.relaxed.gpu" in loop
        assert "atom.relaxed.gpu.global.cas" in loop  # every wait has a limit that names its place


def test_weights_leave_cache_first_edits_bulk_copies_only():
    from engine.kernel.gluon.path import weights_leave_cache_first

    copy = "cp.async.bulk.tensor.2d.shared::cluster.global.mbarrier::complete_tx::bytes [%r1], [%rd3, {%r2, %r3}], [%r4];"
    edited = weights_leave_cache_first(f"@%p40 {copy}\nst.global.b32 [%rd1], %r1;")
    assert "@%p40 cp.async.bulk.tensor.2d" in edited and ".L2::cache_hint [%r1], [%rd3, {%r2, %r3}], [%r4], once;" in edited
    assert edited.endswith("st.global.b32 [%rd1], %r1;")
