"""What the gateway stores: releases with their receipts, who was refused, who is here."""

from __future__ import annotations

from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING

from sqlalchemy import bindparam, insert, select, tuple_, update

from privacy.errors import ReceiptRefused
from privacy.receipts import Receipt
from server_kit.errors import CorruptRecord, UnreadableReceipt
from server_kit.store import schema
from server_kit.store.accepting import Acceptance
from server_kit.store.parcels import check_there, discard, pack
from server_kit.store.parts import Part
from server_kit.store.schema import RECEIPT_BODY

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    from device_sdk.wire.messages import DeviceId
    from server_kit.store.database import Row
    from server_kit.store.parcels import Parcel
    from server_kit.store.protocol import Arrival, Unreadable

_RECEIPTS = schema.receipts
_LAST = (
    select(_RECEIPTS.c.device_key, _RECEIPTS.c.sequence, _RECEIPTS.c.body)
    .where(_RECEIPTS.c.device_key == bindparam("of_key"))
    .order_by(_RECEIPTS.c.sequence.desc())
    .limit(1)
)
_FIND = select(_RECEIPTS.c.device_key, _RECEIPTS.c.sequence, _RECEIPTS.c.body).where(
    _RECEIPTS.c.device_key == bindparam("of_key"), _RECEIPTS.c.sequence == bindparam("of_sequence")
)
_OF_KEY = (
    select(_RECEIPTS.c.device_key, _RECEIPTS.c.sequence, _RECEIPTS.c.body)
    .where(_RECEIPTS.c.device_key == bindparam("of_key"))
    .order_by(_RECEIPTS.c.sequence)
)
_PAGE = (
    select(_RECEIPTS.c.device_key, _RECEIPTS.c.sequence, _RECEIPTS.c.body)
    .where(tuple_(_RECEIPTS.c.device_key, _RECEIPTS.c.sequence) > tuple_(bindparam("of_key"), bindparam("of_sequence")))
    .order_by(_RECEIPTS.c.device_key, _RECEIPTS.c.sequence)
    .limit(500)
)
_OWNER = select(schema.newest_receipts.c.device).where(schema.newest_receipts.c.device_key == bindparam("of_key"))
_IS_ENROLLED = select(schema.devices.c.device).where(schema.devices.c.device == bindparam("of_device"))
_COUNT_REFUSAL = (
    update(schema.refusals)
    .where(schema.refusals.c.device == bindparam("of_device"), schema.refusals.c.reason == bindparam("of_reason"))
    .values(count=schema.refusals.c.count + bindparam("times"))
)
_FIRST_REFUSAL = insert(schema.refusals)
_SEE = (
    update(schema.devices)
    .where(schema.devices.c.device == bindparam("of_device"))
    .values(last_seen_seconds=bindparam("at"))
)


class SqlIntake(Part):
    """Releases, receipts, refusals."""

    def accept(self, arrivals: Sequence[Arrival], now_seconds: float) -> list[bool]:
        parcels = self._packed(arrivals, now_seconds)
        # What fails from here on leaves its blobs to the sweeper: after a commit that failed in the middle nobody
        # knows yet whether a row names them.
        with self._database.writing() as session:
            acceptance = Acceptance(session, self._ring.sealer(session), arrivals, now_seconds, self._ground.quota)
            kept = [acceptance.add(*pair) for pair in zip(arrivals, parcels, strict=True)]
            check_there(self._blobs, acceptance.blobs)
            acceptance.write()
        discard(self._blobs, {parcel.blob for parcel in parcels} - acceptance.blobs)
        for arrival, is_kept in zip(arrivals, kept, strict=True):
            if is_kept and isinstance(arrival.payload, Path):
                # It is stored: that its file cannot be deleted is no failure.
                with suppress(OSError):
                    arrival.payload.unlink()
        return kept

    def last_receipt(self, device_key: bytes) -> Receipt | None:
        with self._database.looking() as session:
            row = session.one(_LAST, of_key=device_key)
        return None if row is None else self._receipt(row)

    def find_receipt(self, device_key: bytes, sequence: int) -> Receipt | None:
        with self._database.looking() as session:
            row = session.one(_FIND, of_key=device_key, of_sequence=sequence)
        return None if row is None else self._receipt(row)

    def receipts_of(self, device_key: bytes, on_unreadable: Unreadable | None = None) -> list[Receipt]:
        with self._database.looking() as session:
            rows = session.all(_OF_KEY, of_key=device_key)
        return list(self._readable(rows, on_unreadable))

    def receipts(self, on_unreadable: Unreadable | None = None) -> Iterator[Receipt]:
        after: tuple[bytes, int] | None = (b"", -1)
        while after is not None:
            with self._database.looking() as session:
                rows = session.all(_PAGE, of_key=after[0], of_sequence=after[1])
            yield from self._readable(rows, on_unreadable)
            after = rows[-1][:2] if rows else None

    def device_of(self, device_key: bytes) -> DeviceId | None:
        with self._database.looking() as session:
            row = session.one(_OWNER, of_key=device_key)
        return None if row is None else row[0]

    def count_refusal(self, reason: str, device: DeviceId | None, now_seconds: float) -> None:
        self.count_refusals({(reason, device): 1}, now_seconds)

    def count_refusals(self, counts: Mapping[tuple[str, DeviceId | None], int], now_seconds: float) -> None:
        del now_seconds
        with self._database.writing() as session:
            for (reason, device), times in counts.items():
                known = device is not None and session.one(_IS_ENROLLED, of_device=device) is not None
                for name in ("", device) if known else ("",):
                    if not session.run(_COUNT_REFUSAL, of_device=name, of_reason=reason, times=times):
                        session.run(_FIRST_REFUSAL, device=name, reason=reason, count=times)

    def seen(self, devices: Sequence[DeviceId], now_seconds: float) -> None:
        with self._database.writing() as session:
            session.many(_SEE, [{"of_device": device, "at": now_seconds} for device in devices])

    def _packed(self, arrivals: Sequence[Arrival], now_seconds: float) -> list[Parcel]:
        parcels: list[Parcel] = []
        try:
            for arrival in arrivals:
                parcels.append(pack(self._blobs, arrival, now_seconds))  # noqa: PERF401 - those before a failure count
        except BaseException:
            # At once: a disk that is full should not stay full of orphans.
            discard(self._blobs, [parcel.blob for parcel in parcels])
            raise
        return parcels

    def _readable(self, rows: Sequence[Row], on_unreadable: Unreadable | None) -> Iterator[Receipt]:
        for row in rows:
            try:
                yield self._receipt(row)
            except (CorruptRecord, UnreadableReceipt):
                if on_unreadable is None:
                    raise
                on_unreadable(self.device_of(row[0]) or "")

    def _receipt(self, row: Row) -> Receipt:
        device_key, sequence, body = row
        try:
            return Receipt.from_json(self._ring.open(body, RECEIPT_BODY, device_key, sequence))
        except ReceiptRefused:
            raise UnreadableReceipt from None
