"""A vault with a few records of two servers and of the device itself."""

from __future__ import annotations

import pytest

from device_sdk.vault import OF_THE_DEVICE, Vault
from tests.device_sdk.vault.lives import OTHER_SERVER, SERVER


@pytest.fixture
def filled(state, key_store):
    """The directory of a closed vault; record number 1 is `a` of the server's table."""
    with Vault.open(state, key_store) as vault:
        vault.table(SERVER, "table").put("a", b"content of a")
        vault.table(SERVER, "table").put("b", b"content of b")
        vault.table(SERVER, "other table").put("a", b"another table's a")
        vault.table(OTHER_SERVER, "table").put("a", b"another server's a")
        vault.table(OF_THE_DEVICE, "keys").put("ledger", b"the ledger's keys")
    return state
