"""Receipts: excerpts of a device's ledger that a server verifies, and countersigns.

A device sends a receipt with every release: what it cost, which bytes, how far the ledger has come. The
server refuses what is not signed by the enrolled device, not for this server, not for the bytes that
arrived, or not newer than what it has seen, and signs the rest: *I have seen this ledger at this entry*. The ledger
that it knows is an excerpt of its own (`privacy.ledger.excerpts`), which tells nothing of other servers.
The device keeps that. From then on neither side can deny the spend, and a ledger that was set back is
found out at the next contact (`check_contact`).

Releases are sent in the order of their numbers. After a lost acknowledgement the same receipt is sent
again, recognised, answered with the same countersignature and counted once.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from enum import StrEnum
from typing import TYPE_CHECKING, Self

from cryptography.exceptions import InvalidSignature

from privacy.canonical import canonical, parse, take_hex, take_text, take_whole
from privacy.errors import ReceiptRefused
from privacy.keys import check_signature
from privacy.ledger.entries import Head, head_statement
from privacy.ledger.terms import MOST_FOREIGN, cost_fields, take_cost

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from privacy.budget import PrivacyCost
    from privacy.canonical import Fields
    from privacy.ledger import Ledger
    from privacy.release import Release

_RECEIPT_TAG = "covey-receipt-v1"
_COUNTERSIGNATURE_TAG = "covey-countersignature-v1"


class Refusal(StrEnum):
    """Why a receipt or countersignature is refused (`ReceiptRefused.reason`)."""

    FOREIGN = "foreign"
    FORGED = "forged"
    OTHER_PAYLOAD = "other payload"
    REPLAYED = "replayed"
    REORDERED = "re-ordered"
    FORKED = "forked"


@dataclass(frozen=True)
class Receipt:
    """One release as its ledger books it, signed by the device."""

    ledger: str
    device_key: bytes
    server: str
    sequence: int
    mechanism: str
    cost: PrivacyCost
    payload_hash: str
    request: str
    head: bytes
    head_signature: bytes
    """The device's signature of this entry alone: the server hands it back as proof of what it has seen."""
    signature: bytes = b""

    @property
    def statement(self) -> bytes:
        """What the device signs."""
        return canonical({**self._fields(), "tag": _RECEIPT_TAG})

    def to_json(self) -> bytes:
        """One line of JSON, in the one spelling that `from_json` takes."""
        return canonical({**self._fields(), "signature": self.signature.hex()})

    @classmethod
    def from_json(cls, line: bytes) -> Self:
        """The receipt on a line; `ReceiptRefused` for anything `to_json` would not write."""
        try:
            fields = parse(line)
            receipt = cls(
                ledger=take_text(fields, "ledger"),
                device_key=take_hex(fields, "device_key"),
                server=take_text(fields, "server"),
                sequence=take_whole(fields, "sequence"),
                mechanism=take_text(fields, "mechanism"),
                cost=take_cost(fields, MOST_FOREIGN),
                payload_hash=take_text(fields, "payload_hash"),
                request=take_text(fields, "request"),
                head=take_hex(fields, "head"),
                head_signature=take_hex(fields, "head_signature"),
                signature=take_hex(fields, "signature"),
            )
        except ValueError as error:
            raise _unreadable("receipt") from error
        if fields:
            raise _unreadable("receipt")
        return receipt

    def check_device(self, device_key: bytes) -> None:
        """Raise `ReceiptRefused` unless the device with this key signed the receipt and its entry."""
        if self.device_key != device_key:
            raise ReceiptRefused("this receipt is another device's; it was not counted", Refusal.FOREIGN)
        entry = head_statement(self.ledger, self.sequence, self.head)
        _check_signed(device_key, self.statement, self.signature, "this receipt is not signed by its device")
        _check_signed(device_key, entry, self.head_signature, "the entry of this receipt is not signed by its device")

    def _fields(self) -> Fields:
        return {
            "ledger": self.ledger,
            "device_key": self.device_key.hex(),
            "server": self.server,
            "sequence": self.sequence,
            "mechanism": self.mechanism,
            **cost_fields(self.cost),
            "payload_hash": self.payload_hash,
            "request": self.request,
            "head": self.head.hex(),
            "head_signature": self.head_signature.hex(),
        }


