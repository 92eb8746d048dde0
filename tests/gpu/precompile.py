"""Compile the kernels of the GPU suite and of the benchmarks on a machine without a GPU, for one whose time is dear.

    TRITON_CACHE_DIR=FOLDER TRITON_STORE_BINARY_ONLY=1 python -m tests.gpu.precompile [SET ...]       (without a SET: all)

The fast path's kernels take 5 to 30 s each. Take FOLDER along and set TRITON_CACHE_DIR there. The cache knows a Triton by its files: with
another build of the same version, ``SAME_TRITON=1 PYTHONPATH=tests/gpu/site`` on both sides lets its kernels through.
"""

import multiprocessing
import os
import sys
import time
from dataclasses import replace

import torch

from engine.config import ModelConfig
from engine.kernel.gluon.path import make_plans
from engine.kernel.gluon.plan import Plan, useful_ctas
from engine.shapes import SHAPES
from engine.weights import Shard
from tests.engine.kernel.gluon.compiling import compile_decode
from tests.gpu import test_gluon, test_gluon_many_ranks, test_gluon_ranks, test_multi_gpu

PROCESSORS = 132  # of an H200
LANEFORMER = replace(SHAPES["laneformer-2b"], dtype="float16")
LLAMA_1B, LLAMA_8B, SMOLLM2 = (SHAPES[name] for name in ("llama-3.2-1b", "llama-3.1-8b", "smollm2-135m"))
Kernel = tuple[Plan, str, bool]  # plan, type of the weights, alone on its GPU


def kernels(config: ModelConfig, context: int, ranks: int = 1, ctas: int | None = None, **options: bool) -> list[Kernel]:
    """Every kernel that ``GluonPath`` compiles for a model; ctas: of each rank where several share a GPU."""
    found = []
    for rank in range(ranks):
        shard = {"shard": Shard(rank, ranks)} if ranks > 1 else {}
        count = ctas or (PROCESSORS if ranks > 1 else useful_ctas(config, PROCESSORS))
        plans = make_plans(config, context, count, **shard, **options)
        found += [(plan, config.dtype, ctas is None) for plan in dict.fromkeys(plans.values())]
    return found


def of_suite() -> dict[str, list[Kernel]]:
    """By test module."""
    many = test_gluon_many_ranks
    two = [test_gluon_ranks.LANEFORMER, test_gluon_ranks.NO_SUMS_AT_ONCE, test_gluon_ranks.LLAMA]
    multi = [LANEFORMER, replace(LLAMA_1B, dtype="bfloat16")]
    return {
        "test_gluon": [k for config, _ in test_gluon.MODELS.values() for k in kernels(config, 1024)]
        + kernels(SHAPES["laneformer-2b"], 1024),
        "test_gluon_ranks": [k for config in two for ranks in (1, 2) for k in kernels(config, 1024, ranks)],
        "test_gluon_many_ranks": kernels(many.MODEL, many.CONTEXT)
        + [k for ranks, ctas in many.CTAS.items() for k in kernels(many.MODEL, many.CONTEXT, ranks, ctas)],
        "test_monokernel": kernels(LANEFORMER, LANEFORMER.context_tokens) + kernels(replace(LLAMA_1B, dtype="bfloat16"), 1024),
        "test_multi_gpu": [k for config in multi for ranks in (1, 2) for k in kernels(config, test_multi_gpu.CONTEXT, ranks)],
        "test_smollm2": [k for dtype in ("float16", "bfloat16") for k in kernels(replace(SMOLLM2, dtype=dtype), SMOLLM2.context_tokens)],
    }


def of_benchmarks() -> dict[str, list[Kernel]]:
    """Prompt of 128 tokens and 512 made, with and without the profile, and the long contexts."""
    models = {"laneformer": (LANEFORMER, 1), "laneformer-2": (LANEFORMER, 2), "llama-1b": (LLAMA_1B, 1), "smollm2": (SMOLLM2, 1)}
    models |= {"llama-8b": (LLAMA_8B, 1), "llama-8b-2": (LLAMA_8B, 2)}
    found = {f"bench-{name}": kernels(config, 640, ranks) for name, (config, ranks) in models.items()}
    found |= {f"profile-{name}": kernels(config, 640, ranks, profile=True) for name, (config, ranks) in models.items()}
    return found | {f"long-{ranks}": [k for n in (1512, 4012) for k in kernels(LANEFORMER, n, ranks)] for ranks in (1, 2)}


def compile_one(kernel: Kernel) -> str:
    plan, dtype, alone = kernel
    began = time.monotonic()
    compile_decode(plan, getattr(torch, dtype), launch_cooperative_grid=alone)
    rank = f", rank {plan.rank} of {plan.ranks}" if plan.ranks > 1 else ""
    what = f"{plan.layers} layers of {plan.hidden}, {dtype}, context {plan.context}{rank}, draws {plan.draws}, profile {plan.profile}"
    return f"{what}: {time.monotonic() - began:.1f} s"


def main(names: list[str]) -> None:
    sets = of_suite() | of_benchmarks()
    unknown = [name for name in names if name not in sets]
    if unknown or "TRITON_CACHE_DIR" not in os.environ:
        sys.exit(f"Set TRITON_CACHE_DIR. Sets: {' '.join(sets)}" + (f"; unknown: {' '.join(unknown)}" if unknown else ""))
    wanted = list(dict.fromkeys(kernel for name in names or sets for kernel in sets[name]))
    with multiprocessing.get_context("spawn").Pool(os.cpu_count(), maxtasksperchild=1) as pool:
        for done, line in enumerate(pool.imap_unordered(compile_one, wanted), 1):
            print(f"{done}/{len(wanted)} {line}", flush=True)


if __name__ == "__main__":
    main(sys.argv[1:])
