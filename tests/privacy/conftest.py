"""Fixtures of the ledger: keys of a device, and its empty ledger with a small budget."""

from __future__ import annotations

import pytest

from privacy.keys import LedgerKeys, SigningKey
from privacy.ledger import Ledger
from tests.privacy.ledger_helpers import BUDGET


@pytest.fixture(scope="session")
def ledger_keys():
    return LedgerKeys.generate()


@pytest.fixture(scope="session")
def server_key():
    return SigningKey.generate()


@pytest.fixture
def ledger(tmp_path, ledger_keys):
    with Ledger.open(tmp_path / "state", ledger_keys, BUDGET) as ledger:
        yield ledger