@dataclass(frozen=True)
class Countersignature:
    """A server's word that it has seen a ledger at an entry, with the device's own signature of that entry."""

    server: str
    server_key: bytes
    ledger: str
    sequence: int
    head: bytes
    head_signature: bytes
    signature: bytes = b""

    @property
    def statement(self) -> bytes:
        """What the server signs."""
        return canonical({**self._fields(), "tag": _COUNTERSIGNATURE_TAG})

    @property
    def entry(self) -> Head:
        """What the device signed, and its signature."""
        return Head(self.ledger, self.sequence, self.head, self.head_signature)

    def to_json(self) -> bytes:
        return canonical({**self._fields(), "signature": self.signature.hex()})

    @classmethod
    def from_json(cls, line: bytes) -> Self:
        """The countersignature on a line; `ReceiptRefused` for anything `to_json` would not write."""
        try:
            fields = parse(line)
            countersignature = cls(
                server=take_text(fields, "server"),
                server_key=take_hex(fields, "server_key"),
                ledger=take_text(fields, "ledger"),
                sequence=take_whole(fields, "sequence"),
                head=take_hex(fields, "head"),
                head_signature=take_hex(fields, "head_signature"),
                signature=take_hex(fields, "signature"),
            )
        except ValueError as error:
            raise _unreadable("countersignature") from error
        if fields:
            raise _unreadable("countersignature")
        return countersignature

    def check_server(self) -> None:
        """Raise `ReceiptRefused` unless the key it names signed it. Whose key that is, the caller must know."""
        _check_signed(
            self.server_key, self.statement, self.signature, "this countersignature is not signed by its server"
        )

    def check_device(self, ledger: str, device_key: bytes) -> None:
        """Raise `ReceiptRefused` unless it is about an entry of `ledger` that its own device signed."""
        if self.ledger != ledger:
            raise ReceiptRefused("this countersignature is about another ledger; it was not kept", Refusal.FOREIGN)
        _check_signed(
            device_key,
            self.entry.statement,
            self.head_signature,
            "this countersignature is about an entry that this device never signed",
        )

    def _fields(self) -> Fields:
        return {
            "server": self.server,
            "server_key": self.server_key.hex(),
            "ledger": self.ledger,
            "sequence": self.sequence,
            "head": self.head.hex(),
            "head_signature": self.head_signature.hex(),
        }


def issue_receipt(ledger: Ledger, release: Release) -> Receipt:
    """The receipt to send with `release`; the same release always has the same receipt, byte for byte."""
    release.for_sending()
    face = ledger.face_of(release)
    signature = face.signing.sign(head_statement(face.ledger, face.sequence, face.digest))
    head = Head(face.ledger, face.sequence, face.digest, signature)
    receipt = Receipt(
        ledger=face.ledger,
        device_key=face.signing.public_key,
        server=release.server,
        sequence=face.sequence,
        mechanism=release.mechanism,
        cost=release.cost,
        payload_hash=release.payload_hash,
        request=release.request,
        head=head.digest,
        head_signature=head.signature,
    )
    ledger.note_signed(release, head)
    return replace(receipt, signature=face.signing.sign(receipt.statement))


def verify_countersignature(countersignature: Countersignature, server: str, server_key: bytes) -> None:
    """Raise `ReceiptRefused` unless this server, under its pinned key, gave the countersignature."""
    check_pinned(countersignature, server, server_key)
    countersignature.check_server()


def check_pinned(countersignature: Countersignature, server: str, server_key: bytes) -> None:
    """Raise `ReceiptRefused` unless it names this server and its pinned key; `check_server` tells if they signed it."""
    if countersignature.server != server or countersignature.server_key != server_key:
        raise ReceiptRefused("this countersignature is another server's; it was not kept", Refusal.FOREIGN)


def check_contact(ledger: Ledger, latest: Countersignature | None, server: str, server_key: bytes) -> None:
    """At contact: `LedgerTampered` if the server has seen entries of this ledger that are no longer in it."""
    if latest is not None:
        check_pinned(latest, server, server_key)
        ledger.keep(latest)  # checks the signatures


def receipts_to_lines(receipts: Iterable[Receipt]) -> Iterator[str]:
    """JSON lines for `covey privacy report --receipts`."""
    return (receipt.to_json().decode("ascii") + "\n" for receipt in receipts)


def receipts_from_lines(lines: Iterable[str]) -> Iterator[Receipt]:
    """The receipts in JSON lines, each signed by the device it names; `ReceiptRefused` at the first bad line."""
    for number, line in enumerate(lines, start=1):
        if not line.strip():
            continue
        try:
            receipt = Receipt.from_json(line.strip().encode())
            receipt.check_device(receipt.device_key)
        except ReceiptRefused as error:
            raise ReceiptRefused(f"line {number}: {error}", error.reason) from error
        yield receipt


def _check_signed(key: bytes, statement: bytes, signature: bytes, complaint: str) -> None:
    try:
        check_signature(key, statement, signature)
    except InvalidSignature as error:
        raise ReceiptRefused(f"{complaint}; it was not counted", Refusal.FORGED) from error


def _unreadable(what: str) -> ReceiptRefused:
    return ReceiptRefused(f"this is not a {what} in our format; it was not counted", Refusal.FORGED)
