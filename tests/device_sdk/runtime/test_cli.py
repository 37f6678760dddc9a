"""`covey device`, as a script would call it, against a real gateway."""

from __future__ import annotations

import io
import json
import sys

import numpy as np
import pytest

import covey
from device_sdk.config import DeviceConfig
from device_sdk.trainers import NumpyTrainer
from tests.device_sdk.runtime.federation import no_weights, started

pytestmark = pytest.mark.integration


def make_trainer():
    """What `--trainer` names."""
    return NumpyTrainer(np.linspace(0, 1, 60, dtype=np.float32).reshape(30, 2), np.arange(30) % 3)


TRAINER = f"{__name__}:make_trainer"


@pytest.fixture
def federation(tmp_path):
    federation = started(tmp_path, no_weights(2, 3))
    yield federation
    federation.server.close()


def call(capsys, *words):
    """The exit code of `covey device ...`, and what it said on either stream."""
    capsys.readouterr()
    code = covey.run(covey.covey, ["device", *map(str, words)])
    return code, *capsys.readouterr()


def enrol(capsys, federation, state, *words):
    server, invitation = federation.server.enrolment_address, federation.server.invitation().to_text()
    keys = ("--key-store", "file", "--key-file", state.parent / "device.key")
    return call(capsys, "enrol", "--server", server, "--invitation", invitation, "--state", state, *keys, *words)


def test_a_device_enrols_takes_part_and_leaves(capsys, federation, tmp_path):
    state = tmp_path / "state"
    code, out, _ = enrol(capsys, federation, state)
    assert (code, out.startswith("enrolled at ")) == (0, True)
    assert call(capsys, "run", "--state", state, "--trainer", TRAINER, "--rounds", 2, "--for-seconds", 60)[:2] == (
        0,
        "sent 2 updates\n",
    )
    code, out, _ = call(capsys, "status", "--state", state, "--json")
    document = json.loads(out)
    assert (code, document["format"], document["standing"]) == (0, "covey-device-status-1", "enrolled")
    assert "enrolled" in call(capsys, "status", "--state", state)[1]
    assert covey.run(covey.covey, ["privacy", "verify", str(state)]) == 0
    assert call(capsys, "leave", "--state", state)[0] == 0
    assert call(capsys, "leave", "--state", state)[0] == 1
    assert len(federation.updates) == 2


def test_what_enrolment_decided_is_kept_for_the_other_commands(capsys, federation, tmp_path):
    state = tmp_path / "state"
    enrol(capsys, federation, state, "--epsilon", 4, "--delta", 1e-7, "--training", "record")
    config = DeviceConfig.read(state / "device.toml", state=state)
    assert (config.budget.epsilon, config.budget.delta, config.budget.training.value) == (4.0, 1e-7, "record")
    assert config.server == str(federation.server.enrolment_address)


def test_an_invitation_may_come_from_standard_input(capsys, federation, tmp_path, monkeypatch):
    monkeypatch.setattr("sys.stdin", io.StringIO(federation.server.invitation().to_text() + "\n"))
    keys = ("--key-store", "file", "--key-file", tmp_path / "device.key")
    server = federation.server.enrolment_address
    assert call(capsys, "enrol", "--server", server, "--invitation", "-", "--state", tmp_path / "state", *keys)[0] == 0


def test_an_invitation_that_was_used_is_refused_in_one_sentence(capsys, federation, tmp_path):
    invitation = federation.server.invitation().to_text()
    server = federation.server.enrolment_address
    for name, expected in (("one", 0), ("two", 1)):
        keys = ("--key-store", "file", "--key-file", tmp_path / f"{name}.key")
        state = tmp_path / name
        code, _, err = call(capsys, "enrol", "--server", server, "--invitation", invitation, "--state", state, *keys)
        assert code == expected
    assert err.count("\n") == 1
    assert "used" in err


def test_a_trainer_is_found_in_the_current_folder(capsys, federation, tmp_path, monkeypatch):
    (tmp_path / "planted_app.py").write_text(f"from {__name__} import make_trainer\n")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("sys.path", [*sys.path])
    enrol(capsys, federation, tmp_path / "state")
    words = ("run", "--state", tmp_path / "state", "--trainer", "planted_app:make_trainer", "--rounds", 1)
    assert call(capsys, *words)[:2] == (0, "sent 1 update\n")


@pytest.mark.parametrize(
    ("words", "code"),
    [
        (["run", "--state", "STATE", "--trainer", "nowhere.at.all:make"], 2),
        (["run", "--state", "STATE", "--trainer", "no-colon"], 2),
        (["run", "--state", "STATE", "--trainer", TRAINER], 1),
        (["status", "--state", "STATE"], 1),
        (["leave", "--state", "STATE"], 1),
        (["enrol", "--server", "nowhere", "--invitation", "covey1-", "--state", "STATE"], 2),
        (["enrol", "--server", "a:1", "--invitation", "covey1-", "--state", "STATE", "--key-store", "file"], 2),
    ],
)
def test_a_wrong_call_says_so(capsys, tmp_path, words, code):
    told = call(capsys, *(str(tmp_path / "state") if word == "STATE" else word for word in words))
    assert told[0] == code
    assert told[2].strip()
