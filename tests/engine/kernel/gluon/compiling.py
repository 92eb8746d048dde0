"""Compile the Gluon kernel for sm_90 on a machine without a GPU."""

from contextlib import contextmanager

import torch

from engine.kernel.gluon.plan import Plan


class _Driver:
    """What Triton asks of a driver before a launch: a Hopper target."""

    class utils:
        @staticmethod
        def get_device_properties(device):
            return {"max_shared_mem": 232_448, "multiprocessor_count": 132, "warpSize": 32, "max_num_regs": 65_536}

        @staticmethod
        def load_binary(*args):
            return 0, 0, 0, 0, 1024

    class launcher_cls:
        def __init__(self, *args, **kwargs):
            pass

    def get_current_target(self):
        from triton.backends.compiler import GPUTarget

        return GPUTarget("cuda", 90, 32)

    def get_current_device(self):
        return 0

    def get_current_stream(self, device=None):
        return 0


@contextmanager
def hopper_target():
    from triton.runtime import driver

    previous = driver._active  # reset_active() would look for a GPU
    driver.set_active(_Driver())
    try:
        yield
    finally:
        driver._active = previous


def compile_decode(plan: Plan, dtype: torch.dtype, **options: bool):
    """Triton's compiled kernel for a plan and further launch options; the buffers are stand-ins that have a type only."""
    from triton.experimental.gluon import language as gl
    from triton.experimental.gluon.nvidia.hopper import TensorDescriptor
    from triton.runtime.jit import MockTensor

    from engine.kernel.gluon.kernel import decode
    from engine.kernel.gluon.path import COMPILE_OPTIONS
    from engine.kernel.gluon.ptx_edits import edited_ptx

    def buffer(kind):
        return MockTensor(kind)

    weights = TensorDescriptor(
        torch.empty(64, 64, dtype=dtype),
        [plan.units * plan.boxes * 64, 64],
        [64, 1],
        [64, 64],
        gl.NVMMASharedLayout(swizzle_byte_width=128, element_bitwidth=16, rank=2),
    )
    cache = TensorDescriptor(
        torch.empty(64, plan.head_size, dtype=dtype),
        [plan.layers * plan.kv_heads * plan.context, plan.head_size],
        [plan.head_size, 1],
        [64, 32],
        gl.NVMMASharedLayout(swizzle_byte_width=64, element_bitwidth=16, rank=2),
    )
    kinds = [dtype, torch.float32, torch.float32, torch.int64, torch.int64, torch.int64, torch.int32, torch.int32, dtype, dtype]
    kinds += [torch.float32, torch.float32, dtype, dtype, dtype, torch.float32, torch.int32, torch.float32]
    kinds += [torch.int32, torch.int32, torch.int32, torch.int32, torch.int64]
    with hopper_target(), edited_ptx(plan):
        others = (buffer(torch.float32), buffer(torch.int64), buffer(torch.int32), 7)
        return decode.warmup(
            weights, cache, cache, *map(buffer, kinds), 5, 127, *others, plan, grid=(plan.ctas,), **COMPILE_OPTIONS, **options
        )


def disassemble(cubin: bytes, path) -> tuple[str, str]:
    """(SASS, resource usage) of a cubin; ``path`` is a file to write."""
    import subprocess
    from pathlib import Path

    import triton

    tool = Path(triton.__file__).parent / "backends/nvidia/bin/cuobjdump"
    path.write_bytes(cubin)
    return tuple(
        subprocess.run([tool, option, path], capture_output=True, text=True, check=True).stdout
        for option in ("-sass", "--dump-resource-usage")
    )
