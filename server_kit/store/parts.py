"""What every part of the store is made of: the database, the keys, the blobs; and how rows become records.

What is sorted for a caller is sorted in Python: PostgreSQL sorts text by the rules of a language.
"""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from server_kit.store import schema
from server_kit.store.protocol import CohortRecord, CohortState, Json, Quota
from server_kit.store.refusals import gone_on

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from server_kit.store.blobs import Blobs
    from server_kit.store.database import Database, Row, Session
    from server_kit.store.key_ring import KeyRing


@dataclass(frozen=True)
class Ground:
    """What the parts of one store share."""

    database: Database
    ring: KeyRing
    blobs: Blobs
    quota: Quota = field(default_factory=Quota)


class Part:
    """One of the store's sub-protocols, on the shared ground."""

    def __init__(self, ground: Ground) -> None:
        self._ground = ground
        self._database, self._ring, self._blobs = ground.database, ground.ring, ground.blobs


def as_text(facts: Mapping[str, Any]) -> str:
    return json.dumps(facts)


def as_json(text: str | bytes) -> Json:
    facts: Json = json.loads(text)
    return facts


def keep_cohorts(session: Session, cohorts: Sequence[CohortRecord]) -> None:
    table = schema.cohorts
    known = session.where_in(table.c.cohort, [each.cohort for each in cohorts], table.c.cohort, table.c.version)
    versions: dict[str, int] = dict(known)
    for cohort in cohorts:
        if versions.get(cohort.cohort, 0) > cohort.version:
            raise gone_on(cohort.cohort)
    rows = {cohort.cohort: {**cohort.__dict__, "facts": as_text(cohort.facts)} for cohort in cohorts}
    session.replace(schema.cohorts, list(rows.values()))


def cohort_of(row: Row) -> CohortRecord:
    cohort, version, number, checkpoint, state, opened_at_seconds, needed, facts = row
    return CohortRecord(
        cohort, version, number, checkpoint, CohortState(state), opened_at_seconds, needed, as_json(facts)
    )
