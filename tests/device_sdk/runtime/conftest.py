"""Federations that begin and end with a test, and one core for torch: the machine may be shared."""

from __future__ import annotations

import pytest
import torch

from tests.device_sdk.runtime.asking import Asking
from tests.device_sdk.runtime.federation import no_weights, started


@pytest.fixture
def begin(tmp_path):
    """Starts a federation, by default with a model for two features and three labels; ends them all."""
    running = []

    def start(weights=None, **settings):
        federation = started(tmp_path, weights or no_weights(2, 3), **settings)
        running.append(federation)
        return federation

    yield start
    for federation in running:
        federation.server.close()


@pytest.fixture
def ask(begin):
    """A federation that asks these questions at the first check-in, by default without tasks."""
    return lambda *asked, rounds=0: Asking(begin(rounds=rounds), list(asked))


@pytest.fixture(autouse=True)
def _one_core():
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)
