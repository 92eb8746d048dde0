"""Steps of a CTA, places of its error records, hand-over buffers of running layers, and the profile.

Layers are numbered through all tokens (``n``): eight of them have buffers side by side, and who writes one clears its place two layers on.
"""

from triton.experimental import gluon
from triton.experimental.gluon import language as gl

from engine.kernel.gluon import plan
from engine.kernel.gluon.flags import arrive, clock, cta_barrier

# places of engine.kernel.control.PLACES
AT_QKV = gl.constexpr(1)
AT_ATTENTION = gl.constexpr(3)
AT_O = gl.constexpr(4)
AT_W13 = gl.constexpr(5)
AT_W2 = gl.constexpr(6)
AT_HEAD = gl.constexpr(7)
AT_SAMPLE = gl.constexpr(8)
AT_REDUCE = gl.constexpr(10)

PARITIES = gl.constexpr(plan.PARITIES)
RESET_AHEAD = gl.constexpr(plan.RESET_AHEAD)


@gluon.jit
def begin_step(counter):
    cta_barrier()
    arrive(counter)


@gluon.jit
def at_layer(act, n, C: gl.constexpr):
    """Activation buffer of running layer n (it may be negative: a buffer that is not read)."""
    return act + (n & (PARITIES - 1)) * C.act


@gluon.jit
def clear_distance(n, size: gl.constexpr):
    """From the buffer of running layer n to the one to clear."""
    return (((n + RESET_AHEAD) & (PARITIES - 1)) - (n & (PARITIES - 1))) * size


@gluon.jit
def record(trace, pid, at, t0, tw, t1, C: gl.constexpr):
    """Profile of one step, clock of this multiprocessor: begin, others ready (begin where not taken), input staged, end."""
    if C.profile:
        p = trace + (pid * C.steps + at) * 4
        gl.store(p, t0)
        gl.store(p + 1, tw)
        gl.store(p + 2, t1)
        gl.store(p + 3, clock())


@gluon.jit
def now(C: gl.constexpr, pid):
    if C.profile:
        return clock()
    else:
        return pid.to(gl.int64)
