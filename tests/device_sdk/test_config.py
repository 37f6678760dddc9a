"""Settings are what was written, or an error that names the setting; nothing is guessed."""

from __future__ import annotations

import dataclasses
from pathlib import Path

import pytest

from device_sdk.config import DeviceConfig, KeySettings, KeyStoreKind
from device_sdk.errors import InvalidConfig
from device_sdk.key_stores import FileKeyStore, OsKeyStore, PassphraseKeyStore
from device_sdk.question_policy import QuestionPolicy
from privacy.budget import PrivacyBudget, PrivacyUnit

TOML = """
server = "fl.example.com:8443"
state = "state"
[budget]
epsilon = 8
delta = 1e-6
training = "record"
[keys]
store = "file"
file = "device.key"
[conditions]
patience_seconds = 30
[exploration]
first = 0.5
[rounds]
most_attempts = 2
[questions]
accuracy = false
epsilon_in_all = 1
"""
LEAST = {"server": "h:1", "state": "state", "budget": {"epsilon": 8, "delta": 1e-6}}


def read(tmp_path, text, **settings):
    (tmp_path / "device.toml").write_text(text)
    return DeviceConfig.read(tmp_path / "device.toml", **settings)


def test_everything_is_read_from_toml(tmp_path):
    config = read(tmp_path, TOML)
    assert config.server == "fl.example.com:8443"
    assert config.state == Path("state")
    assert config.budget == PrivacyBudget(epsilon=8.0, delta=1e-6, training=PrivacyUnit.RECORD)
    assert config.keys == KeySettings(KeyStoreKind.FILE, Path("device.key"))
    assert (config.conditions.patience_seconds, config.conditions.ask_every_seconds) == (30.0, 5.0)
    assert (config.exploration.first, config.rounds.most_attempts) == (0.5, 2)
    assert config.questions == QuestionPolicy(accuracy=False, epsilon_in_all=1.0)


def test_keyword_arguments_win_name_by_name(tmp_path):
    config = read(tmp_path, TOML, server="other:1", conditions={"ask_every_seconds": 1}, rounds={"most_attempts": 7})
    assert config.server == "other:1"
    assert (config.conditions.ask_every_seconds, config.conditions.patience_seconds) == (1.0, 30.0)
    assert config.rounds.most_attempts == 7


def test_a_budget_object_is_taken_as_it_is():
    budget = PrivacyBudget(epsilon=1, delta=1e-9)
    assert DeviceConfig.of(**{**LEAST, "budget": budget}).budget is budget


def test_settings_cannot_be_changed():
    with pytest.raises(dataclasses.FrozenInstanceError):
        DeviceConfig.of(**LEAST).server = "other:1"  # type: ignore[misc]


@pytest.mark.parametrize(
    ("settings", "sentence"),
    [
        ({"sever": "h:1"}, "unknown setting 'sever'; did you mean 'server'?"),
        ({"budgets": {}}, "unknown setting 'budgets'; did you mean 'budget'?"),
        (
            {"conditions": {"patience": 3}},
            "[conditions]: unknown setting 'patience'; did you mean 'patience_seconds'?",
        ),
        (
            {"keys": {"store": "os", "passphrase": "secret"}},
            "[keys]: unknown setting 'passphrase'; there are file, store",
        ),
        ({"server": "h" * 300 + ":1"}, "server is host:port"),
        ({"server": "h\n:1"}, "server is host:port"),
        ({"keys": {"store": "fil"}}, "[keys] [store]: unknown value 'fil'; did you mean 'file'?"),
        ({"keys": {"store": "file"}}, "[keys]: store 'file' needs file (--key-file)"),
        ({"keys": {"file": "device.key"}}, "[keys]: file (--key-file) belongs to store 'file'"),
        ({"keys": "os"}, "[keys]: expected a table, got str"),
        ({"server": 7}, "[server]: expected a text, got int"),
        ({"server": "fl.example.com"}, "server is host:port"),
        ({"server": "fl.example.com:99999"}, "server is host:port"),
        ({"rounds": {"most_attempts": 1.5}}, "[rounds] [most_attempts]: expected a whole number, got float"),
        ({"rounds": {"most_attempts": True}}, "[rounds] [most_attempts]: expected a whole number, got bool"),
        ({"rounds": {"most_attempts": 0}}, "[rounds]: most_attempts is at least 1"),
        ({"conditions": {"least_battery_level": float("nan")}}, "[conditions]: least_battery_level lies"),
        ({"questions": {"loss": 1}}, "[questions] [loss]: expected true or false, got int"),
        ({"questions": {"epsilon_per_answer": 0}}, "[questions]: epsilon_per_answer must be above 0, got 0"),
        ({"exploration": {"decay": "slow"}}, "[exploration] [decay]: expected a number, got str"),
        ({"exploration": {"decay": 1.5}}, "exploration.decay lies between 0 and 1"),
        ({"budget": {"epsilon": 8}}, "[budget]: delta is not given"),
        ({"budget": {"epsilon": -8, "delta": 1e-6}}, "[budget]: a budget needs a finite ε above 0"),
    ],
)
def test_what_is_wrong_is_named_with_its_place(settings, sentence):
    with pytest.raises(InvalidConfig) as caught:
        DeviceConfig.of(**{**LEAST, **settings})
    assert str(caught.value).startswith(sentence)


def test_what_is_missing_is_named():
    with pytest.raises(InvalidConfig, match="state is not given"):
        DeviceConfig.of(server="h:1")


def test_the_file_is_named(tmp_path):
    with pytest.raises(InvalidConfig, match=r"^device.toml \[keys\]: unknown setting 'stor'; did you mean 'store'\?"):
        read(tmp_path, TOML.replace('store = "file"', 'stor = "file"'))
    with pytest.raises(InvalidConfig, match=r"^device.toml is not TOML"):
        read(tmp_path, "server = ")
    with pytest.raises(InvalidConfig, match=r"^missing.toml could not be read"):
        DeviceConfig.read(tmp_path / "missing.toml")


def test_the_chosen_store_is_opened_and_no_other(tmp_path, events):
    assert isinstance(KeySettings().open(), OsKeyStore)
    assert isinstance(KeySettings(KeyStoreKind.PASSPHRASE).open(lambda: "a passphrase"), PassphraseKeyStore)
    assert events() == []
    assert isinstance(KeySettings(KeyStoreKind.FILE, tmp_path / "key").open(), FileKeyStore)
    assert events() == ["key_file_used"]
    with pytest.raises(InvalidConfig, match="asks for it"):
        KeySettings(KeyStoreKind.PASSPHRASE).open()
