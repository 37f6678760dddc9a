"""The server's side of receipts: accept each release of each device once, in order, and countersign it.

What makes a receipt good is in `privacy.receipts`; what was seen before is on a `ReceiptShelf`, which a
daemon keeps in its store and a simulation in memory.
"""

from __future__ import annotations

import threading
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Protocol

from privacy.errors import ReceiptRefused
from privacy.receipts import Countersignature, Receipt, Refusal

if TYPE_CHECKING:
    from privacy.keys import SigningKey


class ReceiptShelf(Protocol):
    """Where a server keeps receipts, per device. `add` belongs in the transaction that stores the payload."""

    def last(self, device_key: bytes) -> Receipt | None:
        """The newest receipt of a device."""

    def find(self, device_key: bytes, sequence: int) -> Receipt | None:
        """A device's receipt of that number."""

    def add(self, receipt: Receipt, after: Receipt | None) -> bool:
        """Keep `receipt` if `after` is still the device's newest; otherwise do nothing and say so."""


class MemoryShelf:
    """A shelf for one process: tests and simulation."""

    def __init__(self) -> None:
        self._receipts: dict[bytes, dict[int, Receipt]] = {}
        self._mutex = threading.Lock()

    def last(self, device_key: bytes) -> Receipt | None:
        receipts = self._receipts.get(device_key)
        return receipts[max(receipts)] if receipts else None

    def find(self, device_key: bytes, sequence: int) -> Receipt | None:
        return self._receipts.get(device_key, {}).get(sequence)

    def add(self, receipt: Receipt, after: Receipt | None) -> bool:
        with self._mutex:
            if self.last(receipt.device_key) != after:
                return False
            self._receipts.setdefault(receipt.device_key, {})[receipt.sequence] = receipt
            return True


@dataclass(frozen=True)
class Acceptance:
    """What to send back, and whether the release is new or was counted before."""

    countersignature: Countersignature
    repeated: bool


class ReceiptDesk:
    """The server's side: accepts each release of each device once, in order, and countersigns it."""

    def __init__(self, server: str, key: SigningKey, shelf: ReceiptShelf) -> None:
        self._server, self._key, self._shelf = server, key, shelf

    def accept(self, receipt: Receipt, payload_hash: str, device_key: bytes) -> Acceptance:
        """Countersign `receipt`, or raise `ReceiptRefused`.

        `payload_hash` is the SHA-256 of the bytes that arrived, `device_key` the key that the device enrolled.
        """
        receipt.check_device(device_key)
        if receipt.server != self._server:
            raise ReceiptRefused("this receipt is for another server; it was not counted", Refusal.FOREIGN)
        if receipt.payload_hash != payload_hash:
            raise ReceiptRefused("this receipt is for other bytes; they were not counted", Refusal.OTHER_PAYLOAD)
        while True:
            last = self._shelf.last(device_key)
            if receipt == last:
                return Acceptance(self.countersign(receipt), repeated=True)
            self._check_newer(receipt, last)
            if self._shelf.add(receipt, last):
                return Acceptance(self.countersign(receipt), repeated=False)

    def latest(self, device_key: bytes) -> Countersignature | None:
        """How far this server has seen a device's ledger; sent at contact, for `check_contact`."""
        last = self._shelf.last(device_key)
        return None if last is None else self.countersign(last)

    def countersign(self, receipt: Receipt) -> Countersignature:
        """This server's word for an accepted receipt; always the same for the same receipt."""
        unsigned = Countersignature(
            server=self._server,
            server_key=self._key.public_key,
            ledger=receipt.ledger,
            sequence=receipt.sequence,
            head=receipt.head,
            head_signature=receipt.head_signature,
        )
        return replace(unsigned, signature=self._key.sign(unsigned.statement))

    def _check_newer(self, receipt: Receipt, last: Receipt | None) -> None:
        if last is None:
            return
        if receipt.ledger != last.ledger:
            raise ReceiptRefused(
                "this device has begun another ledger; it must enrol anew; nothing was counted", Refusal.FOREIGN
            )
        if receipt.sequence > last.sequence:
            return
        seen = self._shelf.find(receipt.device_key, receipt.sequence)
        if seen is None:
            raise ReceiptRefused(
                f"receipt {receipt.sequence} comes after receipt {last.sequence}; it was not counted", Refusal.REORDERED
            )
        if seen != receipt:
            raise ReceiptRefused(
                f"this device has signed two different entries {receipt.sequence}, so its ledger was set back; "
                "nothing was counted",
                Refusal.FORKED,
            )
        raise ReceiptRefused(f"receipt {receipt.sequence} was counted before; not again", Refusal.REPLAYED)
