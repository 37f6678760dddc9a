"""Records are in memory and nowhere else: no file, log line or message carries them."""

from __future__ import annotations

import logging

import numpy as np
import pytest

from device_sdk.trainers import NumpyTrainer
from tests.device_sdk.runtime.asking import Asking, voting_for

pytestmark = pytest.mark.integration


CANARY = np.float32(0.123456789)


def traces(contents):
    """Which of these hold the canary, in any of its spellings."""
    spellings = (CANARY.tobytes(), str(CANARY).encode(), repr(float(CANARY)).encode())
    return [name for name, content in contents.items() if any(spelling in content for spelling in spellings)]


def test_nothing_of_the_data_is_found_in_files_logs_or_messages(begin, tmp_path, caplog):
    inputs, labels = np.full((30, 2), CANARY), np.full(30, 2)
    federation = begin(rounds=2)
    asking = Asking(federation, [{"models": [voting_for(0), voting_for(2)]}, {"models": [voting_for(2)]}])
    with caplog.at_level(logging.DEBUG), federation.enrolled(tmp_path) as device:
        device.share_label_histogram(labels, num_labels=3, epsilon=0.5)
        device.run(NumpyTrainer(inputs, labels), rounds=2, timeout_seconds=30)
        files = {path.name: path.read_bytes() for path in (tmp_path / "state").iterdir()}
    arrived = enumerate(federation.server.desk.accepted)
    sent = {f"release {number}": repr(header).encode() + payload for number, (_, header, payload) in arrived}
    logged = {"log": "\n".join(f"{record.getMessage()} {record.__dict__}" for record in caplog.records).encode()}
    assert files.keys() >= {"vault.db", "ledger.db"}
    assert len(sent) == 5
    assert len(asking.answers) == 2
    assert traces({**files, **sent, **logged}) == []


def test_a_trace_would_be_found():
    planted = {"bytes": np.full(3, CANARY).tobytes(), "text": f"loss {CANARY}".encode(), "clean": b"round_accepted"}
    assert traces(planted) == ["bytes", "text"]
