"""The fast path behind ``engine.kernel.path.KernelPath``: single-row decode on Hopper GPUs, one per rank. It has no prefill of its own."""

from dataclasses import replace

import torch
from torch import Tensor

from engine.config import ModelConfig
from engine.kernel.cache import KVCache
from engine.kernel.control import ERROR_PEER_LOST, PLACE_EXCHANGE, Control
from engine.kernel.gluon.plan import KV_ROWS, PARITIES, Plan, make_plan, pack, unsupported, useful_ctas
from engine.kernel.gluon.ptx_edits import edited_ptx
from engine.kernel.params import ParamBlock
from engine.kernel.peers import Peers
from engine.weights import ModelWeights, Shard

FEW_SPLITS = 4
SHORT_CONTEXT = 1664  # positions; up to here 4 splits beat 8 (Llama 3.2 1B on an H200: 663 to 692 us a token at 384, 817 to 766 at 3,756)
COUNTERS = 32 * 32  # int32 words, one counter per 128 bytes: of CTAs, of groups, ...
ABORT, WAITED = 32 * 30, 32 * 28  # see kernel.py and exchange.py
ABANDONED = (ERROR_PEER_LOST << 28) + (PLACE_EXCHANGE << 24)
# Every sum and product is rounded as the source says. Otherwise the compiler joins some of them (fused multiply-add), not the same ones in the
# kernels of one rank and of several.
COMPILE_OPTIONS = {"num_warps": 4, "enable_fp_fusion": False}


def make_plans(config: ModelConfig, context: int, ctas: int, **options) -> dict[tuple[bool, bool], Plan]:
    """By (whether a generation is long, whether it draws): fewer splits are combined faster, more are computed faster."""
    full = few = make_plan(config, context, ctas, **options)
    if config.n_lanes == 1:
        few = make_plan(config, context, ctas, **{"max_splits": FEW_SPLITS} | options)
    return {(is_long, draws): replace(plan, draws=draws) for is_long, plan in ((False, few), (True, full)) for draws in (False, True)}


