"""One core for torch: the machine that runs the tests may be shared."""

from __future__ import annotations

import pytest
import torch


@pytest.fixture(autouse=True)
def _one_core():
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)
