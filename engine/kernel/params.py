"""How a request's sampling parameters reach a kernel: two small blocks in device memory, shared by every path.

ints, int32 [64]:
  0 MAX_TOKENS    tokens to make at most
  1 TOP_K         0: off
  2 SEED_LOW, 3 SEED_HIGH   halves of the 64-bit Philox key
  4 N_STOP        number of stop ids (0 when end ids are ignored)
  5 SPIN_LIMIT    polls of one wait before ERROR_SPIN_LIMIT
  8.. STOP_IDS    at most MAX_STOP_IDS
floats, float32 [8]:
  0 TEMPERATURE   0: greedy, filters are ignored; kernels divide by it, as engine/sampling.py does
  1 TOP_P         1.0: off
  2 LOG_MIN_P     log(min_p); -inf: off
"""

import math

import torch

from engine.errors import InvalidRequest
from engine.request import SamplingParams

MAX_TOKENS, TOP_K, SEED_LOW, SEED_HIGH, N_STOP, SPIN_LIMIT = range(6)
STOP_IDS = 8
MAX_STOP_IDS = 48
TEMPERATURE, TOP_P, LOG_MIN_P = range(3)
INTS, FLOATS = 64, 8
DEFAULT_SPIN_LIMIT = 4_000_000  # some seconds


class ParamBlock:
    """The two device blocks and their pinned staging copies."""

    def __init__(self, device: torch.device):
        pinned = device.type == "cuda"
        self.ints = torch.zeros(INTS, dtype=torch.int32, device=device)
        self.floats = torch.zeros(FLOATS, dtype=torch.float32, device=device)
        self._ints = torch.zeros(INTS, dtype=torch.int32, pin_memory=pinned)
        self._floats = torch.zeros(FLOATS, dtype=torch.float32, pin_memory=pinned)
        self.ints[SPIN_LIMIT] = DEFAULT_SPIN_LIMIT  # a prefill alone needs nothing else

    def write(
        self, sampling: SamplingParams, seed: int, stop_ids: frozenset[int], max_tokens: int, spin_limit: int = DEFAULT_SPIN_LIMIT
    ) -> None:
        """Copy one request's parameters to the device on the current stream. No launch may be running.

        ``stop_ids`` is empty when end ids are ignored. Raises InvalidRequest beyond MAX_STOP_IDS stop ids.
        """
        if len(stop_ids) > MAX_STOP_IDS:
            raise InvalidRequest(f"At most {MAX_STOP_IDS} end-of-sequence ids are taken; got {len(stop_ids)}.")
        words = self._ints
        words.zero_()
        words[MAX_TOKENS], words[TOP_K] = max_tokens, sampling.top_k
        words[SEED_LOW], words[SEED_HIGH] = _signed(seed & 0xFFFFFFFF), _signed(seed >> 32)
        words[N_STOP], words[SPIN_LIMIT] = len(stop_ids), spin_limit
        if stop_ids:
            words[STOP_IDS : STOP_IDS + len(stop_ids)] = torch.tensor(sorted(stop_ids), dtype=torch.int32)
        self._floats[TEMPERATURE], self._floats[TOP_P] = sampling.temperature, sampling.top_p
        self._floats[LOG_MIN_P] = math.log(sampling.min_p) if sampling.min_p > 0 else -math.inf
        self.ints.copy_(self._ints, non_blocking=True)
        self.floats.copy_(self._floats, non_blocking=True)

    @property
    def max_tokens(self) -> int:
        """MAX_TOKENS of the parameters last written."""
        return int(self._ints[MAX_TOKENS])

    @property
    def greedy(self) -> bool:
        """Whether the parameters last written have temperature 0."""
        return float(self._floats[TEMPERATURE]) == 0.0


def _signed(word: int) -> int:
    return word - (1 << 32) if word >= 1 << 31 else word
