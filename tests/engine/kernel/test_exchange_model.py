"""The exchange between GPUs as a small state machine, explored in every interleaving.

A rank is two programs that meet at barriers, as in the kernel: in every phase a program reads what is due and pushes its half of
the outputs, which it has just made (then it pushes last), or which the phase before has made (then it pushes first). A pushed word
is delivered at any later time, in any order (two words for the same place stay in order: one sender, one address). The machine
checks that no word is overwritten before all its readers read it, that nothing waits for ever, and that a word that is lost ends
in an error on every rank.

The schedule below is the kernel's: see engine/kernel/portable/exchange.py.
"""

from dataclasses import replace

import pytest

from engine.kernel.portable.path import shape_of
from engine.shapes import SHAPES
from engine.weights import Shard

PROGRAMS = 2
HEAD = "head"


def slots(delay: int) -> int:
    return 2 * delay + 1


NOTHING = (None, 0)


def schedule(layers: int, delay: int, kinds: list[str], tokens: int, early_sums: bool) -> list[tuple]:
    """The phases of one program: (push before it reads, reads, push after it). A push is (place, tag), a place (kind, slot); tags
    count through all tokens.

    early_sums: one row, where the sums of old layers are made a phase before they are due, and outputs of several lanes are pushed
    a phase after they were made; otherwise a chunk of prefill, where sums are made when due and outputs pushed at once.
    """
    phases = []
    later = early_sums and delay > 0
    waiting = NOTHING  # outputs that the next phase pushes
    for token in range(tokens):
        base = token * (layers + 1)

        def due(kind: str, layer: int, base: int = base) -> list[tuple]:
            """What is read when the outputs of ``layer`` are added to the state."""
            if layer < 0:
                return []
            if kinds[layer] == "present":
                return [((kind, layer % slots(delay)), base + layer)]
            return [] if early_sums else old(kind, layer - delay, base)

        def old(kind: str, layer: int, base: int = base) -> list[tuple]:
            return [((kind, layer % slots(delay)), base + layer)] if delay and 0 <= layer < layers - delay else []

        for layer in range(layers):
            early = old("ffn", layer - delay) if early_sums else []
            phases.append((waiting, due("ffn", layer - 1) + early, NOTHING))  # QKV
            output = (("attention", layer % slots(delay)), base + layer)
            phases.append((NOTHING, [], NOTHING if later else output))  # O
            waiting = output if later else NOTHING
            early = old("attention", layer - delay + 1) if early_sums else []
            phases.append((waiting, due("attention", layer) + early, NOTHING))  # gate and up
            output = (("ffn", layer % slots(delay)), base + layer)
            phases.append((NOTHING, [], NOTHING if later else output))  # down
            waiting = output if later else NOTHING
        phases.append((waiting, due("ffn", layers - 1), ((HEAD, token % 2), base + layers)))
        phases.append((NOTHING, [((HEAD, token % 2), base + layers)], NOTHING))
        waiting = NOTHING
    return phases


class Machine:
    """State: what every program did, the tags that lie in every place, the words on their way.

    A program's count is 3 * phase + (0 nothing yet, 1 made the first push, 2 read what is due); the last push ends a phase, and the
    next one starts when all programs of the rank are there. A word: (sender, receiver, place, half), with its tag.
    ``instant``: words arrive when they are pushed. A reader insists on the exact tag, so a late word only makes it wait, and every
    overwriting that a late word can do, an instant one does too: it may take the same steps in the same order. So this keeps all
    failures and far fewer states. ``lost``: a word and tag that never arrive.
    """

    def __init__(self, ranks: int, phases: list[tuple], programs: int = PROGRAMS, instant: bool = True, lost: tuple | None = None):
        self.ranks, self.phases, self.programs, self.instant, self.lost = ranks, phases, programs, instant, lost
        self.sent: set[tuple] = set()
        self.last_read = {(place, tag): phase for phase, (_, reads, _) in enumerate(phases) for place, tag in reads}

    def explore(self) -> tuple[int, list[tuple]]:
        """(number of states, states in which nothing can go on). Raises AssertionError for a word that was overwritten unread."""
        first = ((0,) * (self.ranks * self.programs), {}, ())
        seen, todo, ends = {self._key(*first)}, [first], []
        while todo:
            state = todo.pop()
            following = self._steps(*state)
            if not following:
                ends.append(state)
            for new in following:
                key = self._key(*new)
                if key not in seen:
                    seen.add(key)
                    todo.append(new)
        return len(seen), ends

    def _key(self, counts: tuple, tags: dict, flight: tuple) -> tuple:
        return counts if self.instant else (counts, frozenset(tags.items()), flight)  # instant: the tags follow from the counts

    def finished(self, state: tuple) -> list[bool]:
        """Per program: whether it made all its phases."""
        return [count == 3 * len(self.phases) for count in state[0]]

    def _steps(self, counts: tuple, tags: dict, flight: tuple) -> list[tuple]:
        new, seen = [], set()
        for index, (where, tag) in enumerate(flight):
            if where not in seen:  # words for the same place stay in order
                seen.add(where)
                new.append((counts, self._deliver(counts, tags, [(where, tag)]), flight[:index] + flight[index + 1 :]))
        for number, count in enumerate(counts):
            phase, did = divmod(count, 3)
            if phase == len(self.phases) or not self._can(number, phase, did, counts, tags):
                continue
            after = counts[:number] + (count + 1,) + counts[number + 1 :]
            words = self._words(number, *self.phases[phase][did]) if did != 1 else []
            if self.instant:
                new.append((after, self._deliver(after, tags, words), ()))
            else:
                new.append((after, tags, tuple(sorted(flight + tuple(words)))))
        return new

    def _can(self, number: int, phase: int, did: int, counts: tuple, tags: dict) -> bool:
        rank = number // self.programs
        if did == 0:  # the barrier
            return min(counts[rank * self.programs : (rank + 1) * self.programs]) >= 3 * phase
        if did == 2:
            return True
        reads = self.phases[phase][1]  # everything that is due must be there
        senders = [(sender, half) for sender in range(self.ranks) if sender != rank for half in range(self.programs)]
        return all(tags.get((s, rank, place, half)) == tag for place, tag in reads for s, half in senders)

    def _words(self, number: int, place: tuple | None, tag: int) -> list[tuple]:
        if place is None:
            return []
        rank, half = divmod(number, self.programs)
        words = [((rank, other, place, half), tag) for other in range(self.ranks) if other != rank]
        self.sent.update(words)
        return [word for word in words if word != self.lost]

    def _deliver(self, counts: tuple, tags: dict, words: list[tuple]) -> dict:
        for where, tag in words:
            _, receiver, place, _ = where
            old = tags.get(where)
            assert old is None or old < tag, f"{where}: {tag} arrives after {old}"
            if (place, old) in self.last_read:
                readers = counts[receiver * self.programs : (receiver + 1) * self.programs]
                assert min(readers) > 3 * self.last_read[place, old] + 1, f"{where}: {old} is overwritten by {tag} before it is read"
        return tags | dict(words) if words else tags


