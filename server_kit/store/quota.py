"""How much of a device's summaries is kept: its newest, within a quota of rows and of bytes."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, NamedTuple

from sqlalchemy import bindparam, delete, func, or_, select

from server_kit.store import schema

if TYPE_CHECKING:
    from server_kit.store.database import Session
    from server_kit.store.protocol import Quota

_TABLE = schema.summaries
_SIZE = func.length(_TABLE.c.payload)
_HELD = (
    select(_TABLE.c.mechanism, _TABLE.c.number, _SIZE)
    .where(_TABLE.c.device == bindparam("of_device"))
    .order_by(_TABLE.c.number.desc())
)
_DROP = delete(_TABLE).where(_TABLE.c.device == bindparam("of_device"), _TABLE.c.number == bindparam("of_number"))
_OVER = (
    select(_TABLE.c.device)
    .group_by(_TABLE.c.device)
    .having(or_(func.count() > bindparam("rows"), func.sum(_SIZE) > bindparam("size_bytes")))
)


class Held(NamedTuple):
    """A summary that is stored."""

    mechanism: str
    number: int
    """Grows with every summary."""
    size_bytes: int


def excess(held: Sequence[Held], quota: Quota) -> list[int]:
    """The numbers of those that must go; the newest of each mechanism go last."""
    newest = {each.mechanism: each.number for each in sorted(held, key=lambda each: each.number)}
    by_worth = sorted(held, key=lambda each: (newest[each.mechanism] != each.number, -each.number))
    dropped, rows, size_bytes = [], 0, 0
    for each in by_worth:
        if rows + 1 > quota.most_summaries or size_bytes + each.size_bytes > quota.most_summary_bytes:
            dropped.append(each.number)
        else:
            rows, size_bytes = rows + 1, size_bytes + each.size_bytes
    return dropped


def drop_excess(session: Session, devices: Iterable[str], quota: Quota) -> int:
    """Delete what these devices have beyond their quota, in the caller's transaction; how many rows."""
    rows = [
        {"of_device": device, "of_number": number}
        for device in devices
        for number in excess([Held(*row) for row in session.all(_HELD, of_device=device)], quota)
    ]
    session.many(_DROP, rows)
    return len(rows)


def devices_over(session: Session, quota: Quota) -> list[str]:
    """Whose summaries exceed the quota: an older version kept all of them."""
    found = session.all(_OVER, rows=quota.most_summaries, size_bytes=quota.most_summary_bytes)
    return [device for (device,) in found]
