"""python -m tests.gpu.ring_overhead full|silent: microseconds a token of a greedy decode launch.

silent: the kernel neither writes the token ring and its count nor reads the stop word. The two need a process each, since Triton
compiles a kernel once.
"""

import sys

import torch
from triton.experimental import gluon

from engine.shapes import SHAPES
from tests.gpu.rank_alone import replace_in_kernel
from tests.gpu.test_gluon import Rig

TOKENS, RUNS = 512, 11


@gluon.jit
def report_token(host, pid, tok, token, state):
    pass


@gluon.jit
def read_stop(host, pid):
    return pid * 0


def main(mode: str) -> None:
    if mode == "silent":
        replace_in_kernel(report_token, read_stop)
    rig = Rig(SHAPES["laneformer-2b"], 128)
    rig.start(TOKENS)
    torch.cuda.synchronize()
    written = rig.control.status[0].item()
    assert written == (TOKENS if mode == "full" else 0), written
    times = []
    for _ in range(RUNS):
        rig.control.reset()
        plan = rig.path.choose_plan(127)
        rig.path.reset(plan)
        begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        begin.record()
        rig.path.decode(plan, rig.prompt[-1], 127)
        end.record()
        torch.cuda.synchronize()
        times.append(begin.elapsed_time(end) / TOKENS * 1000)
    print(sorted(times)[RUNS // 2])


if __name__ == "__main__":
    main(sys.argv[1])
