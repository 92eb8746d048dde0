"""How a generation of the Gluon kernel ends, on one rank and on several (``emulator``): stop ids, stop word, bad numbers."""

import numpy as np
import pytest

pytest.importorskip("triton")
pytest.importorskip("greenlet")

from engine.errors import NumericalError
from engine.kernel.control import ERROR_PEER_LOST, ERROR_SPIN_LIMIT
from tests.engine.kernel.gluon.emulator import INT32, Machine, Memory, Value
from tests.engine.kernel.gluon.test_values import LANES, LLAMA, TOKENS, generate, make, run

RANKS = {"lanes, one rank": (LANES, 1, 8), "lanes, 8 ranks": (LANES, 8, 1), "one lane": (LLAMA, 1, 4), "one lane, 2 ranks": (LLAMA, 2, 3)}


class HostStops(Machine):
    """The host asks for the end once it has seen so many tokens."""

    def __init__(self, memory: Memory, after: int):
        self.after, self.asked = after, 0
        super().__init__(memory)

    def read_stop(self, host, pid):
        ask = int(pid) == 0 and self.memory.load(host[1]) >= self.after
        self.asked += ask
        return Value(np.int32(ask))


@pytest.mark.parametrize("case", RANKS)
def test_a_stop_id_ends_the_generation_and_is_kept(case):
    config, ranks, ctas = RANKS[case]
    memory = Memory()
    paths = make(config, ranks, ctas, memory)
    free, _ = generate(paths, memory)
    end = next(i for i in range(1, TOKENS) if free[i] not in free[:i])
    others = [token for token in range(config.vocab_size) if token not in free[: end + 1]]
    below, above = ([token for token in others if (token < free[end]) == low] for low in (True, False))
    for stop_ids in ({free[end], *below[-40:]}, {free[end], *above[:40]}):  # the last of the ids, and the first
        assert run(paths, Machine(memory), stop_ids=frozenset(stop_ids)) == free[: end + 1]
        for path in paths:
            path.control.raise_for_error()
            assert path.control.finish_reason == "stop"
            assert path.control.ring[end + 1 :].eq(0).all()  # nothing is written after the end


class WaitsTooLong(Machine):
    """The wait with this number reaches its limit; the others have none."""

    def __init__(self, memory: Memory, waits: int):
        self.waits = waits
        super().__init__(memory)

    def wait_count(self, counter, target, guard):
        self.waits -= 1
        if self.waits == 0:
            self.memory.store(Value(guard[0].data, INT32), guard[2].data)
        super().wait_count(counter, target, guard)


@pytest.mark.parametrize("after", [0, 2])
@pytest.mark.parametrize("case", RANKS)
def test_the_stop_word_ends_all_ranks_within_a_token(case, after):
    config, ranks, ctas = RANKS[case]
    memory = Memory()
    paths = make(config, ranks, ctas, memory)
    machine = HostStops(memory, after)
    made = run(paths, machine, count=6)
    assert len(made) <= after + 1 and machine.asked
    for path in paths:
        path.control.raise_for_error()
        assert path.control.finish_reason == "cancelled"
    assert generate(paths, memory, 3)[0][: len(made)] == made


@pytest.mark.parametrize("case, bad", [(case, float("inf" if case == "one lane" else "nan")) for case in RANKS])
def test_a_bad_weight_of_one_rank_ends_all_with_an_error(case, bad):
    config, ranks, ctas = RANKS[case]
    memory = Memory()
    paths = make(config, ranks, ctas, memory)
    last = paths[-1]
    for unit, words in ((0, "hidden state.*layer [01], position 11"), (last.plan.first_head_unit, "logits.*final norm and head")):
        kept = last.weights[unit].clone()
        last.weights[unit] = bad
        assert run(paths, Machine(memory)) == []
        last.weights[unit] = kept
        with pytest.raises(NumericalError, match=words):
            last.control.raise_for_error()
        for path in paths:
            assert path.control.finish_reason is None
            with pytest.raises(NumericalError):
                path.control.raise_for_error()
    assert len(generate(paths, memory, 1)[0]) == 1  # nothing is left behind


@pytest.mark.parametrize("case", [case for case in RANKS if RANKS[case][1] > 1])
def test_a_wait_of_one_rank_that_reaches_its_limit_ends_all(case):
    config, ranks, ctas = RANKS[case]
    memory = Memory()
    paths = make(config, ranks, ctas, memory)
    run(paths, WaitsTooLong(memory, 40 * ranks * ctas))
    codes = [path.control.error_record().code for path in paths]
    assert sorted(codes) in (
        [ERROR_SPIN_LIMIT] + [ERROR_PEER_LOST] * (ranks - 1),
        [ERROR_PEER_LOST] * ranks,
    )  # its own, or for another rank
    assert len(generate(paths, memory, 1)[0]) == 1  # nothing is left behind
