"""Who may clear a place of a hand-over buffer, and when: the fast path's protocol as a graph of what happens before what.

A value is its own flag, so between two values that lie at the same place three things must happen in this order, in every interleaving:
all readers of the old value read it, somebody clears the place, the new value is written. Who looks for the new value may look before it is
there, but not before the place is cleared. An order holds in every interleaving exactly when it follows from program order and from "a
value is read after it was written". So each CTA is a list of operations, and the test looks for paths.

The model is the kernel's schedule with few CTAs: rows of O and attention outputs are made by one CTA only, in turn (in the kernel, too, not
every CTA makes some), all others by all; the rows that a CTA adds up lie in one part. Ranks own two lanes, half a layer apart, or one.
"""

from collections import defaultdict

import pytest

CTAS = 3  # of a rank
DELAY = 2


class Schedule:
    """Operations of all CTAs. ``writes[value]``, ``reads[place, use]``, ``clears[place, use]``, ``puts[place, use]``: their numbers."""

    def __init__(
        self, ranks: int, layers: int, common: int, tokens: int, *, lanes: int = 2, parities: int = 8, ahead: int = 2, token_slots: int = 4
    ):
        """lanes: of a rank."""
        self.ranks, self.layers, self.common, self.lanes = ranks, layers, common, lanes
        self.parities, self.ahead, self.token_slots = parities, ahead, token_slots
        self.before: list[list] = []  # of an operation: the numbers of operations before it, or values that must have been written
        self.writes = defaultdict(list)
        self.reads, self.clears, self.puts = defaultdict(list), defaultdict(list), defaultdict(list)
        self.looks = defaultdict(list)  # of [place, use]: the operations right after which somebody may look for the first time
        for rank in range(ranks):
            for cta in range(CTAS):
                self._last, self._rank, self._cta, self._look = None, rank, cta, None
                for token in range(tokens):
                    self._token(token)

    # --- operations of the CTA that is being written down

    def _add(self, values=()) -> int:
        self.before.append(([] if self._last is None else [self._last]) + list(values))
        self._last = len(self.before) - 1
        self._look = None
        return self._last

    def _write(self, value: tuple, places=()) -> None:
        """``places``: (place, use) of each copy."""
        number = self._add()
        self.writes[value].append(number)
        for place in places:
            self.puts[place].append(number)

    def _read(self, value: tuple, place: tuple | None = None) -> None:
        look = self._last if self._look is None else self._look
        number = self._add([value])
        if place:
            self.reads[place].append(number)
            self.looks[place].append(look)
            self._look = look  # all reads in a row may begin together

    def _clear(self, place: tuple) -> None:
        self.clears[place].append(self._add())

    # --- rows of lanes, of which each rank has a copy

    def _place(self, rank: int, kind: str, lane: int, n: int, part: int) -> tuple:
        return (rank, kind, lane, part, n % self.parities), n

    def _write_rows(self, kind: str, lane: int, n: int, parts: list[int]) -> None:
        for part in parts:
            self._clear(self._place(self._rank, kind, lane, n + self.ahead, part))
            self._write((kind, lane, n, part), [self._place(rank, kind, lane, n, part) for rank in range(self.ranks)])

    def _read_rows(self, kind: str, lane: int, n: int) -> None:
        for part in range(CTAS):
            self._read((kind, lane, n, part), self._place(self._rank, kind, lane, n, part))

    def _sums(self, n: int) -> None:
        """This CTA's columns of the sums over all lanes. Copies of other ranks' rows are cleared by their only reader."""
        for kind, made in (("o", n - DELAY + 1), ("m", n - DELAY)):
            for part in self._columns() if made >= 0 else ():
                for lane in range(self.ranks * self.lanes):
                    place = self._place(self._rank, kind, lane, made, part)
                    self._read((kind, lane, made, part), place)
                    if lane // self.lanes != self._rank:
                        self._clear((place[0], made + self.parities))
                self._clear(self._place(self._rank, "e" + kind, 0, made + self.ahead, part))
                self._write(("e" + kind, self._rank, made, part), [self._place(self._rank, "e" + kind, 0, made, part)])

    @property
    def _by_idle(self) -> bool:
        """Some CTAs make the delayed sums, while others do the output projection of the first of two lanes."""
        return self.ranks > 1 and self.lanes > 1

    def _columns(self) -> list[int]:
        """Parts of the delayed sums that this CTA makes."""
        if not self._by_idle:
            return [self._cta]
        return [[], [0], [1, 2]][self._cta]

    def _read_sums(self, kind: str, made: int) -> None:
        for part in range(CTAS):
            self._read(("e" + kind, self._rank, made, part), self._place(self._rank, "e" + kind, 0, made, part))

    # --- what all ranks need at once: this CTA clears, on its rank, what it and its like on other ranks will write two uses later

    def _put_everywhere(self, kind: str, use: int, period: int, part: int) -> None:
        for owner in range(self.ranks):
            later = use + self.ahead
            self._clear(((self._rank, kind, owner, part, later % period), later))
        self._write((kind, self._rank, use, part), [((rank, kind, self._rank, part, use % period), use) for rank in range(self.ranks)])

    def _read_everywhere(self, kind: str, use: int, period: int) -> None:
        for owner in range(self.ranks):
            for part in range(CTAS):
                self._read((kind, owner, use, part), ((self._rank, kind, owner, part, use % period), use))

    # --- the kernel's order

    def _lanes(self) -> list[int]:
        return [self._rank * self.lanes + k for k in range(self.lanes)]

    def _local(self, kind: str, key: tuple, makes: bool) -> None:
        if makes:
            self._write((kind, *key))

    def _write_qkv(self, lane: int, n: int) -> None:
        """Every CTA makes a part, another one in every layer."""
        part = (self._cta + n) % CTAS
        self._clear(self._place(self._rank, "qkv", lane, n + self.ahead, part))
        self._write(("qkv", lane, n, part), [self._place(self._rank, "qkv", lane, n, part)])

    def _turn(self, n: int) -> bool:
        return n % CTAS == self._cta

    def _token(self, token: int) -> None:
        if self.lanes == 1:
            self._chain(token)
        else:
            self._layers(token)
        self._put_everywhere("head", token, self.token_slots, self._cta)
        self._read_everywhere("head", token, self.token_slots)
        self._put_everywhere("word", token, self.token_slots, self._cta)
        self._read_everywhere("word", token, self.token_slots)

    def _chain(self, token: int) -> None:
        """All layers of a rank's only lane."""
        lane = self._rank
        for layer in range(self.layers):
            n, sums = token * self.layers + layer, token * self.common + layer
            self._add_block("m", token, layer - 1)
            self._local("qkv", (lane, n), True)
            self._read(("qkv", lane, n))
            self._local("attention", (lane, n), self._turn(n + 1))
            self._read(("attention", lane, n))
            parts = list(range(CTAS)) if self._turn(n) else []
            self._write_rows("o", lane, n, parts)
            for part in parts if layer < self.common else []:
                self._put_everywhere("po", sums, self.parities, part)
            self._add_block("o", token, layer)
            self._local("u", (lane, n), True)
            self._sums(n)
            self._read(("u", lane, n))
            self._write_rows("m", lane, n, [(self._cta + n) % CTAS])
            if layer < self.common:
                self._put_everywhere("pm", sums, self.parities, (self._cta + n) % CTAS)
        self._add_block("m", token, self.layers - 1)

    def _add_block(self, kind: str, token: int, layer: int) -> None:
        """What the state of a rank's only lane takes from O or W2 of a layer (-1: none)."""
        made = token * self.layers + layer
        if layer >= self.common:
            self._read_rows(kind, self._rank, made)
            if layer >= DELAY:
                self._read_sums(kind, made - DELAY)
        elif layer >= 0:
            self._read_everywhere("p" + kind, token * self.common + layer, self.parities)

    def _layers(self, token: int) -> None:
        """The layers of two lanes."""
        for layer in range(self.common):
            n, sums = token * self.layers + layer, token * self.common + layer
            if layer:
                self._read_everywhere("pm", sums - 1, self.parities)
            for lane in self._lanes():
                self._write_qkv(lane, n)
            for lane in self._lanes():
                self._attend(lane, n)
            for lane in self._lanes():
                self._read_attention(lane, n)
            parts = list(range(CTAS)) if self._turn(n) else []
            for lane in self._lanes():
                self._write_rows("o", lane, n, parts)
            for part in parts:
                self._put_everywhere("po", sums, self.parities, part)
            self._read_everywhere("po", sums, self.parities)
            self._local("u", (self._rank, n), True)
            self._sums(n)
            self._read(("u", self._rank, n))
            for lane in self._lanes():
                self._write_rows("m", lane, n, [(self._cta + n) % CTAS])
            self._put_everywhere("pm", sums, self.parities, (self._cta + n) % CTAS)
        if self.common:
            self._read_everywhere("pm", token * self.common + self.common - 1, self.parities)
        halves = 2 * (self.layers - self.common) + 1
        for half in range(halves):
            self._half(token, half, halves)
        if halves > 1:
            n = (token + 1) * self.layers
            self._state(n, self._lanes()[1], self.layers)

    def _state(self, n: int, lane: int, layer: int) -> None:
        """What the state of a lane before ``layer`` takes from the layer before."""
        if layer > self.common:
            self._read_rows("m", lane, n - 1)
            if layer > DELAY:
                self._read_sums("m", n - 1 - DELAY)

    def _half(self, token: int, half: int, halves: int) -> None:
        own, other = self._lanes()[half & 1], self._lanes()[1 - (half & 1)]
        layer, other_layer = self.common + half // 2, self.common + (half - 1) // 2
        n, m = token * self.layers + layer, token * self.layers + other_layer
        if half < halves - 1 or half & 1 == 0:
            self._state(n, own, layer)
        if half < halves - 1:
            self._write_qkv(own, n)
        if half:
            self._read_rows("o", other, m)
            if other_layer >= DELAY:
                self._read_sums("o", m - DELAY)
            self._local("u", (other, m), True)
        if half < halves - 1:
            self._attend(own, n)
        if half & 1 and half < halves - 1 and not self._by_idle:
            self._sums(n)
        if half:
            self._read(("u", other, m))
            self._write_rows("m", other, m, [(self._cta + m) % CTAS])
        if half & 1 == 0 and half < halves - 1 and self._by_idle:
            self._sums(n)
        parts = self._output_parts(half, n) if half < halves - 1 else []
        if parts:
            self._read_attention(own, n)
        self._write_rows("o", own, n, parts)

    def _attend(self, lane: int, n: int) -> None:
        """One CTA makes the attention of a lane. It clears before it looks for its input; the others go on."""
        if self._turn(n + 1):
            self._clear(self._place(self._rank, "attention", lane, n + self.ahead, 0))
            self._read_rows("qkv", lane, n)
            self._write(("attention", lane, n), [self._place(self._rank, "attention", lane, n, 0)])

    def _read_attention(self, lane: int, n: int) -> None:
        self._read(("attention", lane, n), self._place(self._rank, "attention", lane, n, 0))

    def _output_parts(self, half: int, n: int) -> list[int]:
        """Parts of a lane's output projection that this CTA makes: of the first lane none where it makes delayed sums meanwhile."""
        if self._by_idle and half & 1 == 0:
            return [] if self._columns() else list(range(CTAS))
        return list(range(CTAS)) if self._turn(n) else []

    # --- what follows from it

    def earlier(self) -> list[int]:
        """For every operation those that precede it in every interleaving, as bits. Fails when operations wait for each other."""
        direct = []
        for needs in self.before:
            direct.append([number for need in needs for number in ([need] if isinstance(need, int) else self.writes[need])])
            assert all(isinstance(need, int) or self.writes[need] for need in needs), "a value that nobody makes"
        sets: list[int | None] = [None] * len(direct)
        waiting = [len(set(needs)) for needs in direct]
        followers = defaultdict(list)
        for number, needs in enumerate(direct):
            for need in set(needs):
                followers[need].append(number)
        ready = [number for number, count in enumerate(waiting) if not count]
        while ready:
            number = ready.pop()
            bits = 0
            for need in direct[number]:
                bits |= sets[need] | 1 << need
            sets[number] = bits
            for follower in followers[number]:
                waiting[follower] -= 1
                if not waiting[follower]:
                    ready.append(follower)
        assert None not in sets, "operations wait for each other"
        return sets

    def check(self) -> int:
        """Number of values written to a place that was used before. Raises AssertionError where the order is not certain."""
        earlier, period = self.earlier(), {"head": self.token_slots, "word": self.token_slots}
        again = 0
        for (place, use), puts in self.puts.items():
            old = use - period.get(place[1], self.parities)
            if old < 0:
                continue
            again += 1
            clears = self.clears[place, use]
            assert len(clears) == 1, f"{place}: {len(clears)} clears before use {use}"
            for read in self.reads[place, old]:
                assert earlier[clears[0]] >> read & 1, f"{place}: use {old} may be cleared before it is read"
            for put in puts:
                assert earlier[put] >> clears[0] & 1, f"{place}: use {use} may be written before the place is cleared"
        for place_and_use, looks in self.looks.items():
            for clear in self.clears[place_and_use] if place_and_use in self.puts else ():
                for look in looks:
                    assert (earlier[look] | 1 << look) >> clear & 1, f"{place_and_use}: may be looked for before the place is cleared"
        return again


