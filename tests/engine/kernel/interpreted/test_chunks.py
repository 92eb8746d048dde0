"""Ranks meet between the chunks of a prompt: rank 0 of two, alone, in a model whose layers need nothing of the other rank."""

import torch

from engine.config import Head, Reduction
from engine.kernel.cache import KVCache
from engine.kernel.control import ERROR_PEER_LOST, Control
from engine.kernel.params import ParamBlock
from engine.kernel.portable.exchange import SIGN_CHUNK, TICK_CHUNK
from engine.kernel.portable.path import PortablePath
from engine.loading.assemble import assemble
from engine.loading.random import RandomReader
from engine.request import SamplingParams
from engine.weights import Shard
from tests.engine.kernel.interpreted.models import CONTEXT, CPU, lanes_config

CONFIG = lanes_config(Head.REPLICATE, hidden_size=48, reductions=(Reduction.NONE,) * 3, delay=4)  # outputs are due after the last layer
ROWS, PREFILLED = 8, 20  # three chunks


class TwoInboxes:
    """Stands in for ``Peers`` of rank 0."""

    shard = Shard(0, 2)

    def allocate(self, words: int) -> tuple[torch.Tensor, torch.Tensor]:
        self.inboxes = [torch.zeros(words, dtype=torch.int64) for _ in range(2)]
        return self.inboxes[0], torch.tensor([inbox.data_ptr() for inbox in self.inboxes])


def prefill(told: int) -> tuple[Control, list[int], list[int]]:
    """(control, signs of rank 0 as rank 1 sees them, tags of the chunks) after a prompt. Rank 1 has ended the chunk ``told`` (3: none)."""
    weights = assemble(CONFIG, RandomReader(CONFIG), torch.float32, CPU, TwoInboxes.shard)
    control, params, peers = Control(CONTEXT, CPU), ParamBlock(CPU), TwoInboxes()
    cache = KVCache.allocate(CONFIG, CONTEXT, torch.float32, CPU, 2)
    path = PortablePath(CONFIG, weights, cache, control, params, CPU, peers, rows=ROWS)
    params.write(SamplingParams(), 0, frozenset(), 1, 40)
    signs = path.shape.inbox_signs + SIGN_CHUNK.value
    tags = [path._tick + chunk * path.shape.ticks + path.shape.layers + TICK_CHUNK.value for chunk in range(3)]
    if told < 3:
        peers.inboxes[0][signs + (told % 2) * 16 + 1] = tags[told] << 32 | tags[told]
    path.prefill(torch.arange(CONTEXT, dtype=torch.int32), 0, PREFILLED)
    return control, (peers.inboxes[1][[signs, signs + 16]] >> 32).tolist(), tags


def test_a_rank_waits_for_the_others_end_of_each_chunk():
    for told, position in ((3, 0), (0, ROWS)):
        control, signs, tags = prefill(told)
        record = control.error_record()
        assert record and (record.code, record.layer, record.position) == (ERROR_PEER_LOST, CONFIG.n_layers, position)
        assert signs == [tags[2], tags[1]]  # rank 1 has been told of every chunk
