"""The persistent decode kernel: a producer warp (producer.py) streams weights and KV through a ring, one consumer warpgroup computes.

Life of a token: embedding; per layer norm + QKV + rotary + KV append, attention, O, norm + gate/up, W2; head; choice of the token; step. A CTA
meets the others only through the activation buffers (see flags.py). Layers of ``Plan.common`` are computed by all CTAs (common_layer.py), those
of ``Plan.lane`` by each group for its own lanes, one lane after the other, so that one lane's values travel while the other's weights are
multiplied (half_layer.py). A rank with one of several lanes has only layers of all its CTAs (chain_layer.py).

Steps are numbered by arrivals at a counter: ``step`` counts this CTA's arrivals; a value made in a step d is there when all CTAs
arrived at step d + 1.
"""

from triton.experimental import gluon
from triton.experimental.gluon import language as gl
from triton.experimental.gluon.language.nvidia.hopper import fence_async_shared, mbarrier

from engine.kernel.gluon.attention import load_angles
from engine.kernel.gluon.chain_layer import add_block, chain_layer
from engine.kernel.gluon.common_layer import add_common, common_layer
from engine.kernel.gluon.exchange import (
    AGREEMENT,
    AT_ONCE,
    add_waited,
    arrive_everywhere,
    begin_launch,
    distances,
    guard_of,
    peer_guard,
    wait_everyone,
)
from engine.kernel.gluon.flags import at_place, clock, cta_barrier, fence, wait_count
from engine.kernel.gluon.gemv import advance, run_head, share, stage
from engine.kernel.gluon.half_layer import half_layer, mlp_update
from engine.kernel.gluon.producer import before_gate, producer
from engine.kernel.gluon.sample import (
    BAD,
    draw,
    finish_launch,
    load_stop_ids,
    own_logits,
    publish,
    read_best,
    read_stop,
    report_token,
    state_of,
    token_of,
)
from engine.kernel.gluon.state import embed, input_offsets, input_tiles, load_tiles, stage_normed
from engine.kernel.gluon.steps import AT_HEAD, AT_SAMPLE, begin_step, now, record
from engine.kernel.gluon.sums import begin_meeting, lane_update, peek_update, read_tree, write_lane_sum