def kinds_of(layers: int, delay: int, early: str, late: str) -> list[str]:
    return [early if layer < delay else late for layer in range(layers)]


CASES = {
    "delayed": (2, kinds_of(7, 2, "present", "past")),
    "first layers apart": (2, kinds_of(7, 2, "none", "past")),
    "delay of one": (1, kinds_of(5, 1, "present", "past")),
    "no exchange after the first layers": (1, kinds_of(4, 1, "present", "none")),
    "no exchange at all": (2, kinds_of(5, 2, "none", "none")),
    "one lane": (0, kinds_of(3, 0, "", "present")),
}


@pytest.mark.parametrize("early_sums", [True, False], ids=["decode", "prefill"])
@pytest.mark.parametrize("case", CASES)
def test_nothing_is_overwritten_unread_and_nothing_waits_for_ever(case, early_sums):
    delay, kinds = CASES[case]
    for ranks, programs, tokens in ((2, 1, 3), (2, 2, 1), (3, 1, 1)):
        machine = Machine(ranks, schedule(len(kinds), delay, kinds, tokens, early_sums), programs)
        states, ends = machine.explore()
        assert states > 50
        assert len(ends) == 1 and all(machine.finished(ends[0]))


def test_words_may_be_late_and_out_of_order():
    for delay, kinds, tokens in ((1, kinds_of(3, 1, "present", "past"), 1), (0, kinds_of(2, 0, "", "present"), 2)):
        for early_sums in (True, False):
            machine = Machine(2, schedule(len(kinds), delay, kinds, tokens, early_sums), 1, instant=False)
            states, ends = machine.explore()
            assert states > 300
            assert len(ends) == 1 and all(machine.finished(ends[0]))


def test_the_kernel_has_the_places_of_this_model():
    for name, ranks in (("laneformer-2b", 2), ("laneformer-2b", 8), ("llama-3.1-8b", 4)):
        for delay in (1, 2) if name == "laneformer-2b" else (0,):
            config = SHAPES[name] if not delay else replace(SHAPES[name], delay=delay)
            assert shape_of(config, 1024, 132, 128, True, Shard(0, ranks)).slots == slots(delay)


def test_fewer_slots_would_be_overwritten(monkeypatch):
    monkeypatch.setitem(globals(), "slots", lambda delay: 2 * delay)
    delay, kinds = CASES["delayed"]
    with pytest.raises(AssertionError, match="before it is read"):
        Machine(2, schedule(len(kinds), delay, kinds, 1, False), 1).explore()


@pytest.mark.parametrize("case", ["delay of one", "one lane"])
def test_a_lost_word_keeps_a_reader_waiting_and_nobody_reads_another_in_its_place(case):
    delay, kinds = CASES[case]
    phases = schedule(len(kinds), delay, kinds, 2, True)
    whole = Machine(2, phases, 1)
    whole.explore()
    for word in sorted(whole.sent, key=str):
        (sender, receiver, place, _), tag = word
        machine = Machine(2, phases, 1, lost=word)
        _, ends = machine.explore()
        assert len(ends) == 1
        # the receiver waits for it (and times out) exactly when it reads the word at all; then the sender does not go on for ever either
        read = (place, tag) in machine.last_read
        assert machine.finished(ends[0])[receiver] != read
