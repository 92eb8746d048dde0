"""The reference sampler: pure functions from float32 logits and parameters to a token id.

The kernel's sampler and the torch backend compute exactly this; tests compare them with it.

**Order of the filters**: temperature, top-k, top-p, min-p, the order of Hugging Face Transformers
(``GenerationMixin._get_logits_processor`` in ``generation/utils.py``):

1. ``scaled = logits / temperature`` in float32. Temperature 0 is greedy: the lowest id among the highest logits, nothing else applies.
2. top-k keeps every id whose scaled logit is >= the k-th highest (ids tied with the k-th are kept).
3. top-p looks at the softmax **over what top-k kept**. It keeps every id whose scaled logit is >= the pivot, the pivot being the
   highest value v such that the mass of {scaled >= v} reaches top_p. The most probable id is always kept and ids tied with the
   pivot are kept, so the set depends on values only, never on the order of a sort.
4. min-p keeps ``scaled >= max + log(min_p)``, that is probability >= min_p times the highest. It needs only the maximum, so it is
   the same before or after renormalisation.
5. The token is ``argmax over the kept set of scaled + gumbel(seed, position, id)``; the lowest id wins a tie. By the Gumbel-max theorem
   this draws from the softmax over the kept set.

**Noise.** Counter-based, so that the same seed gives the same tokens on any backend, grid, batch and number of GPUs:

    key     = (seed & 0xffffffff, seed >> 32)
    counter = (token id, position, 0, 0)      # position: index of the new token in the whole sequence (prompt included)
    h       = Philox4x32-10(counter, key)[0]  # uint32; Triton: tl.philox(seed, id, position, 0, 0)[0] with seed as uint64
    u       = min((float32(h) + 0.5) * 2**-32, 1 - 2**-24)
    e       = u + u**2/2 + u**3/3 + u**4/4 + u**5/5 by Horner's rule where u < 1/32, else -log(1 - u)
    gumbel  = -log(e)                         # all in float32; at most 33 * log(2) = 22.9

``e`` is -log1p(-u), an exponential variable, written with operations that every backend has. High noise comes from small u, where
float32 is fine-grained (2**-33), and not from u close to 1, where steps of 2**-24 would bias rare tokens. The clamp keeps e finite:
h = 0xffffffff must not round u to 1.

Implementations agree in the noise bits; the float32 rounding of exp, log and of the order of summation in top-p may differ in the last
place, so two backends can part only where two candidates are that close.
"""

import math

import torch
from torch import Tensor

from engine.request import SamplingParams

PHILOX_ROUNDS = 10
PHILOX_KEY_A, PHILOX_KEY_B = 0x9E3779B9, 0xBB67AE85
PHILOX_ROUND_A, PHILOX_ROUND_B = 0xD2511F53, 0xCD9E8D57
MASK32 = 0xFFFFFFFF
HIGHEST_UNIFORM = 1.0 - 2.0**-24
NOISE_SPAN = 26.0  # noise lies between -log(24 log 2) = -2.9 and 33 log 2 = 22.9
TOP_P_SHORTLIST = 1024


def sample(logits: Tensor, sampling: SamplingParams, seed: int, position: int) -> int:
    """The next token id. ``logits`` [V] float32; ``position``: index that the new token gets in the sequence."""
    if sampling.temperature == 0.0:
        return greedy(logits)
    scaled = logits.float() / sampling.temperature
    if not math.isfinite(scaled.max().item()):  # a temperature so small that the quotient overflows
        return greedy(logits)
    kept = filter_logits(scaled, sampling.top_k, sampling.top_p, sampling.min_p)
    kept &= scaled >= scaled.max() - NOISE_SPAN  # the others cannot win: no noise is drawn for them
    ids = torch.nonzero(kept).squeeze(1)
    return int(ids[greedy(scaled[ids] + gumbel(seed, position, ids))])


def greedy(logits: Tensor) -> int:
    """Lowest id among the highest logits [V]. (torch.argmax promises no order among ties.)"""
    return int(torch.nonzero(logits == logits.max())[0])


def filter_logits(scaled: Tensor, top_k: int, top_p: float, min_p: float) -> Tensor:
    """[V] bool: the ids that may be drawn. ``scaled`` [V] float32 is already divided by the temperature."""
    kept = torch.ones_like(scaled, dtype=torch.bool)
    if 0 < top_k < scaled.numel():
        kept &= scaled >= torch.topk(scaled, top_k).values[-1]
    if top_p < 1.0:
        kept &= scaled >= top_p_pivot(scaled[kept], top_p)
    if min_p > 0.0:
        kept &= scaled >= scaled.max() + math.log(min_p)
    return kept


def top_p_pivot(scaled: Tensor, top_p: float) -> Tensor:
    """Scalar: the highest value v with softmax mass of {scaled >= v} >= top_p. Sorts all of ``scaled`` only when it must."""
    log_mass = torch.logsumexp(scaled, 0)
    for count in (min(TOP_P_SHORTLIST, scaled.numel()), scaled.numel()):
        ordered = torch.topk(scaled, count).values
        reached = (ordered - log_mass).exp().cumsum(0) >= top_p
        if reached.any():
            return ordered[reached.int().argmax()]
    return ordered[-1]


def gumbel(seed: int, position: Tensor | int, ids: Tensor) -> Tensor:
    """[n] float32 noise of the given token ids [n] at a position."""
    u = ((philox(seed, ids, position).to(torch.float32) + 0.5) * 2.0**-32).clamp(max=HIGHEST_UNIFORM)
    series = u * (1 + u * (1 / 2 + u * (1 / 3 + u * (1 / 4 + u * (1 / 5)))))
    return -torch.log(torch.where(u < 1 / 32, series, -torch.log(1 - u)))


def philox(seed: int, c0: Tensor, c1: Tensor | int, rounds: int = PHILOX_ROUNDS) -> Tensor:
    """First output word of Philox4x32 as int64 [n] in [0, 2**32): counter (c0, c1, 0, 0), key = the 64-bit seed."""
    c0 = c0.to(torch.int64) & MASK32
    c1, c2, c3 = torch.zeros_like(c0) + c1, torch.zeros_like(c0), torch.zeros_like(c0)
    k0, k1 = seed & MASK32, (seed >> 32) & MASK32
    for _ in range(rounds):
        high_a, low_a = _multiply(c0, PHILOX_ROUND_A)
        high_b, low_b = _multiply(c2, PHILOX_ROUND_B)
        c0, c1, c2, c3 = high_b ^ c1 ^ k0, low_b, high_a ^ c3 ^ k1, low_a
        k0, k1 = (k0 + PHILOX_KEY_A) & MASK32, (k1 + PHILOX_KEY_B) & MASK32
    return c0


def _multiply(x: Tensor, factor: int) -> tuple[Tensor, Tensor]:
    """High and low 32 bits of x [n] (32-bit values in int64) times a 32-bit constant. The int64 product wraps, its bits are right."""
    product = x * factor
    return (product >> 32) & MASK32, product & MASK32


def logprobs(logits: Tensor, token_id: int, count: int) -> tuple[float, tuple[tuple[int, float], ...]]:
    """Log-probability of ``token_id`` and the ``count`` most probable ids, of the model itself: before temperature and filters."""
    values = torch.log_softmax(logits.float(), 0)
    best = torch.topk(values, min(count, values.numel())) if count else None
    top = tuple(zip(best.indices.tolist(), best.values.tolist(), strict=True)) if best else ()
    return float(values[token_id]), top
