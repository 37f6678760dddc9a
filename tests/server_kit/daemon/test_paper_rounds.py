"""Rounds of the daemon's coordinator and workers on a store: what is accepted is folded once, whoever dies when."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
import torch

from tests.server_kit.daemon.paper_server import PaperServer, step_of


@pytest.fixture
def server(tmp_path: Path) -> Iterator[PaperServer]:
    made = PaperServer(tmp_path)
    yield made
    made.close()


def test_a_round_asks_folds_and_goes_on(server: PaperServer) -> None:
    devices = server.devices(4)
    server.turn()
    tasks = [device.task for device in devices]
    assert all(task is not None for task in tasks)
    step = step_of(tasks[0])  # type: ignore[arg-type]
    for number, device in enumerate(devices):
        device.answer(number)
    server.turn()
    assert torch.allclose(server.model(), torch.full((8,), step * (0 + 1 + 2 + 3) / 4))
    assert server.store.cohorts()[0].round == 1
    assert not server.store.tasks()
    for device in devices:
        device.check_in()
    server.turn()
    assert all(device.task is not None and device.task.round == 1 for device in devices)
