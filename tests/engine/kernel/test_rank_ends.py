"""After bad numbers, which the engine survives, the next generation waits for all kernels to end: a late one tells the others to stop."""

from types import SimpleNamespace

import pytest

from engine.errors import DeviceError, NumericalError
from engine.kernel.ranks import MultiGpuRun, _generate
from engine.request import SamplingParams


class Run:
    """A generation of one rank that ends with NaN."""

    finish_reason = None
    _sampling = SamplingParams()

    def __init__(self, log: list):
        self.log = log

    def poll(self, timeout_s: float):
        raise NumericalError("The logits hold NaN.")

    def abandon_peers(self) -> None:
        pass

    def stop(self) -> None:
        pass

    def close(self) -> None:
        self.log.append("kernel ended")


class Rank:
    """Rank 0's end of the door to a rank that was told to stop, and whose kernel ends or does not."""

    def __init__(self, log: list, ends: bool = True, error: Exception = DeviceError("Another GPU did not answer in time.")):  # noqa: B008
        self.log, self.ends, self.error = log, ends, error

    def check(self) -> None:
        pass

    def answer(self, call: int, timeout_s: float) -> None:
        self.log.append(call)
        if call > 0:
            raise self.error
        if not self.ends:
            raise DeviceError("GPU 2 does not answer.")


def failed_run(ranks: list[Rank]) -> MultiGpuRun:
    run = MultiGpuRun(Run([]), ranks, [7] * len(ranks))
    with pytest.raises(NumericalError):
        run.poll(0.0)
    return run


def test_a_rank_tells_its_failure_at_once_and_then_the_end_of_its_kernel():
    log = []
    connection = SimpleNamespace(send=log.append, poll=lambda seconds: False)
    backend = SimpleNamespace(start=lambda *arguments: Run(log))
    _generate(connection, 7, backend, [[1], SamplingParams(), frozenset(), 1])
    assert log == [(7, "failed", NumericalError.code, "The logits hold NaN."), "kernel ended", (-7, "done", None)]


def test_after_bad_numbers_the_end_of_every_kernel_is_awaited():
    log = []
    run = failed_run([Rank(log), Rank(log)])
    assert log == [7, 7] and not run.failed
    run.close()
    assert log == [7, 7, -7, -7] and not run.failed
    run.close()
    assert log == [7, 7, -7, -7]


def test_a_kernel_that_does_not_end_after_bad_numbers_is_a_failure():
    run = failed_run([Rank([]), Rank([], ends=False)])
    with pytest.raises(DeviceError, match="GPU 2 does not answer"):
        run.close()
    assert run.failed


def test_bad_numbers_of_a_generation_that_was_stopped_are_no_error_and_every_kernel_is_awaited():
    """A stop string is found while the kernels still make tokens, of which nobody polls the bad one."""
    log = []
    bad = NumericalError("The logits hold NaN.")
    run = MultiGpuRun(Run([]), [Rank(log, error=bad), Rank(log, error=bad)], [7, 7])
    run.stop()
    run.close()
    assert log == [7, -7, -7] and not run.failed
    run.close()
    assert log == [7, -7, -7]
