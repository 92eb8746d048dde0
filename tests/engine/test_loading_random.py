"""Random weights: seeded, the same however they are cut, and fit for measuring."""

from dataclasses import replace

import pytest
import torch

from engine import reference
from engine.config import Head
from engine.loading.assemble import assemble
from engine.loading.random import RandomReader
from engine.shapes import SHAPES
from engine.weights import Shard
from tests.engine.test_loading import assert_same


def make(config, seed=0, dtype=torch.float32, shard=None):
    return assemble(config, RandomReader(config, seed), dtype, "cpu", shard or Shard())


VARIANTS = {
    "lanes": SHAPES["tiny"],
    "lane_norms": replace(SHAPES["tiny"], lane_norms=True, head=Head.LANE),
    "vocab_parallel": replace(SHAPES["tiny"], head=Head.VOCAB_PARALLEL),
    "llama": SHAPES["tiny-llama"],
    "qwen": replace(SHAPES["tiny-llama"], qkv_bias=True, qk_norm=True, tied_head=False, architecture="qwen3"),
}


@pytest.mark.parametrize("config", VARIANTS.values(), ids=VARIANTS)
def test_activations_stay_finite_and_logits_differ(config):
    weights = make(config, dtype=torch.float16)
    logits = reference.forward(config, weights, list(range(100, 164)))
    assert logits.isfinite().all() and logits.abs().max() < 100
    assert 0.5 < logits.std() < 6
    assert len(set(logits.argmax(-1).tolist())) > 20


@pytest.mark.parametrize("config", VARIANTS.values(), ids=VARIANTS)
def test_shards_are_slices_of_the_whole(config):
    whole = make(config)
    for ranks in (2, 4):
        for rank in range(ranks):
            part = make(config, shard=Shard(rank, ranks))
            pieces, total = Shard(rank, ranks).pieces(config)
            for local, piece in enumerate(pieces):
                for ours, theirs in zip(part.layers, whole.layers, strict=True):
                    w2 = theirs.w2.movedim(0, 1).flatten(1)  # [D, F]: the columns of all lanes side by side
                    size = w2.shape[1] // total
                    assert torch.equal(ours.w2[local], w2[:, piece * size : (piece + 1) * size])
                    gate = theirs.w13.unflatten(1, (2, -1))[:, 0].flatten(0, 1)
                    assert torch.equal(ours.w13[local, :size], gate[piece * size : (piece + 1) * size])
                    heads = config.q_size // total
                    q = theirs.wqkv[:, : config.q_size // config.n_lanes].flatten(0, 1)
                    assert torch.equal(ours.wqkv[local, :heads], q[piece * heads : (piece + 1) * heads])


def test_seed_and_type():
    config = SHAPES["tiny"]
    assert_same(make(config, seed=3), make(config, seed=3))
    assert not torch.equal(make(config, seed=3).head, make(config, seed=4).head)
    rounded, exact = make(config, dtype=torch.float16), make(config)
    assert torch.equal(rounded.layers[4].w13, exact.layers[4].w13.half())