# ranks, layers, layers in common, tokens, lanes of a rank
CASES = {
    "2 ranks": (2, 6, 2, 6, 2),
    "4 ranks": (4, 4, 2, 6, 2),
    "8 ranks of one lane": (8, 4, 2, 6, 1),
    "one lane each, more layers": (4, 7, 2, 5, 1),
    "one lane each, no layers in common": (3, 5, 0, 6, 1),
    "no layers in common": (2, 5, 0, 6, 2),
    "a model of one lane": (3, 3, 3, 7, 2),
    "one rank": (1, 6, 2, 6, 2),
}


@pytest.mark.parametrize("case", CASES)
def test_every_place_is_cleared_after_its_readers_and_before_its_next_writer(case):
    ranks, layers, common, tokens, lanes = CASES[case]
    assert Schedule(ranks, layers, common, tokens, lanes=lanes).check() > 100


@pytest.mark.parametrize("lanes", [1, 2])
def test_too_few_buffers_are_found(lanes):
    with pytest.raises(AssertionError, match="may be cleared before it is read"):
        Schedule(2, 6, 2, 4, lanes=lanes, parities=3).check()


@pytest.mark.parametrize("lanes", [1, 2])
def test_clearing_for_others_at_the_last_moment_is_found(lanes):
    with pytest.raises(AssertionError, match="may be written before the place is cleared"):
        Schedule(2, 6, 2, 6, lanes=lanes, ahead=0).check()
