"""The packed weight stream, multiplied as the kernel does it (units, segments, staged inputs), gives the matrix products."""

from dataclasses import replace

import pytest
import torch

from engine.config import Head, ModelConfig, Reduction
from engine.kernel.gluon.plan import Plan, make_plan, pack, part_of, segments, unsupported, useful_ctas
from engine.loading.assemble import assemble
from engine.loading.random import RandomReader
from engine.shapes import SHAPES
from engine.weights import Shard

CTAS = 132
LLAMA = ModelConfig(
    name="llama", architecture="llama", n_layers=2, hidden_size=512, n_heads=8, n_kv_heads=2, head_size=64, ffn_size=4500,
    vocab_size=100, context_tokens=128, norm_eps=1e-5, rope_theta=1e4, dtype="bfloat16",
)  # fmt: skip
LANES = ModelConfig(
    name="lanes", architecture="laneformer_tp", n_layers=4, hidden_size=768, n_heads=16, n_kv_heads=8, head_size=96, ffn_size=1536,
    vocab_size=256, context_tokens=128, norm_eps=1e-5, rope_theta=1e4, n_lanes=8, delay=2, head=Head.REPLICATE,
    reductions=(Reduction.PRESENT,) * 2 + (Reduction.PAST,) * 2, windows=(64, 64, None, None),
)  # fmt: skip


def weights_of(config, shard=Shard()):  # noqa: B008
    return assemble(config, RandomReader(config), torch.float32, "cpu", shard)


