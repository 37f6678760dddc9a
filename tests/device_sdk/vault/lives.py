"""What a device does with its vault in one life, for `tests.device_sdk.mortal` to cut short anywhere."""

from __future__ import annotations

import resource
from pathlib import Path

from device_sdk.errors import VaultUnavailable
from device_sdk.key_stores import FileKeyStore
from device_sdk.vault import OF_THE_DEVICE, Vault

SERVER, OTHER_SERVER = "fl.example.com:8443", "other.example.com:8443"
CONTENTS = {
    (SERVER, "a"): b"content of a",
    (SERVER, "b"): b"content of b",
    (OTHER_SERVER, "a"): b"another server's",
    (OF_THE_DEVICE, "ledger"): b"the ledger's keys",
}


def key_store(home: Path) -> FileKeyStore:
    return FileKeyStore(home / "device.key")


def opened(home: Path) -> Vault:
    return Vault.open(home / "state", key_store(home))


def create(home: Path) -> None:
    opened(home).close()


def fill(home: Path) -> None:
    with opened(home) as vault, vault.changing():
        for (server, record), content in CONTENTS.items():
            vault.table(server, "table").put(record, content)


def rotate(home: Path) -> None:
    with opened(home) as vault:
        vault.rotate()


def shred(home: Path) -> None:
    with opened(home) as vault:
        vault.shred(SERVER)


def fill_the_disk(home: Path) -> None:
    """Write more than fits: the write must be refused, and the vault must be as it was."""
    vault = opened(home)
    table = vault.table(SERVER, "table")
    resource.setrlimit(resource.RLIMIT_FSIZE, (200_000, resource.RLIM_INFINITY))
    try:
        table.put("a", bytes(1_000_000))
    except VaultUnavailable:
        pass
    else:
        raise AssertionError("the disk was full, and nobody said so")
    resource.setrlimit(resource.RLIMIT_FSIZE, (resource.RLIM_INFINITY, resource.RLIM_INFINITY))
    try:
        table.put("a", b"written on")
    except VaultUnavailable:
        return
    raise AssertionError("after a failed write the vault must be opened anew")


def rotate_carelessly(home: Path) -> None:
    """The broken twin: the old key is gone before the vault is sealed under the new one."""
    with opened(home) as vault:
        store = key_store(home)
        for name in list(store._read()):
            store.discard(name)
        vault.rotate()


def found(home: Path) -> dict[tuple[str, str], bytes | None]:
    with opened(home) as vault:
        return {(server, record): vault.table(server, "table").get(record) for server, record in CONTENTS}
