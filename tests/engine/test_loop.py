"""One generation from ids to events, on a scripted backend: counts, ends, stop strings, batching, errors."""

import math
import statistics
import threading
import time

import pytest
import torch

from engine.backend import Token
from engine.errors import DeviceError, InvalidRequest, NumericalError
from engine.kernel.control import FINISH_LENGTH, STATUS_COUNT, STATUS_DONE, STATUS_FINISH, Control
from engine.loop import Loop
from engine.request import Delta, Done, Failed, PrefillProgress, PromptLogprobs, SamplingParams, Started
from engine.tokenizer import load_tokenizer
from engine.worker import Job
from tests.fakes import FAKE_INFO

smollm2 = load_tokenizer("smollm2-135m-instruct")
TEXT = "alpha beta gamma 👩‍👩‍👧 delta"
IDS = smollm2.encode(TEXT)
END = 2


class Script:
    """A backend and its run: gives out ``ids`` one by one, ends like a real one, fails where told."""

    info = FAKE_INFO
    eos_ids = frozenset({END})

    def __init__(self, ids, error=None, step_s=0.0):
        self.ids, self.error, self.step_s = ids, error, step_s
        self.closed = False
        self.made = 0

    def start(self, prompt_ids, sampling, stop_ids, max_tokens):
        self.sampling, self.stop_ids, self.max_tokens = sampling, stop_ids, max_tokens
        self.finish_reason, self.prefill_done, self.stopped = None, len(prompt_ids), threading.Event()
        return self

    def poll(self, timeout_s):
        if self.finish_reason:
            return []
        if self.stopped.wait(self.step_s):
            self.finish_reason = "cancelled"
            return []
        if self.made == len(self.ids):
            raise self.error
        token = Token(self.ids[self.made], time.monotonic_ns(), -0.5, ((1, -0.5), (2, -1.0)))
        self.made += 1
        if token.id in self.stop_ids:
            self.finish_reason = "stop"
        elif self.made == self.max_tokens:
            self.finish_reason = "length"
        return [token]

    def stop(self):
        self.stopped.set()

    def close(self):
        self.closed = True


def run(script, prompt=(5, 6, 7), cancel_first=False, **sampling):
    job = Job("r", list(prompt), SamplingParams(**sampling), time.monotonic_ns())
    if cancel_first:
        job.cancel()
    events = []
    Loop(script, smollm2).run(job, events.extend)
    return events


def text_of(events):
    return "".join(event.text for event in events if isinstance(event, Delta))


def ids_of(events):
    return [i for event in events if isinstance(event, Delta) for i in event.token_ids]


def test_events_in_order():
    events = run(Script([*IDS, END]))
    assert events[0] == Started(3) and events[1] == PrefillProgress(3, 3)
    assert text_of(events) == TEXT and ids_of(events) == [*IDS, END]
    done = events[-1]
    assert done.finish_reason == "stop" and (done.usage.prompt_tokens, done.usage.completion_tokens) == (3, len(IDS) + 1)
    assert 0 <= done.timings.queue_ms <= done.timings.ttft_ms <= done.timings.total_ms and done.timings.decode_tokens_per_s > 0


def test_max_tokens_exact():
    for count in (1, 2, len(IDS)):
        events = run(Script([*IDS, END]), max_tokens=count)
        assert ids_of(events) == IDS[:count] and events[-1].finish_reason == "length"


def test_half_a_character_at_the_end_is_left_out():
    cut = next(n for n in range(1, len(IDS)) if "\ufffd" in smollm2.decode(IDS[:n]))
    events = run(Script(IDS), max_tokens=cut)
    assert ids_of(events) == IDS[:cut] and text_of(events) == smollm2.decode(IDS[:cut]).rstrip("\ufffd")
    assert text_of(run(Script(IDS), max_tokens=cut, stop=("gamma x",))) == text_of(events)