@gluon.jit
def consumer(mem, token_bar, halts, act, lse, total, words, sums, picks, counters, model, head_io, host, trace, pid, first_token, position,
             others, C: gl.constexpr):  # fmt: skip
    ring, kv, xs, full, empty, warps = mem
    norms, bias, cos, sin, kcache, vcache = model
    table, logits, ints, floats = head_io
    T: gl.constexpr = act.dtype.element_ty
    xo = input_offsets(C, C.segments_d)
    group = pid // C.lane.ctas
    rank = pid % C.lane.ctas
    parts, peers, ready, launch = others
    away = distances(C, peers)
    buf = (act, lse, counters, group, parts, away)
    abort = counters + 32 * 30
    max_tokens = gl.load(ints)
    guard = (abort.to(gl.int64), gl.load(ints + 5), pid)
    if C.ranks > 1:
        begin_launch(C, ready, launch, away, pid, guard)
    staged, xd = input_tiles(C, xs, C.segments_d, 1, T)
    stop_ids = load_stop_ids(ints)
    temperature = gl.load(floats)
    rounds = pid * 0
    token = first_token
    tok = pid * 0
    at = (pid * 0, pid * 0)
    step = pid * 0
    lane_steps = pid * 0
    going = pid >= 0
    while going:
        pos = position + tok
        mbarrier.arrive(token_bar, count=1)
        bad = pid * 0 - 1
        h = embed(C, table, token, xo)
        w = load_tiles(norms + xo, C.boxes)
        rotated_model = (norms, bias, load_angles(C, cos, sin, pos), kcache, vcache)
        if C.chain:
            for layer in range(C.layers):
                h, w, at, step, bad = chain_layer(
                    mem, buf, rotated_model, h, w, at, step, bad, layer, tok, pos, pid, xo, guard, trace, T, C
                )
        else:
            for layer in range(C.common_layers):
                h, w, at, step, bad = common_layer(
                    mem, buf, rotated_model, h, w, at, step, bad, layer, tok, pos, pid, xo, guard, trace, T, C
                )
        t0 = now(C, pid)
        guard = at_place(guard, AT_HEAD, C.common_layers, pid)
        if C.common_layers > 0 and not C.chain:
            step += 1
            h = add_common(C, act, h, (tok + 1) * C.common_layers, counters, step, xo, guard, parts, away, tok, pid, T)
        if C.common_layers < C.layers:
            if C.chain:
                begin_step(counters)
                step += 1
                hs = (add_block(C, h, buf, 1, pid * 0 + C.layers - 1, tok, step, xo, pid, guard, T),)
            else:
                hs = (h, h)
                for half in range(C.halves):
                    hs, w, at, lane_steps, bad = half_layer(
                        mem, buf, rotated_model, hs, w, at, lane_steps, bad, half, tok, pos, pid, xo, guard, trace, T, C
                    )
                t0 = now(C, pid)
                guard = at_place(guard, AT_HEAD, C.layers, pid)
                # the first lane of the group is complete; the second needs its last W2
                last = pid * 0 + C.layers
                update = mlp_update(C, act, (tok + 1) * C.layers, last, group * 2 + 1, xo)
                wait_count(counters + 32 * (1 + group), lane_steps * C.lane.ctas, guard)
                h = lane_update(C, hs[0], peek_update(C, update), update, guard, T)
                hs = (h, hs[1])
            write_lane_sum(C, total, hs, w, group, rank, tok, xo, away)
            p = total + (tok & 3) * (C.all_groups * C.padded_hidden) + xo
            if C.ranks == 1:
                h = read_tree(C, p, C.all_groups, guard)
            else:
                began = clock()
                cta_barrier()
                arrive_everywhere(C, counters, away)
                far = peer_guard(guard, C.layers, pid)
                wait_everyone(C, counters, (tok + 1) * C.meetings - 1, 0, far)
                h = read_tree(C, p, C.all_groups, far)
                add_waited(counters, AT_ONCE, began)
        if (C.common_layers < C.layers) and C.head_mean:
            stage(staged, h, T, C.boxes)
            scale = 1.0
        else:
            scale, bad = stage_normed(C, staged, warps, h, w, bad, C.layers, T)
        fence()
        t1 = now(C, pid)
        stop = read_stop(host, pid)
        first, units = share(0, C.units_head, pid, C.ctas, 2)
        at, best, where, wrong = run_head(C, ring, full, empty, xd, at, first, units, scale, logits)
        record(trace, pid, C.steps - 2, t0, t0, t1, C)
        t0 = now(C, pid)
        publish(words, tok, pid, best, where, wrong, bad, stop, counters, away, C)
        if C.ranks == 1:
            begin_step(counters)
            step += 1
            if C.draws:
                own = own_logits(C, logits, first, units, tok >> 30)
            guard = at_place(guard, AT_SAMPLE, C.layers, pid)
            wait_count(counters, step * C.ctas, guard)
        else:
            began = clock()
            begin_meeting(C, counters, away)
            step += 1
            if C.draws:
                own = own_logits(C, logits, first, units, tok >> 30)
            wait_everyone(C, counters, (tok + 1) * C.meetings, 0, peer_guard(guard, C.layers, pid))
            add_waited(counters, AGREEMENT, began)
        tw = now(C, pid)
        far = guard_of(C, guard, C.layers, pid)
        top, bests = read_best(words, tok, far, C)
        token = token_of(top)
        if C.draws:
            if (temperature > 0.0) & (top < BAD):
                token, step, rounds = draw(
                    C, xs[0], own, top, bests, ints, floats, sums, picks, counters, step, rounds, tok, pos + 1, pid, away, far
                )
        state = state_of(top, token, tok, stop_ids, abort, max_tokens, C)
        t1 = now(C, pid)
        report_token(host, pid, tok, token, state)
        record(trace, pid, C.steps - 1, t0, tw, t1, C)
        going = state == 0
        tok += 1
        if state != 0:
            finish_launch(C, host, pid, state, abort, counters, pos, away)
    # let the producer end: it has copied the first units of one more token
    FIRST: gl.constexpr = C.common.block_qkv if C.whole_layers > 0 else 2
    if C.whole_layers > 0:
        first, n = share(0, C.common.units_qkv, pid, C.ctas, FIRST)
    else:
        first, n = share(0, C.lane.units_qkv, rank, C.lane.ctas, FIRST)
    for k in range(FIRST * before_gate(C, n, FIRST)):
        mbarrier.wait(full.index(at[0]), at[1])
        at = advance(C, at, 1)
    gl.store(halts + pid, 1)
    fence()
    cta_barrier()
    mbarrier.arrive(token_bar, count=1)


