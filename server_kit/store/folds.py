"""Steps of cohorts: decided once, done once, digested once, whoever dies in between."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

from sqlalchemy import bindparam, delete, insert, select, update

from server_kit.store import parcels, schema
from server_kit.store.happenings import note_all
from server_kit.store.leases import check_newest
from server_kit.store.parts import Part, as_text, keep_cohorts
from server_kit.store.protocol import CohortState, FoldRecord, FoldState, TaskState
from server_kit.store.refusals import not_begun, not_done, updates_taken
from server_kit.store.schema import FEEDBACK_MESSAGE, VIEW_BODY

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from device_sdk.wire.messages import CohortId
    from server_kit.store.database import Row, Session
    from server_kit.store.key_ring import Sealer
    from server_kit.store.protocol import CohortRecord, Digest, FeedbackRecord, Lease, TaskId

_FOLDS, _TASKS = schema.folds, schema.tasks
_COLUMNS = [_FOLDS.c[name] for name in FoldRecord.__dataclass_fields__]
_FOLD = select(*_COLUMNS).where(_FOLDS.c.cohort == bindparam("of_cohort"), _FOLDS.c.version == bindparam("of_version"))
_IN_STATE = select(*_COLUMNS).where(_FOLDS.c.state == bindparam("of_state")).order_by(_FOLDS.c.number)
_BEGIN = insert(_FOLDS)
_STEP = update(_FOLDS).where(
    _FOLDS.c.cohort == bindparam("of_cohort"),
    _FOLDS.c.version == bindparam("of_version"),
    _FOLDS.c.state == bindparam("of_state"),
)
_DONE = _STEP.values(state=FoldState.DONE.value, checkpoint=bindparam("to_checkpoint"), report=bindparam("to_report"))
_DIGESTED = _STEP.values(state=FoldState.DIGESTED.value)
_UNDO = delete(_FOLDS).where(_FOLDS.c.cohort == bindparam("of_cohort"), _FOLDS.c.version == bindparam("of_version"))
_THIS_TASK = update(_TASKS).where(_TASKS.c.task == bindparam("of_task"))
_CLAIM = _THIS_TASK.values(claimed=1)
_FREE = _THIS_TASK.values(claimed=0)
_SCRUB = _THIS_TASK.values(state=bindparam("to"), message=b"")
_MOVE = _THIS_TASK.where(_TASKS.c.claimed == 0).values(cohort=bindparam("to"))
_KEEP_FEEDBACK = insert(schema.feedback)


class SqlFolds(Part):
    """How the next model of a cohort comes about."""

    def begin_fold(self, fold: FoldRecord, late: Sequence[TaskId], lease: Lease) -> FoldRecord:
        with self._database.writing() as session:
            check_newest(session, lease)
            decided = session.one(_FOLD, of_cohort=fold.cohort, of_version=fold.version)
            if decided is not None:
                return _fold_of(decided)
            free = _free(session, fold.cohort, (*fold.tasks, *late))
            if len(set(fold.tasks)) < len(fold.tasks) or not free.issuperset(fold.tasks):
                raise updates_taken(fold.cohort)
            begun = FoldRecord(fold.cohort, fold.version, fold.tasks, fold.at_seconds)
            (number,) = session.numbers("fold", 1)
            session.run(_BEGIN, **{**begun.__dict__, "tasks": json.dumps(fold.tasks), "number": number})
            session.many(_CLAIM, [{"of_task": name} for name in fold.tasks])
            blobs = _scrub(session, sorted(free.intersection(late).difference(fold.tasks)), TaskState.LATE)
        parcels.discard(self._blobs, blobs)
        return begun

    def finish_fold(self, fold: FoldRecord, lease: Lease, cohort: CohortRecord) -> None:
        step = {"of_cohort": fold.cohort, "of_version": fold.version}
        with self._database.writing() as session:
            check_newest(session, lease)
            begun = session.one(_FOLD, **step)
            if begun is None or not session.run(
                _DONE, **step, of_state=FoldState.BEGUN, to_checkpoint=fold.checkpoint, to_report=fold.report
            ):
                raise not_begun(fold)
            blobs = _scrub(session, _fold_of(begun).tasks, TaskState.FOLDED)
            keep_cohorts(session, [cohort])
        parcels.discard(self._blobs, blobs)

    def end_late(self, cohort: CohortId, late: Sequence[TaskId], lease: Lease) -> None:
        with self._database.writing() as session:
            check_newest(session, lease)
            blobs = _scrub(session, sorted(_free(session, cohort, late)), TaskState.LATE)
        parcels.discard(self._blobs, blobs)

    def folds(self, state: FoldState) -> list[FoldRecord]:
        with self._database.looking() as session:
            return [_fold_of(row) for row in session.all(_IN_STATE, of_state=state)]

    def digest(self, digest: Digest) -> None:
        with self._database.writing() as session:
            sealer = self._ring.sealer(session)
            if digest.step is not None:
                cohort, version = digest.step
                if not session.run(_DIGESTED, of_cohort=cohort, of_version=version, of_state=FoldState.DONE):
                    raise not_done(digest.step)
            session.replace(schema.federation, [{"part": "coordinator", "checkpoint": digest.federation}])
            keep_cohorts(session, digest.cohorts)
            _undo(session, {each.cohort for each in digest.cohorts if each.state is not CohortState.TRAINING})
            blobs = _end(session, digest.ended)
            session.many(_MOVE, [{"of_task": name, "to": cohort} for name, cohort in digest.moved.items()])
            views = {device: as_text(view).encode() for device, view in digest.views.items()}
            rows = [{"device": name, "body": sealer.seal(view, VIEW_BODY, name)} for name, view in views.items()]
            session.replace(schema.views, rows)
            _keep_feedback(session, sealer, digest.feedback)
            note_all(session, digest.happenings)
        parcels.discard(self._blobs, blobs)


def _keep_feedback(session: Session, sealer: Sealer, feedback: Sequence[FeedbackRecord]) -> None:
    numbered = zip(feedback, session.numbers("feedback", len(feedback)), strict=True)
    rows = [
        {"number": number, "device": one.device, "message": sealer.seal(one.message, FEEDBACK_MESSAGE, number)}
        for one, number in numbered
    ]
    session.many(_KEEP_FEEDBACK, rows)


def _free(session: Session, cohort: CohortId, tasks: Sequence[TaskId]) -> set[TaskId]:
    """Which of these tasks wait for this cohort and belong to no step yet."""
    columns = (_TASKS.c.task, _TASKS.c.state, _TASKS.c.cohort, _TASKS.c.claimed)
    wanted = (TaskState.ARRIVED, cohort, 0)
    return {row[0] for row in session.where_in(_TASKS.c.task, tasks, *columns) if row[1:] == wanted}


def _undo(session: Session, cohorts: set[CohortId]) -> None:
    """Forget the steps that these cohorts have begun and will not finish."""
    begun = map(_fold_of, session.all(_IN_STATE, of_state=FoldState.BEGUN) if cohorts else ())
    for fold in [fold for fold in begun if fold.cohort in cohorts]:
        session.run(_UNDO, of_cohort=fold.cohort, of_version=fold.version)
        session.many(_FREE, [{"of_task": name} for name in fold.tasks])


def _end(session: Session, ended: Mapping[TaskId, TaskState]) -> list[str]:
    """Scrub updates that wait and belong to no step."""
    columns = (_TASKS.c.task, _TASKS.c.state, _TASKS.c.claimed)
    rows = session.where_in(_TASKS.c.task, list(ended), *columns)
    free = sorted(row[0] for row in rows if row[1:] == (TaskState.ARRIVED, 0))
    return [blob for name in free for blob in _scrub(session, [name], ended[name])]


def _scrub(session: Session, tasks: Sequence[TaskId], state: TaskState) -> list[str]:
    session.many(_SCRUB, [{"of_task": name, "to": state} for name in tasks])
    return parcels.scrub(session, tasks)


def _fold_of(row: Row) -> FoldRecord:
    cohort, version, tasks, at_seconds, state, checkpoint, report = row
    return FoldRecord(cohort, version, tuple(json.loads(tasks)), at_seconds, FoldState(state), checkpoint, report)
