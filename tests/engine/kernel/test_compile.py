"""The portable kernel compiled for GPUs that are not here: registers, spills, asynchronous copies, matrix units, polls."""

import re
import subprocess
from pathlib import Path

import pytest
import triton
from triton.backends.compiler import GPUTarget
from triton.compiler import ASTSource

from engine.kernel.portable.kernel import monokernel
from engine.kernel.portable.path import shape_of
from engine.kernel.portable.shape import Buffers
from engine.shapes import SHAPES
from engine.weights import Shard

INTEGERS = ("ring", "status", "stop_word", "error", "device", "barrier", "ints", "kinds", "best_id", "arrived")
LONGS = ("table", "trace", "peers", "inbox")
WEIGHTS = ("embedding", "head", "k_cache", "v_cache", "rows_n", "rows_q", "rows_a", "rows_gated")
SPILL_BYTES = 160  # addresses that live through the whole kernel; none lies in a loop over weights
SHARED_BYTES = 232_448  # what a Hopper program may use


def pointer_type(name: str, weight_type: str) -> str:
    if name in INTEGERS:
        return "*i32"
    if name in LONGS:
        return "*i64"
    return f"*{weight_type}" if name in WEIGHTS else "*fp32"


def compile_for(model: str, target: GPUTarget, programs: int, weight_type: str, shard: Shard = Shard()):  # noqa: B008
    """The compiled kernel of a named shape, as a launch on that device would compile it."""
    nvidia = target.backend == "cuda"
    shape = shape_of(SHAPES[model], 4096, programs, 128, nvidia, shard)
    buffers = Buffers(**{name: pointer_type(name, weight_type) for name in Buffers._fields})
    scalars = dict.fromkeys(("start", "n_prefill", "decoding", "token", "position", "logits_stride", "tick"), "i32")
    signature = {"B": buffers, "ids": "*i32", "all_logits": "*fp32", "forced": "*i32", **scalars, "C": "constexpr", "ALL": "constexpr"}
    aligned = [["tt.divisibility", 16]]
    attributes = {(0, field): aligned for field in range(len(Buffers._fields))} | {(i,): aligned for i in (1, 2, 3)}
    constants = {(11,): shape, (12,): False}
    return triton.compile(ASTSource(monokernel, signature, constants, attributes), target=target, options={"num_warps": shape.warps})


@pytest.fixture(scope="module")
def hopper():
    return compile_for("laneformer-2b", GPUTarget("cuda", 90, 32), 132, "fp16")


def test_hopper_resources(hopper, tmp_path: Path):
    cubin = tmp_path / "kernel.cubin"
    cubin.write_bytes(hopper.asm["cubin"])
    tool = Path(triton.__file__).parent / "backends/nvidia/bin/cuobjdump"
    usage = subprocess.run([tool, "--dump-resource-usage", cubin], capture_output=True, text=True, check=True).stdout
    registers, stack = (int(re.search(rf"{word}:(\d+)", usage)[1]) for word in ("REG", "STACK"))
    assert registers <= 255
    assert stack <= SPILL_BYTES, usage
    assert hopper.metadata.shared <= SHARED_BYTES


def test_hopper_streams_weights_asynchronously_and_uses_matrix_units(hopper):
    functions = re.split(r"^\.(?:visible \.entry|func)", hopper.asm["ptx"], flags=re.MULTILINE)
    gemv = [body for body in functions if "gemv_$_gemv" in body.split("{")[0] and "cp.async" in body]
    assert len(gemv) >= 4  # QKV, output, gate and up, down
    assert all("cp.async.cg.shared.global" in body for body in gemv)  # 16-byte copies
    assert hopper.asm["ptx"].count("wgmma.mma_async") >= 16


def test_polls_hold_no_barrier(hopper):
    polls = re.findall(r"POLL:(.*?)bra POLL;", hopper.asm["ptx"], flags=re.DOTALL)
    assert polls
    assert all("ld.acquire.gpu" in poll and "bar." not in poll and "setp.lt.u32" in poll for poll in polls)


def test_a_rank_of_two_pushes_and_reads_whole_words():
    kernel = compile_for("tiny", GPUTarget("cuda", 90, 32), 132, "fp16", Shard(1, 2))
    text = kernel.asm["ptx"]
    assert len(re.findall(r"ld\.volatile\.global(?:\.v2)?\.[bu]64", text)) > 20  # past the L1 cache, never torn
    assert len(re.findall(r"st\.global(?:\.v2)?\.[bu]64", text)) > 20
    assert "multimem" not in text
    assert kernel.metadata.shared <= SHARED_BYTES


def test_amd_compiles_without_spills_in_its_memory():
    kernel = compile_for("llama-3.2-1b", GPUTarget("hip", "gfx942", 64), 304, "bf16")
    text = kernel.asm["amdgcn"]
    assert "v_mfma" in text
    assert re.findall(r"\.vgpr_spill_count: +(\d+)", text) == ["0"]
    assert max(map(int, re.findall(r"ScratchSize: (\d+)", text))) <= 512  # registers that called functions save
    assert kernel.metadata.shared <= 65_536
