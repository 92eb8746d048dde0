"""What a running kernel and the host tell each other: token ring, count, stop word, error record.

All host-visible words live in pinned memory that the GPU maps (zero copy). The kernel writes a token, then the count with a
system-scope release; the host reads the count and then the tokens. The host writes the stop word; the kernel reads it once per
token. On the CPU (Triton's interpreter) the same tensors are ordinary memory.
"""

import time
from dataclasses import dataclass

import torch

from engine.errors import DeviceError, EngineError, NumericalError

# Error codes (error record word 0). 0: no error.
ERROR_NAN_HIDDEN = 1
ERROR_NAN_LOGITS = 2
ERROR_SPIN_LIMIT = 3
ERROR_PEER_LOST = 4

# Words of the error record, int32 [8]. The first reporter claims word 0 on the device; later ones change nothing.
ERROR_CODE, ERROR_PLACE, ERROR_LAYER, ERROR_POSITION, ERROR_RANK, ERROR_PROGRAM = range(6)
ERROR_WORDS = 8

# Places (error record word 1): the phase in which a program waited or met a bad number.
PLACES = {
    0: "start of the launch",
    1: "norm and QKV",
    2: "rotary embedding and KV append",
    3: "attention",
    4: "output projection",
    5: "norm, gate and up projection",
    6: "down projection",
    7: "final norm and head",
    8: "sampling",
    9: "step to the next token",
    10: "lane reduction and norm",
    11: "exchange with another GPU",
}
PLACE_REDUCE, PLACE_EXCHANGE = 10, 11

# Words of `status`, int32 [8], pinned. Written by the kernel except STOP.
STATUS_COUNT = 0  # tokens in the ring; released after the data
STATUS_FINISH = 1  # FINISH_*; valid once STATUS_DONE is set
STATUS_DONE = 2  # 1: the launch made its last token (released after everything else)
STATUS_PREFILL = 3  # prompt tokens processed so far
STATUS_WORDS = 8
FINISH_NONE, FINISH_STOP, FINISH_LENGTH, FINISH_CANCELLED, FINISH_ERROR = range(5)
FINISH_NAMES = {FINISH_STOP: "stop", FINISH_LENGTH: "length", FINISH_CANCELLED: "cancelled"}

SPIN_NS = 200_000  # a waiting host thread spins this long,
SLEEP_S = 100e-6  # then sleeps in steps of this length


@dataclass(frozen=True)
class ErrorRecord:
    """One error that a kernel reported."""

    code: int
    place: int
    layer: int
    position: int
    rank: int
    program: int

    def to_exception(self) -> EngineError:
        where = f"{PLACES.get(self.place, 'an unknown place')}, layer {self.layer}, position {self.position}, GPU {self.rank}"
        if self.code == ERROR_NAN_HIDDEN:
            return NumericalError(f"The hidden state holds NaN or infinity ({where}).")
        if self.code == ERROR_NAN_LOGITS:
            return NumericalError(f"The logits hold NaN or infinity ({where}).")
        if self.code == ERROR_PEER_LOST:
            return DeviceError(f"Another GPU did not answer in time ({where}).")
        return DeviceError(f"The kernel waited longer than its limit ({where}, program {self.program}).")


class Control:
    """Host side of the protocol for one rank. One generation at a time.

    Attributes handed to a kernel (all int32):
      ring   [max_tokens]    pinned; token k of the generation
      status [STATUS_WORDS]  pinned; see STATUS_*
      stop_word [1]          pinned; host writes 1, the kernel reads it once per token
      error  [ERROR_WORDS]   pinned; see ERROR_*
      device [64]            device memory, zeroed by reset(): word 1 is claimed (0 -> code) by the first reporter of an error;
                             words 2..31 are the portable path's (4: prefill failed), 32..63 a faster path's
    """

    def __init__(self, max_tokens: int, device: torch.device, rank: int = 0):
        self.rank = rank
        pinned = device.type == "cuda"
        self.ring = torch.zeros(max_tokens, dtype=torch.int32, pin_memory=pinned)
        self.status = torch.zeros(STATUS_WORDS, dtype=torch.int32, pin_memory=pinned)
        self.stop_word = torch.zeros(1, dtype=torch.int32, pin_memory=pinned)
        self.error = torch.zeros(ERROR_WORDS, dtype=torch.int32, pin_memory=pinned)
        self.device = torch.zeros(64, dtype=torch.int32, device=device)
        # numpy views: a plain memory read per poll, no torch dispatch
        self._ring, self._status, self._stop, self._error = (t.numpy() for t in (self.ring, self.status, self.stop_word, self.error))
        self._taken = 0

    def reset(self) -> None:
        """Clear everything for the next generation. No launch may be running; enqueues one small device memset."""
        self._ring[:] = 0
        self._status[:] = 0
        self._stop[:] = 0
        self._error[:] = 0
        self.device.zero_()
        self._taken = 0

    def stop(self) -> None:
        """Ask the kernel to end; honoured within one token. Thread-safe."""
        self._stop[0] = 1

    @property
    def count(self) -> int:
        """Tokens in the ring."""
        return int(self._status[STATUS_COUNT])

    @property
    def prefill_done(self) -> int:
        return int(self._status[STATUS_PREFILL])

    @property
    def done(self) -> bool:
        return bool(self._status[STATUS_DONE])

    @property
    def finish_reason(self) -> str | None:
        """ "stop" | "length" | "cancelled"; None while running or after an error."""
        return FINISH_NAMES.get(int(self._status[STATUS_FINISH])) if self.done else None

    def poll(self) -> list[int]:
        """Token ids that appeared since the last poll, in order. Never blocks."""
        count = self.count
        if count == self._taken:
            return []
        tokens = self._ring[self._taken : count].tolist()
        self._taken = count
        return tokens

    def wait(self, timeout_s: float) -> tuple[list[int], int]:
        """(new token ids, time.monotonic_ns() at which they were seen); ([], now) after ``timeout_s`` or once done.

        Spins for a moment and then sleeps in short steps, so that a waiting host thread leaves the core to others.
        """
        deadline = time.monotonic_ns() + int(timeout_s * 1e9)
        spin_until = time.monotonic_ns() + SPIN_NS
        while True:
            done = self.done  # before the count: a token written before `done` is then never missed
            tokens = self.poll()
            now = time.monotonic_ns()
            if tokens or done or self.error_record() is not None or now >= deadline:
                return tokens, now
            if now > spin_until:
                time.sleep(SLEEP_S)

    def error_record(self) -> ErrorRecord | None:
        if not self._error[ERROR_CODE]:
            return None
        return ErrorRecord(*(int(word) for word in self._error[:6]))

    def raise_for_error(self) -> None:
        """Raise NumericalError or DeviceError when the kernel reported one."""
        record = self.error_record()
        if record is not None:
            raise record.to_exception()
