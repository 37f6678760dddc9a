"""A device's state in a temporary directory, under a key file."""

from __future__ import annotations

import logging

import pytest

from device_sdk.events import EventFormatter
from device_sdk.key_stores import FileKeyStore
from device_sdk.vault import Vault

SERVER = "fl.example.com:8443"


@pytest.fixture
def key_store(tmp_path):
    return FileKeyStore(tmp_path / "keys" / "device.key")


@pytest.fixture
def state(tmp_path):
    return tmp_path / "state"


@pytest.fixture
def vault(state, key_store):
    with Vault.open(state, key_store) as vault:
        yield vault


@pytest.fixture
def events(caplog):
    """The names of the events so far."""
    caplog.set_level(logging.DEBUG)
    return lambda: [record.event for record in caplog.records if hasattr(record, "event")]


@pytest.fixture
def lines(caplog):
    """The log so far, as an app would write it."""
    caplog.set_level(logging.DEBUG)
    return lambda: [EventFormatter().format(record) for record in caplog.records]