class GluonPath:
    """Decode launches of one generation at a time; a prefill launch of another path precedes them on the same stream."""

    name = "gluon"

    @classmethod
    def supports(cls, config: ModelConfig, device: torch.device, dtype: torch.dtype, shard: Shard = Shard()) -> str | None:  # noqa: B008
        if device.type != "cuda" or torch.version.cuda is None:
            return "no NVIDIA GPU"
        properties = torch.cuda.get_device_properties(device)
        if properties.major != 9:
            return f"{properties.name} is no Hopper GPU"
        if dtype not in (torch.float16, torch.bfloat16):
            return f"weights in {str(dtype).removeprefix('torch.')} (float16 and bfloat16 are taken)"
        return unsupported(config, properties.multi_processor_count, shard)

    def __init__(
        self,
        config: ModelConfig,
        weights: ModelWeights,
        cache: KVCache,
        control: Control,
        params: ParamBlock,
        device: torch.device,
        peers: Peers | None = None,
        ctas: int | None = None,
        **options: int,
    ):
        """``peers``: the other ranks; all of them make the same launches. ``ctas``: multiprocessors to take where others run on the same GPU at
        the same time (all by default). ``options``: see ``make_plan``. Packs a second copy of the matrices; ``weights`` may be freed except the embedding."""
        self._alone = ctas is None
        if peers:
            options = options | {"shard": peers.shard}
        if self._alone:
            ctas = torch.cuda.get_device_properties(device).multi_processor_count
            ctas = ctas if peers else useful_ctas(config, ctas)
        self.plans = make_plans(config, cache.context_tokens, ctas, **options)
        self.plan = self.plans[True, False]
        self.config, self.cache, self.control, self.params = config, cache, control, params
        self.dtype = weights.embedding.dtype
        self.embedding = weights.embedding
        self.weights = pack(config, weights, self.plan)
        self.norms = _norms(weights, self.plan)
        self.bias = _biases(weights) if config.qkv_bias else self.norms
        self.cos, self.sin = rope_tables(config, cache.context_tokens, device)
        self._launches = 0  # of all ranks alike
        self._abandoned = torch.full((), ABANDONED, dtype=torch.int32, pin_memory=device.type == "cuda")
        self._allocate(device, peers)
        self._descriptors()
        for plan in dict.fromkeys(self.plans.values()):
            kernel = self.compile(plan)
            if peers:  # loaded too: ranks must not wait for each other inside a launch
                kernel._init_handles()

    def _allocate(self, device: torch.device, peers: Peers | None) -> None:
        plan = self.plan
        ctas = plan.ctas * plan.ranks
        sizes = {
            "act": PARITIES * plan.act * 2,
            "lse": PARITIES * plan.lse * 4,
            "total": 4 * plan.all_groups * plan.padded_hidden * 4,
            "words": 4 * (ctas + 1) * 8,
            "sums": 4 * ctas * 16 * 8,
            "picks": 4 * plan.picks * 8,
            "parts": PARITIES * plan.parts * 4 if peers else 0,
        }
        types = {"act": self.dtype, "lse": torch.float32, "total": torch.float32, "parts": torch.float32}
        offsets, end = {}, 0
        for name, size in sizes.items():
            offsets[name] = end
            end += -(-size // 256) * 256
        counters = COUNTERS + plan.ctas
        if peers:  # what all ranks see: the buffers, the counters, then the words that a launch begins with
            memory, self.addresses = peers.allocate(-(-(end + 4 * (counters + plan.ranks)) // 8))
            self.flags, words = memory.view(torch.uint8)[:end], memory.view(torch.int32)[end // 4 :]
            self.counters, self.ready = words[:counters], words[counters : counters + plan.ranks]
        else:
            self.flags = torch.empty(end, dtype=torch.uint8, device=device)
            self.counters = self.ready = torch.zeros(counters, dtype=torch.int32, device=device)
            self.addresses = torch.zeros(1, dtype=torch.int64, device=device)
        for name, size in sizes.items():
            setattr(self, name, self.flags[offsets[name] : offsets[name] + size].view(types.get(name, torch.int64)))
        self.halts = self.counters[COUNTERS:]
        self.logits = torch.empty(plan.vocab, dtype=torch.float32, device=device)
        self.trace = torch.zeros(plan.ctas, plan.steps, 4, dtype=torch.int64, device=device)

    def _descriptors(self) -> None:
        from triton.experimental.gluon import language as gl
        from triton.experimental.gluon.nvidia.hopper import TensorDescriptor

        bits16 = {torch.float16: gl.float16, torch.bfloat16: gl.bfloat16}[self.dtype].primitive_bitwidth
        weight_layout = gl.NVMMASharedLayout(swizzle_byte_width=128, element_bitwidth=bits16, rank=2)
        kv_layout = gl.NVMMASharedLayout(swizzle_byte_width=64, element_bitwidth=bits16, rank=2)
        size = self.plan.head_size
        self.weight_rows = TensorDescriptor(self.weights, [self.weights.numel() // 64, 64], [64, 1], [64, 64], weight_layout)
        self.keys, self.values = (
            TensorDescriptor(t, [t.numel() // size, size], [size, 1], [KV_ROWS, 32], kv_layout) for t in (self.cache.k, self.cache.v)
        )

    def prefill(self, ids: Tensor, start: int, n: int) -> None:
        raise NotImplementedError("The fast path decodes; another path fills the KV cache.")

    def launch(self, first_token: int, position: int) -> None:
        """See KernelPath.launch."""
        plan = self.choose_plan(position)
        self._launches += 1
        self.reset(plan)
        self.decode(plan, first_token, position)

    def choose_plan(self, position: int) -> Plan:
        """The plan for a generation from ``position`` on with the parameters last written."""
        middle = position + self.params.max_tokens // 2
        return self.plans[middle > SHORT_CONTEXT, not self.params.greedy]

    def reset(self, plan: Plan) -> None:
        """Mark every hand-over value as not written, and zero those that only pad."""
        self.flags.fill_(255)
        self.counters.zero_()
        act = self.act[: PARITIES * plan.act].view(PARITIES, plan.act)
        lse = self.lse[: PARITIES * plan.lse].view(PARITIES, plan.lse)
        for first, end in plan.padding:
            act[:, first:end].zero_()
        if plan.padded_heads != plan.heads:
            lse[:, plan.heads * plan.max_splits :].zero_()
        if plan.ranks > 1:
            self.parts.view(-1, plan.padded_hidden)[:, plan.hidden :].zero_()

    def decode(self, plan: Plan, first_token: int, position: int) -> None:
        """The decode launch alone; ``reset`` must precede it."""
        from engine.kernel.gluon.kernel import decode

        with edited_ptx(plan):
            decode[(plan.ctas,)](*self._arguments(first_token, position), plan, **self._launch_options)

    def compile(self, plan: Plan):
        """Compile the kernel for a plan, without a launch. Returns Triton's compiled kernel."""
        from engine.kernel.gluon.kernel import decode

        with edited_ptx(plan):
            return decode.warmup(*self._arguments(0, 0), plan, grid=(plan.ctas,), **self._launch_options)

    @property
    def _launch_options(self) -> dict:
        """A cooperative launch fits or fails, but may wait for the end of another one on its GPU."""
        return COMPILE_OPTIONS | {"launch_cooperative_grid": self._alone}

    def _arguments(self, first_token: int, position: int) -> tuple:
        control, params = self.control, self.params
        return (
            self.weight_rows, self.keys, self.values, self.act, self.lse, self.total, self.words, self.sums, self.picks, self.counters, self.halts,
            self.norms, self.bias, self.cos, self.sin, self.cache.k, self.cache.v, self.embedding, self.logits, params.ints, params.floats,
            control.ring, control.status, control.stop_word, control.error, self.trace, first_token, position,
            self.parts if self.plan.ranks > 1 else self.total, self.addresses, self.ready, self._launches,
        )  # fmt: skip

    @property
    def pushed_bytes(self) -> int:
        return self.plan.pushed_bytes

    def waited_clocks(self) -> list[float]:
        """Clocks that a CTA waited in the last launch, mean over the CTAs: see ``ranks.MultiGpuBackend.waited_us``."""
        return [64 * word / self.plan.ctas for word in self.counters[WAITED : WAITED + 3].tolist()]

    def abandon_peers(self) -> None:
        """End a running launch that would wait for a rank which is gone. By a copy: the kernel leaves no room for another one."""
        stream = torch.cuda.Stream(self.counters.device)
        with torch.cuda.stream(stream):
            self.counters[ABORT].copy_(self._abandoned, non_blocking=True)
        stream.synchronize()

    def close(self) -> None:
        """Free the packed weights and the scratch."""
        for name in ("weights", "weight_rows", "keys", "values", "flags", "act", "lse", "total", "words", "sums", "picks", "parts"):
            setattr(self, name, None)


def rope_tables(config: ModelConfig, context: int, device: torch.device) -> tuple[Tensor, Tensor]:
    """(cos, sin) [context, h / 2] float32."""
    positions = torch.arange(context, device=device).float()
    angles = positions[:, None] * config.rope_inverse_frequencies().to(device)
    return angles.cos().contiguous(), angles.sin().contiguous()


def _norms(weights: ModelWeights, plan: Plan) -> Tensor:
    """[2 layers + 1, padded D]: attention and FFN norm of each layer, then the final norm."""
    rows = [w[0] for layer in weights.layers for w in (layer.attention_norm, layer.ffn_norm)] + [weights.norm[0]]
    out = torch.zeros(len(rows), plan.padded_hidden, dtype=weights.embedding.dtype, device=weights.embedding.device)
    out[:, : plan.hidden] = torch.stack(rows)
    return out


def _biases(weights: ModelWeights) -> Tensor:
    """[layers, rows] of a model with one lane."""
    return torch.stack([layer.qkv_bias[0] for layer in weights.layers]).contiguous()