@pytest.mark.parametrize(("before", "made"), [(2, 2), (1, 1), (0, 0)])
def test_context_end(before, made):
    """A prompt of max - 2, max - 1 and exactly max tokens: the rest of the context is used, then it ends with length."""
    events = run(Script([*IDS, END]), prompt=[5] * (FAKE_INFO.context_tokens - before), max_tokens=10)
    assert len(ids_of(events)) == made and events[-1].finish_reason == "length"


def test_every_end_id_ends_and_ignore_eos_does_not():
    script = Script([IDS[0], 2, IDS[1], IDS[2]])
    script.eos_ids = frozenset({IDS[1]})
    assert ids_of(run(script)) == [IDS[0], 2]  # the tokenizer's end id
    script = Script([IDS[0], IDS[1], IDS[2]])
    script.eos_ids = frozenset({IDS[1]})
    assert ids_of(run(script)) == [IDS[0], IDS[1]]  # the model's
    events = run(Script([2, 2, IDS[0]]), ignore_eos=True, max_tokens=3)
    assert ids_of(events) == [2, 2, IDS[0]] and text_of(events) == smollm2.decode([IDS[0]])


def test_stop_string_over_token_boundaries():
    script = Script([*IDS, END])
    events = run(script, stop=("beta gamma",))
    assert text_of(events) == "alpha " and events[-1].finish_reason == "stop" and script.stopped.is_set() and script.closed
    needed = next(n for n in range(len(IDS)) if "beta gamma" in smollm2.decode(IDS[:n]))
    assert events[-1].usage.completion_tokens == needed


def test_a_held_beginning_of_a_stop_string_comes_out_at_the_end():
    assert text_of(run(Script([*IDS, END]), stop=("delta force",))) == TEXT


def test_fast_tokens_leave_in_batches_with_their_times():
    events = run(Script(IDS * 100, step_s=0.0), max_tokens=len(IDS) * 100)
    assert ids_of(events) == IDS * 100
    for delta in (event for event in events if isinstance(event, Delta) and len(event.token_ids) > 1):
        assert sum(count for count, _ in delta.points) == len(delta.token_ids) and delta.points[-1][1] == delta.elapsed_ms


class Ring:
    """A run like the kernel's: somebody writes tokens into the real ring, poll sees them."""

    info = FAKE_INFO
    eos_ids = frozenset()

    def __init__(self, tokens_per_s: float, first_s: float):
        self.step_s, self.first_s = 1 / tokens_per_s, first_s
        self.written_ns: list[int] = []
        self.looks = 0

    def start(self, prompt_ids, sampling, stop_ids, max_tokens):
        self.control, self.prefill_done = Control(max_tokens, torch.device("cpu")), len(prompt_ids)
        self.writer = threading.Thread(target=self._write, args=(max_tokens, time.monotonic()))
        self.writer.start()
        return self

    def _write(self, count: int, started: float) -> None:
        for index in range(count):
            time.sleep(max(0.0, started + self.first_s + index * self.step_s - time.monotonic()))
            self.control.ring[index] = IDS[index % len(IDS)]
            self.written_ns.append(time.monotonic_ns())
            self.control.status[STATUS_COUNT] = index + 1
        self.control.status[STATUS_FINISH] = FINISH_LENGTH
        self.control.status[STATUS_DONE] = 1

    @property
    def finish_reason(self):
        return self.control.finish_reason if self.control._taken == self.control.count else None

    def poll(self, timeout_s):
        self.looks += 1
        ids, now = self.control.wait(timeout_s)
        return [Token(i, now) for i in ids]

    def stop(self):
        pass

    def close(self):
        self.writer.join()


