"""What has happened, numbered in order: written by whoever made it happen, read by people and the dashboard."""

from __future__ import annotations

from typing import TYPE_CHECKING

from sqlalchemy import bindparam, insert, select

from server_kit.store import schema
from server_kit.store.parts import as_json, as_text
from server_kit.store.protocol import Happening

if TYPE_CHECKING:
    from collections.abc import Sequence

    from server_kit.store.database import Session

_TABLE = schema.happenings
_COLUMNS = [_TABLE.c[name] for name in Happening.__dataclass_fields__]
_NOTE = insert(_TABLE)
_AFTER = (
    select(*_COLUMNS)
    .where(_TABLE.c.number > bindparam("after"))
    .order_by(_TABLE.c.number)
    .limit(bindparam("most", required=True))
)
_OF_KIND = _AFTER.where(_TABLE.c.kind == bindparam("of_kind"))


def note_all(session: Session, happenings: Sequence[Happening]) -> None:
    numbers = session.numbers("happening", len(happenings))
    rows = [
        {**happening.__dict__, "facts": as_text(happening.facts), "number": number}
        for happening, number in zip(happenings, numbers, strict=True)
    ]
    session.many(_NOTE, rows)


def happenings_after(session: Session, after: int, limit: int, kind: str | None) -> list[Happening]:
    rows = session.all(_AFTER if kind is None else _OF_KIND, after=after, most=limit, of_kind=kind)
    return [
        Happening(name, at_seconds, cohort, as_json(facts), number) for name, at_seconds, cohort, facts, number in rows
    ]
