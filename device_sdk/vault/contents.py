"""What stands in a vault besides its records: the header in clear, the keys and the index sealed.

    header   whose vault it is, and which key-encryption key of which store opens `keys`
    keys     one key for the device itself and one for each server, sealed under the key-encryption key
    index    how often the vault was written, and for each record its number and its counter, under the device's key

A record's counter is the generation in which it was written. It is part of the record's place, and the index
says which one is current, so an old record put back does not open. Names stand in the index only.
"""

from __future__ import annotations

import os
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, NamedTuple

from device_sdk.errors import VaultBroken, WrongKey
from privacy.canonical import as_text, as_whole, canonical, parse, take_list, take_text, take_whole
from privacy.errors import SealBroken
from privacy.sealing import KEY_BYTES, open_sealed, place, seal

if TYPE_CHECKING:
    from collections.abc import Mapping

OF_THE_DEVICE = ""
"""The scope of what belongs to no server: the index, and what must outlive them all."""
_VERSION = 1
_TAG = "covey-vault-v1"


class RecordName(NamedTuple):
    """Where a record belongs."""

    server: str
    table: str
    record: str


class Entry(NamedTuple):
    """Where a record is stored, and which of its versions is current."""

    number: int
    counter: int


@dataclass(frozen=True)
class Header:
    """What is needed to ask for the key. In clear, and authenticated with what that key seals."""

    device: str
    key_name: str
    store: str
    parameters: str
    keys_generation: int

    def to_bytes(self) -> bytes:
        return canonical({"version": _VERSION, **self.__dict__})

    @classmethod
    def from_bytes(cls, body: bytes) -> Header:
        try:
            fields = parse(body)
            version = take_whole(fields, "version")
            header = cls(
                device=take_text(fields, "device"),
                key_name=take_text(fields, "key_name"),
                store=take_text(fields, "store"),
                parameters=take_text(fields, "parameters"),
                keys_generation=take_whole(fields, "keys_generation"),
            )
        except ValueError:
            raise VaultBroken from None
        if fields or version != _VERSION:
            raise VaultBroken
        return header


Keys = dict[str, bytes]
"""The sealing key of each scope: the device's own, and one for each server."""


def new_key() -> bytes:
    return os.urandom(KEY_BYTES)


def seal_keys(key: bytes, keys: Mapping[str, bytes], header: Header) -> bytes:
    """The keys of all scopes under the key-encryption key."""
    body = canonical({scope: secret.hex() for scope, secret in keys.items()})
    return seal(key, body, place(_TAG, "keys") + header.to_bytes())


def open_keys(key: bytes, sealed: bytes, header: Header) -> Keys:
    """The inverse of `seal_keys`; `WrongKey` if this key or this header is not the one."""
    try:
        fields = parse(open_sealed(key, sealed, place(_TAG, "keys") + header.to_bytes()))
    except SealBroken:
        raise WrongKey(
            "this key or passphrase does not open the vault, or the vault was altered; nothing was read"
        ) from None
    return {scope: bytes.fromhex(secret) for scope, secret in fields.items()}


@dataclass(frozen=True)
class Index:
    """How far the vault has come, and which version of each record is current."""

    generation: int
    keys_generation: int
    spare: tuple[str, str] = ("", "")
    """A key (name, store) that is not yet, or no longer, in use and is to be discarded."""
    entries: dict[RecordName, Entry] = field(default_factory=dict)

    def sealed(self, key: bytes, device: str) -> bytes:
        body = {
            "generation": self.generation,
            "keys_generation": self.keys_generation,
            "spare": list(self.spare),
            "entries": [[*name, *entry] for name, entry in self.entries.items()],
        }
        return seal(key, canonical(body), place(_TAG, "index", device))

    @classmethod
    def from_sealed(cls, key: bytes, device: str, sealed: bytes) -> Index:
        fields = parse(_content(key, sealed, place(_TAG, "index", device)))
        name, store = take_list(fields, "spare")
        return cls(
            take_whole(fields, "generation"),
            take_whole(fields, "keys_generation"),
            (name, store),
            {
                RecordName(*map(as_text, row[:3])): Entry(*map(as_whole, row[3:]))
                for row in take_list(fields, "entries")
            },
        )


def seal_record(keys: Keys, content: bytes, device: str, name: RecordName, counter: int) -> bytes:
    """`content` as a record: under its server's key, bound to device, server, table, record and counter."""
    return seal(keys[name.server], content, place(_TAG, "record", device, *name, counter))


def open_record(keys: Keys, sealed: bytes, device: str, name: RecordName, counter: int) -> bytes:
    """The inverse of `seal_record`; `VaultBroken` for anything else, whatever it is."""
    if name.server not in keys:
        raise VaultBroken
    return _content(keys[name.server], sealed, place(_TAG, "record", device, *name, counter))


def _content(key: bytes, sealed: bytes, where: bytes) -> bytes:
    try:
        return open_sealed(key, sealed, where)
    except SealBroken:
        pass
    # Outside the handler: the cause would tell one failure from another.
    raise VaultBroken