def test_tokens_of_a_ring_carry_the_time_at_which_they_appeared():
    """1,000 tokens/s: batches of 10 ms leave, and each token in them has its own time; between two looks the core is free."""
    ring, count = Ring(1000.0, first_s=0.05), 1000
    job, batches = Job("r", [1, 2, 3], SamplingParams(max_tokens=count), time.monotonic_ns()), []
    Loop(ring, smollm2).run(job, batches.append)
    events = [event for batch in batches for event in batch]
    points = [ms for event in events if isinstance(event, Delta) for _, ms in event.points or ((1, event.elapsed_ms),)][:count]
    late_ms = [ms - (written - job.received_ns) / 1e6 for ms, written in zip(points, ring.written_ns, strict=True)]
    assert ids_of(events) == [IDS[i % len(IDS)] for i in range(count)]
    assert len(batches) <= 1.1 * events[-1].timings.total_ms / 10  # one every 10 ms
    assert statistics.median(late_ms) < 2.5  # measured 0.25; with a look every 10 ms it was 5.1
    assert ring.looks < 3 * events[-1].timings.total_ms  # 1.5 measured, 2 at most; without sleep between looks 10
    timings = events[-1].timings
    assert timings.ttft_ms == points[0]
    written_s = (ring.written_ns[-1] - ring.written_ns[0]) / 1e9
    assert timings.decode_tokens_per_s == pytest.approx((count - 1) / written_s, rel=0.02)


def test_cancelled_before_it_starts():
    script = Script(IDS)
    events = run(script, cancel_first=True)
    assert [type(event) for event in events] == [Done] and events[0].finish_reason == "cancelled" and script.made == 0


def test_a_failure_keeps_what_was_made():
    events = run(Script(IDS[:3], NumericalError("NaN in the logits")))
    assert isinstance(events[-1], Failed) and events[-1].code == "invalid_numbers" and events[-1].usage.completion_tokens == 3
    events = run(Script(IDS[:3], KeyError("bug")))
    assert events[-1].code == "engine_error" and "KeyError" in events[-1].message
    with pytest.raises(DeviceError):
        run(Script(IDS[:3], DeviceError("the GPU is gone")))


def test_logprobs_and_seeds():
    script = Script([*IDS, END])
    events = run(script, logprobs=2)
    first = next(event for event in events if isinstance(event, Delta)).logprobs[0]
    assert (first.token_id, first.logprob, len(first.top)) == (IDS[0], -0.5, 2) and first.text == smollm2.decode(IDS[:1])
    seeds = set()
    for _ in range(3):
        run(script := Script([END]), temperature=1.0)
        seeds.add(script.sampling.seed)
    assert len(seeds) == 3 and None not in seeds
    run(script := Script([END]), temperature=1.0, seed=7)
    assert script.sampling.seed == 7


def test_without_a_tokenizer_text_is_empty():
    job, events = Job("r", [1], SamplingParams(max_tokens=3), time.monotonic_ns()), []
    Loop(Script([9, 8, 7]), None).run(job, events.extend)
    assert ids_of(events) == [9, 8, 7] and text_of(events) == ""


def test_the_prompt_s_own_logprobs_come_first():
    """Of each token given those before it; the first follows nothing."""
    script = Script(IDS)
    script.logits = lambda ids: torch.nn.functional.one_hot(torch.tensor(ids[1:] + [0]), 49_152).float() * 3  # the next one is likely
    events = run(script, prompt=IDS[:3], logprobs=1, prompt_logprobs=True, max_tokens=1)
    assert [type(event) for event in events[:2]] == [Started, PromptLogprobs]
    first, second, third = events[1].tokens
    assert (first.token_id, first.logprob, first.top) == (IDS[0], None, ())
    expected = 3 - math.log(math.exp(3) + 49_151)
    for token, token_id in ((second, IDS[1]), (third, IDS[2])):
        assert token.token_id == token_id and token.logprob == pytest.approx(expected, abs=1e-4)
        assert token.top == ((token_id, smollm2.token_text(token_id), token.logprob),)
    with pytest.raises(InvalidRequest, match="need logprobs"):
        SamplingParams(prompt_logprobs=True)
