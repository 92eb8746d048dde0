"""The portable path on the host: shapes, buffers, address table, launches."""

from collections.abc import Callable
from dataclasses import replace

import torch

from engine.config import ModelConfig, Reduction
from engine.errors import DeviceError
from engine.kernel.cache import KVCache
from engine.kernel.control import Control
from engine.kernel.params import ParamBlock
from engine.kernel.peers import Peers
from engine.kernel.portable.exchange import SIGN_ABORT, WAITED
from engine.kernel.portable.kernel import monokernel
from engine.kernel.portable.shape import Buffers, Matrix, Shape, ceil_div, ceil_power_of_two
from engine.weights import ModelWeights, Shard

KINDS = {Reduction.NONE: 0, Reduction.PAST: 1, Reduction.PRESENT: 2}
PREFILL_ROWS = 128
NO_WINDOW = 1 << 30


def matrix(n: int, k: int, lanes: int, programs: int, deep: bool, gated: bool = False) -> Matrix:
    """Tile sizes for [lanes, n, k] weights: units of about 16 KB, and enough tiles for every program.

    deep: many units in flight, for GPUs with some 200 KB of shared memory; else what fits 64 KB.
    """
    bk = k & -k  # the largest power of two that divides k
    if bk < 256:
        bk = ceil_power_of_two(k)
    bk = min(1024, bk)
    bn = max(4, min(8192 // bk, ceil_power_of_two(ceil_div(lanes * n, programs))))
    columns = n // 2 if gated else n
    mk = 64 if k % 64 == 0 else min(64, max(16, ceil_power_of_two(k)))
    mn = 32 if gated else 64
    stages, mstages = (6, 4) if deep else (3, 2)
    return Matrix(n=n, k=k, bn=bn, bk=bk, stages=stages, mn=min(mn, max(16, ceil_power_of_two(columns))), mk=mk, mstages=mstages)


def shape_of(config: ModelConfig, context: int, programs: int, rows: int, ptx: bool, shard: Shard, warps: int = 8) -> Shape:
    """The compile-time description of a model on one rank with ``programs`` programs and prefill chunks of ``rows`` rows."""
    pieces, total = shard.pieces(config)
    lanes, per_lane = len(pieces), total
    heads, kv_heads = config.n_heads // per_lane, config.n_kv_heads // per_lane
    ffn, hidden, size = config.ffn_size // per_lane, config.hidden_size, config.head_size
    vocab = len(shard.vocab_rows(config))
    head_lanes = lanes if config.head == "vocab_parallel" else 1
    return Shape(
        layers=config.n_layers,
        lanes=lanes,
        hidden=hidden,
        q_heads=heads,
        kv_heads=kv_heads,
        head_size=size,
        ffn=ffn,
        vocab=vocab,
        context=context,
        delay=config.delay if config.n_lanes > 1 else 0,
        head=str(config.head),
        eps=config.norm_eps,
        qkv_bias=config.qkv_bias,
        qk_norm=config.qk_norm,
        lane_norms=config.lane_norms,
        programs=programs,
        rows=rows,
        rank=shard.rank,
        ptx=ptx,
        warps=warps,
        qkv=matrix((heads + 2 * kv_heads) * size, hidden, lanes, programs, ptx),
        o=matrix(hidden, heads * size, lanes, programs, ptx),
        w13=matrix(2 * ffn, hidden, lanes, programs, ptx, gated=True),
        w2=matrix(hidden, ffn, lanes, programs, ptx),
        lm=matrix(vocab // head_lanes, config.head_inputs, head_lanes, programs, ptx),
        lane_block=min(2, lanes),
        max_splits=max(1, min(16, programs // (lanes * kv_heads))),
        ranks=shard.ranks,
        total_lanes=config.n_lanes,
    )


class PortablePath:
    """KernelPath in plain Triton. Runs any model of the engine on one GPU, or on the CPU in the interpreter."""

    name = "portable"

    @classmethod
    def supports(cls, config: ModelConfig, device: torch.device, dtype: torch.dtype) -> str | None:
        if device.type == "cuda" and dtype not in (torch.float16, torch.bfloat16):
            return f"the portable kernel takes float16 or bfloat16 weights on a GPU; got {str(dtype).removeprefix('torch.')}"
        if config.head_size > 256:
            return f"the portable kernel takes head sizes up to 256; got {config.head_size}"
        return None

    def __init__(
        self,
        config: ModelConfig,
        weights: ModelWeights,
        cache: KVCache,
        control: Control,
        params: ParamBlock,
        device: torch.device,
        peers: Peers | None = None,
        rows: int | None = None,
        profile: int = 0,
        tune: Callable[[Shape], Shape] | None = None,
    ):
        """``rows``: rows of a prefill chunk (default 128 on a GPU, 16 in the interpreter). ``profile``: barriers to trace.
        ``tune``: changes tile sizes, for measurements. ``peers``: the other ranks; all of them launch the same."""
        shard = peers.shard if peers else Shard()
        gpu = device.type == "cuda"
        programs = torch.cuda.get_device_properties(device).multi_processor_count if gpu else 1
        ptx = gpu and torch.version.hip is None
        shape = shape_of(config, cache.context_tokens, programs, rows or (PREFILL_ROWS if gpu else 16), ptx, shard)
        shape = replace(shape, profile=profile)
        self.shape = tune(shape) if tune else shape
        self.device = device
        self._weights = weights
        self._vectors: list[torch.Tensor] = []  # float32 copies that the address table points to
        self.buffers = self._allocate(config, weights, cache, control, params, peers)
        self._options = {"num_warps": self.shape.warps} | ({"launch_cooperative_grid": True} if gpu else {})
        self._tick = 1  # of the next launch, equal on all ranks; a word that was never written has the tag 0
        self._one = torch.ones((), dtype=torch.int64, pin_memory=gpu)
        self._no_ids = torch.zeros(1, dtype=torch.int32, device=device)
        self._not_forced = torch.full((cache.context_tokens + 1,), -1, dtype=torch.int32, device=device)
        self._no_logits = torch.zeros(1, dtype=torch.float32, device=device)

    def prefill(self, ids: torch.Tensor, start: int, n: int) -> None:
        self._launch(ids, start, n, False, 0, 0)

    def launch(self, first_token: int, position: int) -> None:
        self._launch(self._no_ids, 0, 0, True, first_token, position)

    def generate(self, ids: torch.Tensor, start: int, n: int, first_token: int, logits: torch.Tensor | None = None) -> None:
        """Prefill and decode in one launch: ids[start : start+n], then decode from ``first_token`` at position start+n.

        logits: float32 [max_tokens, V], device; row k receives the logits from which token k was chosen.
        """
        self._launch(ids, start, n, True, first_token, start + n, logits=logits)

    def prefill_logits(self, ids: torch.Tensor) -> torch.Tensor:
        """[T, V] float32 logits (on the device) of all positions of ``ids`` int32 [T], by the prefill phases."""
        out = torch.zeros(len(ids) + self.shape.rows, self.shape.vocab, dtype=torch.float32, device=self.device)
        self._launch(ids, 0, len(ids), False, 0, 0, all_logits=out)
        return out[: len(ids)]

    def decode_logits(self, ids: torch.Tensor) -> torch.Tensor:
        """The same by the decode phases: one position after the other, the ids being forced. MAX_TOKENS must be T."""
        out = torch.zeros(len(ids), self.shape.vocab, dtype=torch.float32, device=self.device)
        forced = self._not_forced.clone()
        forced[: len(ids)] = ids
        self._launch(self._no_ids, 0, 0, True, int(ids[0]), 0, logits=out, forced=forced)
        return out

    @property
    def pushed_bytes(self) -> int:
        return self.shape.pushed_bytes

    def waited_clocks(self) -> list[float]:
        """Clocks that a processor waited for other ranks in the last generation, mean over the processors: see
        ``ranks.MultiGpuBackend.waited_us``."""
        first = int(WAITED.value)
        return [64 * word / self.shape.programs for word in self.buffers.device[first : first + 3].tolist()]

    def abandon_peers(self) -> None:
        """End a running launch that would wait for a rank which is gone. By a copy: the kernel leaves no room for another one."""
        sign = self.buffers.inbox[self.shape.inbox_signs + int(SIGN_ABORT.value)]
        if self.device.type == "cpu":
            sign.copy_(self._one)
            return
        stream = torch.cuda.Stream(self.device)
        with torch.cuda.stream(stream):
            sign.copy_(self._one, non_blocking=True)
        stream.synchronize()

    def close(self) -> None:
        self.buffers = None
        self._weights = None
        self._vectors.clear()

    def _launch(self, ids, start, n, decoding, token, position, *, logits=None, all_logits=None, forced=None) -> None:
        buffers, stride = self.buffers, 0
        if logits is not None:
            buffers, stride = buffers._replace(logits=logits), self.shape.vocab
        buffers.barrier.zero_()
        if self.shape.ranks > 1:
            buffers.inbox[self.shape.inbox_signs + int(SIGN_ABORT.value)] = 0
        arguments = (
            buffers,
            ids,
            all_logits if all_logits is not None else self._no_logits,
            forced if forced is not None else self._not_forced,
            start,
            n,
            int(decoding),
            token,
            position,
            stride,
            self._tick,
            self.shape,
            all_logits is not None,
        )
        self._tick = (self._tick + (ceil_div(n, self.shape.rows) + self.shape.context + 1) * self.shape.ticks) & 0x7FFFFFFF
        try:
            monokernel[(self.shape.programs,)](*arguments, **self._options)
        except RuntimeError as error:
            raise DeviceError(f"The kernel could not be started: {error}") from error

    def compile(self) -> None:
        """Compile and load the kernel without a launch: ranks that compile for different times must not wait for each other inside."""
        if self.device.type == "cuda":
            arguments = (self.buffers, self._no_ids, self._no_logits, self._not_forced, 0, 0, 1, 0, 0, 0, self._tick, self.shape, False)
            monokernel.warmup(*arguments, grid=(self.shape.programs,), **self._options)._init_handles()

    def _allocate(self, config, weights, cache, control, params, peers) -> Buffers:
        s, dtype = self.shape, weights.embedding.dtype

        def f32(*shape):
            return torch.zeros(shape, dtype=torch.float32, device=self.device)

        def act(*shape):
            return torch.zeros(shape, dtype=dtype, device=self.device)

        inbox = addresses = torch.zeros(1, dtype=torch.int64, device=self.device)
        if peers:
            inbox, addresses = peers.allocate(s.inbox_words)
        angles = torch.arange(s.context, device=self.device).float()[:, None] * config.rope_inverse_frequencies().to(self.device)
        heads, wide = s.lanes * s.q_heads, s.lanes * s.hidden
        counters = torch.zeros(4 + s.lanes * s.kv_heads, dtype=torch.int32, device=self.device)
        return Buffers(
            ring=control.ring,
            status=control.status,
            stop_word=control.stop_word,
            error=control.error,
            device=control.device,
            barrier=counters,
            ints=params.ints,
            floats=params.floats,
            peers=addresses,
            inbox=inbox,
            table=self._table(weights),
            kinds=self._kinds(config),
            embedding=weights.embedding,
            norm=self._vector(weights.norm),
            head=weights.head,
            cos=angles.cos().contiguous(),
            sin=angles.sin().contiguous(),
            k_cache=cache.k,
            v_cache=cache.v,
            trace=torch.zeros(max(1, s.profile), s.programs, 2, dtype=torch.int64, device=self.device),
            x=f32(2, wide),
            qkv=f32(s.lanes, s.qkv_rows),
            part=f32(heads, s.max_splits, s.head_pad),
            part_max=f32(heads, s.max_splits),
            part_sum=f32(heads, s.max_splits),
            arrived=counters[4:],
            attended=f32(s.lanes, s.attention_width),
            attention_out=f32(s.slots, wide),
            ffn_out=f32(s.slots, wide),
            attention_sum=f32(s.slots, s.hidden),
            ffn_sum=f32(s.slots, s.hidden),
            gated=f32(s.lanes, s.ffn),
            final=f32(wide),
            scratch=f32(s.programs, s.scratch_width),
            logits=f32(s.vocab),
            best=f32(2, s.programs),
            best_id=torch.zeros(2, s.programs, dtype=torch.int32, device=self.device),
            mass=f32(2, s.programs, 16),
            rows_x=f32(s.rows, wide),
            rows_n=act(s.rows, wide),
            rows_qkv=f32(s.rows, s.lanes * s.qkv_rows),
            rows_q=act(s.rows, heads * s.head_size),
            rows_a=act(s.rows, s.lanes * s.attention_width),
            rows_attention_out=f32(s.slots, s.rows, wide),
            rows_ffn_out=f32(s.slots, s.rows, wide),
            rows_gated=act(s.rows, s.lanes * s.ffn),
        )

    def _vector(self, tensor: torch.Tensor) -> torch.Tensor:
        copy = tensor.float().contiguous()
        self._vectors.append(copy)
        return copy

    def _table(self, weights: ModelWeights) -> torch.Tensor:
        rows = []
        for layer in weights.layers:
            for m in (layer.wqkv, layer.wo, layer.w13, layer.w2):
                if not m.is_contiguous() or m.data_ptr() % 16:
                    raise ValueError("The kernel needs contiguous weights that start at a multiple of 16 bytes.")
            vectors = [layer.attention_norm, layer.ffn_norm, layer.qkv_bias, layer.q_norm, layer.k_norm]
            addresses = [m.data_ptr() for m in (layer.wqkv, layer.wo, layer.w13, layer.w2)]
            rows.append(addresses + [0 if v is None else self._vector(v).data_ptr() for v in vectors])
        return torch.tensor(rows, dtype=torch.int64, device=self.device)

    def _kinds(self, config: ModelConfig) -> torch.Tensor:
        """A one-lane model that is cut over ranks adds up the partial sums of all of them at once."""
        kinds = [Reduction.PRESENT if self.shape.ranks > 1 and config.n_lanes == 1 else kind for kind in config.layer_reductions]
        rows = [[KINDS[kind], window or NO_WINDOW] for kind, window in zip(kinds, config.layer_windows, strict=True)]
        return torch.tensor(rows, dtype=torch.int32, device=self.device)