@gluon.jit(do_not_specialize=("first_token", "position", "launch"))
def decode(weights, keys, values, act, lse, total, words, sums, picks, counters, halts, norms, bias, cos, sin, kcache, vcache, table, logits, ints, floats,
           tokens, status, stop_word, error, trace, first_token, position, parts, peers, ready, launch, C: gl.constexpr):  # fmt: skip
    """One launch, C.ctas programs, cooperative: decode from ``first_token`` at ``position`` until the generation ends.

    weights: descriptor of [units * boxes * 64, 64], box [64, 64]; keys, values: of the KV cache [layers * K * context, h], box [64, 32].
    act, lse, total, words, sums, picks, parts: hand-over buffers, all ones at the start; counters, halts: zero at the start.
    peers, ready, launch: of several ranks, see ``exchange.begin_launch``; then the buffers and counters lie in memory that all ranks see.
    """
    pid = gl.program_id(0)
    T: gl.constexpr = act.dtype.element_ty
    ring = gl.allocate_shared_memory(T, [C.boxes * C.slots, 64, 64], weights.layout)
    xs = ()
    for j in gl.static_range(gl.constexpr(C.boxes)):
        xs = xs + (gl.allocate_shared_memory(T, [1, C.x_rows, 64], weights.layout),)
    warps = gl.allocate_shared_memory(gl.float32, [4], gl.SwizzledSharedLayout(1, 1, 1, [0]))
    kv = ring._reinterpret(T, [2 * C.boxes * C.slots, 64, 32], keys.layout)
    full = gl.allocate_shared_memory(gl.int64, [C.slots, 1], mbarrier.MBarrierLayout())
    empty = gl.allocate_shared_memory(gl.int64, [C.slots, 1], mbarrier.MBarrierLayout())
    token_bar = gl.allocate_shared_memory(gl.int64, [1], mbarrier.MBarrierLayout())
    for s in gl.static_range(gl.constexpr(C.slots)):
        mbarrier.init(full.index(s), count=1)
        mbarrier.init(empty.index(s), count=1)
    mbarrier.init(token_bar, count=1)
    fence_async_shared()
    cta_barrier()
    mem = (ring, kv, xs, full, empty, warps)
    model = (norms, bias, cos, sin, kcache, vcache)
    gl.warp_specialize(
        [
            (
                consumer,
                (
                    mem,
                    token_bar,
                    halts,
                    act,
                    lse,
                    total,
                    words,
                    sums,
                    picks,
                    counters,
                    model,
                    (table, logits, ints, floats),
                    (tokens, status, stop_word, error),
                    trace,
                    pid,
                    first_token,
                    position,
                    (parts, peers, ready, launch),
                    C,
                ),
            ),  # fmt: skip
            (producer, (weights, keys, values, ring, kv, full, empty, token_bar, halts, pid, position, C)),
        ],
        [1],
        [64],
    )