def multiply(plan: Plan, units: torch.Tensor, x: torch.Tensor) -> torch.Tensor:
    """Rows of the packed matrix [units, boxes, 64, 64] times x, in the kernel's order of segments and tiles."""
    pieces = segments(x.numel(), plan.kw)
    staged = torch.zeros(pieces * plan.kw)
    staged[: x.numel()] = x
    a = units.permute(0, 2, 1, 3).reshape(len(units), 64, plan.kw)  # tiles side by side
    d = a @ staged.view(pieces, plan.kw).T  # [units, 64, pieces]
    m = torch.arange(64)
    return d[:, m, m % pieces].view(len(units), 64 // pieces, pieces).sum(2).flatten()


def staged_heads(plan: Plan, heads: torch.Tensor) -> torch.Tensor:
    """Attention output [heads, h] in the order of the tiles that ``attention.combine`` makes."""
    if plan.head_size != 96:
        return heads.flatten()
    return heads.view(-1, 2, 3, 32).transpose(1, 2).flatten()  # [segment, tile, head of the pair, 32]


def units_of(plan, packed, mode, at, index):
    """The four matrices of lane ``index`` of a layer that starts at unit ``at``."""
    out = []
    for count in (mode.units_qkv, mode.units_o, mode.units_w13, mode.units_w2):
        out.append(packed[at + index * count : at + (index + 1) * count])
        at += mode.lanes * count
    return out


SHARDS = [(LLAMA, Shard()), (LANES, Shard()), (LLAMA, Shard(1, 2)), (LANES, Shard(1, 2)), (LANES, Shard(3, 4)), (LANES, Shard(5, 8))]


@pytest.mark.parametrize("config, shard", SHARDS, ids=lambda x: x.name if isinstance(x, ModelConfig) else f"{x.rank}-of-{x.ranks}")
def test_packed_stream_multiplies_like_the_matrices(config, shard):
    weights = weights_of(config, shard)
    plan = make_plan(config, 128, CTAS, shard=shard)
    packed = pack(config, weights, plan)
    config = part_of(config, shard)
    assert packed.shape == (plan.units, plan.boxes, 64, 64)
    torch.manual_seed(0)
    for index, layer in enumerate(weights.layers):
        common = index < plan.common_layers
        for lane in range(1 if common else plan.lanes):
            if common:
                mode, at, place = plan.common, index * plan.common.units_layer, 0
                lanes = range(plan.lanes)
            else:
                mode, lanes = plan.lane, [lane]
                group, place = divmod(lane, plan.group_lanes)
                at = plan.first_lane_unit + group * plan.units_group + (index - plan.common_layers) * plan.lane.units_layer
            qkv, o, w13, w2 = units_of(plan, packed, mode, at, place)
            x = torch.randn(config.hidden_size)
            size = [config.heads_per_lane * config.head_size, config.kv_heads_per_lane * config.head_size]
            parts = [layer.wqkv[k].split([size[0], size[1], size[1]]) for k in lanes]
            rows = torch.cat([p[i] for i in range(3) for p in parts])
            torch.testing.assert_close(multiply(plan, qkv, x)[: len(rows)], rows @ x, rtol=1e-4, atol=1e-4)
            for k in range(mode.sums):  # of a block of rows, each lane's columns are a unit of their own
                heads = torch.randn(mode.heads // mode.sums, config.head_size)
                got = multiply(plan, o[k :: mode.sums], staged_heads(plan, heads))[: config.hidden_size]
                torch.testing.assert_close(got, layer.wo[lanes[k]] @ heads.flatten(), rtol=1e-4, atol=1e-4)
                u = torch.randn(mode.ffn // mode.sums)
                if mode.segments_f > 16:  # a row block is cut into units of 16 segments
                    parts = mode.segments_f // 16
                    pieces = torch.cat([u, u.new_zeros(mode.segments_f * plan.kw - len(u))]).split(16 * plan.kw)
                    got = sum(multiply(plan, w2[p::parts], pieces[p]) for p in range(parts))
                else:
                    got = multiply(plan, w2[k :: mode.sums], u)
                torch.testing.assert_close(got[: config.hidden_size], layer.w2[lanes[k]] @ u, rtol=1e-4, atol=1e-4)
            gate = torch.cat([layer.w13[k].chunk(2)[0] for k in lanes])
            up = torch.cat([layer.w13[k].chunk(2)[1] for k in lanes])
            got_gate, got_up = multiply(plan, w13[::2], x), multiply(plan, w13[1::2], x)
            torch.testing.assert_close(got_gate[: mode.ffn], gate @ x, rtol=1e-4, atol=1e-4)
            torch.testing.assert_close(got_up[: mode.ffn], up @ x, rtol=1e-4, atol=1e-4)
    x = torch.randn(config.hidden_size)
    logits = multiply(plan, packed[plan.first_head_unit :], x)[: config.vocab_size]
    torch.testing.assert_close(logits, weights.head @ x, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize(
    "config, ranks", [(LLAMA, 2), (LANES, 2), (LANES, 4), (LANES, 8)], ids=lambda x: x.name if isinstance(x, ModelConfig) else f"{x}"
)
def test_the_units_of_all_ranks_hold_every_weight_once(config, ranks):
    whole = weights_of(config)
    expected = torch.cat([whole.head.flatten()] + [m.flatten() for w in whole.layers for m in (w.wqkv, w.wo, w.w13, w.w2)])
    packed = []
    for rank in range(ranks):
        shard = Shard(rank, ranks)
        units = pack(config, weights_of(config, shard), make_plan(config, 128, CTAS, shard=shard))
        packed.append(units[units != 0])
    assert torch.equal(torch.cat(packed).sort().values, expected[expected != 0].sort().values)


def test_ranks_have_the_same_buffers_and_parts_of_the_whole():
    for name, ranks in (("laneformer-2b", 2), ("laneformer-2b", 4), ("laneformer-2b", 8), ("llama-3.1-8b", 2)):
        config = SHAPES[name]
        plans = [make_plan(config, 4096, CTAS, shard=Shard(rank, ranks)) for rank in range(ranks)]
        assert len({(p.act, p.lse, p.parts, p.all_groups) for p in plans}) == 1
        assert [p.first_vocab for p in plans] == [rank * config.vocab_size // ranks for rank in range(ranks)]
        assert plans[0].lane.splits == make_plan(config, 4096, CTAS).lane.splits  # so that attention adds up in the same order
        assert all(p.all_lanes == config.n_lanes and p.all_vocab == config.vocab_size for p in plans)


def test_a_rank_with_one_lane_streams_like_a_model_of_one_lane():
    plan = make_plan(SHAPES["laneformer-2b"], 4096, CTAS, shard=Shard(5, 8))
    assert plan.chain and plan.first_lane == 5 and plan.all_groups == 8
    assert plan.common == plan.lane and plan.first_head_unit == plan.layers * plan.common.units_layer
    others = [make_plan(SHAPES[name], 4096, CTAS, shard=Shard(0, ranks)) for name, ranks in (("laneformer-2b", 4), ("llama-3.1-8b", 8))]
    assert not any(other.chain for other in others)


def test_output_projections_and_delayed_sums_go_to_ctas_that_have_time():
    """Two ranks: 16 of a group's 66 CTAs attend, 48 of the others have a pair of O each, the 18 that have none make the delayed sums."""
    for ranks, columns in ((1, 24), (2, 86), (4, 38), (8, 24)):
        plan = make_plan(SHAPES["laneformer-2b"], 4096, CTAS, shard=Shard(0, ranks))
        assert plan.presum_columns == columns and plan.sums_by_idle == (ranks in (2, 4))
        if plan.sums_by_idle:
            idle = plan.lane.ctas - plan.lane.units_o // 2
            assert plan.lane.apart and plan.lane.attending == 16 and plan.groups * idle * columns >= plan.hidden


def test_plans_of_the_named_shapes_stream_little_padding():
    for name, waste in (("laneformer-2b", 0.001), ("llama-3.2-1b", 0.001), ("smollm2-135m", 0.35)):
        config = SHAPES[name]
        assert unsupported(config, CTAS) is None
        plan = make_plan(config, 4096, CTAS)
        streamed = plan.units * plan.boxes * 8192
        assert streamed / config.bytes_per_token(2) - 1 < waste


def test_small_models_leave_multiprocessors_alone():
    """SmolLM2's largest phase has 96 pairs of units; the others have work for all. Never fewer than half, which the head needs."""
    for name, ctas in (("laneformer-2b", CTAS), ("llama-3.2-1b", CTAS), ("smollm2-135m", 96)):
        assert useful_ctas(SHAPES[name], CTAS) == ctas
    assert useful_ctas(replace(SHAPES["smollm2-135m"], ffn_size=384), CTAS) == CTAS // 2


def test_what_is_not_supported_is_named():
    base = SHAPES["llama-3.2-1b"]
    for change, word in (
        ({"qk_norm": True}, "norms of q and k"),
        ({"head_size": 80}, "head size 80"),
        ({"n_kv_heads": 2}, "query heads per KV head"),
        ({"windows": (128, 256) * 8}, "windows"),
    ):
        assert word in unsupported(replace(base, **change), CTAS)
    lanes = SHAPES["laneformer-2b"]
    assert all(unsupported(lanes, CTAS, Shard(0, ranks)) is None for ranks in (1, 2, 4, 8))
    for count, ranks in ((6, 2), (3, 3), (3, 1), (12, 6)):  # 12 lanes are pairs on 6 GPUs, but the kernel's tiles are powers of two
        wide = replace(lanes, n_lanes=count, n_heads=4 * count, n_kv_heads=2 * count, ffn_size=1536 * count)
        assert f"{count} lanes" in unsupported(wide, CTAS, Shard(0, ranks))
    assert "norms per lane" in unsupported(replace(lanes, lane_norms=True), CTAS)
    assert "head arrangement" in unsupported(replace(lanes, head=Head.VOCAB_PARALLEL), CTAS)


def test_counters_hold_the_arrivals_of_the_longest_generation():
    """On one and two GPUs. A counter that overflows makes those who poll it late wait for ever; see ``flags.count_asm``."""
    most = {}
    for name, config in SHAPES.items():
        for ranks in (1, 2):
            if config.n_kv_heads % ranks or unsupported(config, CTAS, Shard(0, ranks)):
                continue
            plan = make_plan(config, config.context_tokens, CTAS, shard=Shard(0, ranks))
            steps = max(5 * plan.whole_layers, 5 * plan.halves) + 32  # head, choice, searches for a drawn token
            most[name, ranks] = config.context_tokens * CTAS * max(steps, plan.meetings * ranks)
    assert len(most) > 6 and max(most.values()) < 2**32
    assert max(most.values()) > 2**31  # so the comparison must be unsigned


def test_padding_covers_what_is_read_and_never_written():
    full = make_plan(SHAPES["laneformer-2b"], 4096, CTAS)
    assert full.padding == []
    for splits in (4, 8):
        plan = make_plan(SHAPES["smollm2-135m"], 2048, CTAS, max_splits=splits)
        assert plan.max_splits == splits
        # hidden 576 of 768 in both sums of O and of W2, heads 9 of 12
        assert [end - first for first, end in plan.padding] == [192] * 4 + [3 * splits * 64]
        assert all(end <= plan.act for _, end in plan.padding)
