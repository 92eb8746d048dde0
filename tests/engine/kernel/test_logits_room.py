"""Log-probabilities keep a row of logits for each token: what does not fit is refused with the number of tokens that would."""

import pytest
import torch

from engine import memory
from engine.errors import InvalidRequest
from engine.kernel import backend


def test_rows_of_logits_that_do_not_fit_are_refused(monkeypatch):
    monkeypatch.setattr(memory, "host_free_bytes", lambda: 4_000_000)
    assert backend._room_for_logits(1000, 1000, torch.device("cpu")).shape == (1000, 1000)
    with pytest.raises(InvalidRequest, match="1,001 tokens take 0.0 GB of memory.*max_tokens to at most 1,000"):
        backend._room_for_logits(1001, 1000, torch.device("cpu"))
