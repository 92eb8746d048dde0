"""Log-probabilities keep a row of logits for each token: what does not fit is refused with the number of tokens that would."""

from types import SimpleNamespace

import pytest
import torch

from engine import memory
from engine.errors import InvalidRequest
from engine.kernel.backend import MonokernelBackend


def test_rows_of_logits_that_do_not_fit_are_refused(monkeypatch):
    monkeypatch.setattr(memory, "host_free_bytes", lambda: 4_000_000)
    backend = SimpleNamespace(device=torch.device("cpu"), portable=SimpleNamespace(shape=SimpleNamespace(vocab=1000)))
    MonokernelBackend.check_room(backend, 1000)
    with pytest.raises(InvalidRequest, match="1,001 tokens take 0.0 GB of memory.*max_tokens to at most 1,000"):
        MonokernelBackend.check_room(backend, 1001)
