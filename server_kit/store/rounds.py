"""What coordinator and workers know between rounds: cohorts, tasks, what devices have said and are to be told."""

from __future__ import annotations

from operator import itemgetter
from typing import TYPE_CHECKING, Any

from sqlalchemy import bindparam, delete, insert, literal, select, update

from server_kit.errors import CorruptRecord
from server_kit.store import parcels, schema
from server_kit.store.parts import Part, as_json, cohort_of, keep_cohorts
from server_kit.store.protocol import CohortState, FeedbackRecord, SummaryRecord, TaskRecord, TaskState
from server_kit.store.refusals import asked_twice, check_ending, no_bytes
from server_kit.store.schema import FEEDBACK_MESSAGE, SUMMARY_PAYLOAD, VIEW_BODY

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from sqlalchemy import Select

    from device_sdk.wire.messages import CohortId, DeviceId
    from server_kit.store.database import Row
    from server_kit.store.protocol import Asking, CohortRecord, Json, Payload, TaskId, Unreadable

_TASKS, _SUMMARIES, _FEEDBACK = schema.tasks, schema.summaries, schema.feedback
_TASK_COLUMNS = [_TASKS.c[name] for name in TaskRecord.__dataclass_fields__]
_STATE = list(TaskRecord.__dataclass_fields__).index("state")
_TASK = select(*_TASK_COLUMNS).where(_TASKS.c.task == bindparam("of_task"))
_BOOK = insert(_TASKS)
_END = (
    update(_TASKS)
    .where(_TASKS.c.task == bindparam("of_task"), _TASKS.c.state == TaskState.OUT.value)
    .values(state=bindparam("to"))
)
_COHORTS = select(schema.cohorts).where(schema.cohorts.c.state == CohortState.TRAINING.value)
_FEDERATION = select(schema.federation.c.checkpoint)
_VIEWS = select(schema.views.c.device, schema.views.c.body)
_SUMMARY_COLUMNS = [_SUMMARIES.c[name] for name in SummaryRecord.__dataclass_fields__]
_NEWEST = (
    select(*_SUMMARY_COLUMNS).where(_SUMMARIES.c.mechanism == bindparam("of_mechanism")).order_by(_SUMMARIES.c.number)
)
_ABOUT = _NEWEST.where(_SUMMARIES.c.subject == bindparam("of_subject"))
_FORGET = delete(_SUMMARIES).where(
    _SUMMARIES.c.mechanism == bindparam("of_mechanism"), _SUMMARIES.c.subject == bindparam("of_subject")
)
_GIVEN = delete(_FEEDBACK).where(_FEEDBACK.c.number == bindparam("of_number"))
_WAITING = (TaskState.OUT, TaskState.ARRIVED)
_selections: dict[tuple[bool, tuple[TaskState, ...]], Select[Any]] = {}


class SqlRounds(Part):
    """Cohorts, tasks, summaries, feedback."""

    def cohorts(self) -> list[CohortRecord]:
        with self._database.looking() as session:
            return [cohort_of(row) for row in sorted(session.all(_COHORTS), key=itemgetter(0))]

    def tasks(self, cohort: CohortId | None = None, *states: TaskState) -> list[TaskRecord]:
        statement = _selecting(cohort is not None, states or _WAITING)
        with self._database.looking() as session:
            return [_task_of(row) for row in session.all(statement, of_cohort=cohort)]

    def task(self, task: TaskId) -> TaskRecord | None:
        with self._database.looking() as session:
            row = session.one(_TASK, of_task=task)
        return None if row is None else _task_of(row)

    def ask(self, asking: Asking) -> None:
        names = [task.task for task in asking.tasks]
        with self._database.writing() as session:
            if len(set(names)) < len(names) or session.where_in(_TASKS.c.task, names, _TASKS.c.task):
                raise asked_twice()
            numbers = session.numbers("task", len(names))
            rows = [
                {**task.__dict__, "number": number, "claimed": 0}
                for task, number in zip(asking.tasks, numbers, strict=True)
            ]
            session.many(_BOOK, rows)
            keep_cohorts(session, asking.cohorts)
            session.many(_END, [{"of_task": name, "to": TaskState.LOST} for name in asking.lost])

    def end_task(self, task: TaskId, state: TaskState) -> bool:
        check_ending(state)
        with self._database.writing() as session:
            return session.run(_END, of_task=task, to=state) == 1

    def payload(self, task: TaskId) -> Payload:
        with self._database.looking() as session:
            row = session.one(parcels.ROW_OF_TASK, of_task=task)
        if row is None:
            raise no_bytes(task)
        return parcels.unpack(self._ground, task, row)

    def federation(self) -> str | None:
        with self._database.looking() as session:
            row = session.one(_FEDERATION)
        return None if row is None else row[0]

    def views(self) -> Mapping[DeviceId, Json]:
        with self._database.looking() as session:
            rows = session.all(_VIEWS)
        return {device: as_json(self._ring.open(body, VIEW_BODY, device)) for device, body in sorted(rows)}

    def summaries(
        self, mechanism: str, subject: str | None = None, on_unreadable: Unreadable | None = None
    ) -> list[SummaryRecord]:
        statement = _NEWEST if subject is None else _ABOUT
        with self._database.looking() as session:
            rows = session.all(statement, of_mechanism=mechanism, of_subject=subject)
        newest = {row[0]: row for row in rows}
        found = (self._summary(newest[device], on_unreadable) for device in sorted(newest))
        return [summary for summary in found if summary is not None]

    def forget_answers(self, mechanism: str, subject: str) -> int:
        with self._database.writing() as session:
            return session.run(_FORGET, of_mechanism=mechanism, of_subject=subject)

    def feedback(self, devices: Sequence[DeviceId]) -> list[FeedbackRecord]:
        with self._database.looking() as session:
            if not session.where_in(_FEEDBACK.c.device, devices, _FEEDBACK.c.number):
                # As most often: then nobody need wait for the writer's lock.
                return []
        with self._database.writing() as session:
            rows = session.where_in(_FEEDBACK.c.device, devices, *_FEEDBACK.c)
            session.many(_GIVEN, [{"of_number": number} for number, _, _ in rows])
            return [
                FeedbackRecord(device, self._ring.open(message, FEEDBACK_MESSAGE, number))
                for number, device, message in sorted(rows)
            ]

    def _summary(self, row: Row, on_unreadable: Unreadable | None) -> SummaryRecord | None:
        device, mechanism, terms, subject, payload, at_seconds = row
        try:
            content = self._ring.open(payload, SUMMARY_PAYLOAD, device, mechanism, subject)
            return SummaryRecord(device, mechanism, as_json(terms), subject, content, at_seconds)
        except CorruptRecord:
            if on_unreadable is None:
                raise
            on_unreadable(device)
            return None


def _task_of(row: Row) -> TaskRecord:
    values: list[Any] = list(row)
    values[_STATE] = TaskState(values[_STATE])
    return TaskRecord(*values)


def _selecting(of_one_cohort: bool, states: tuple[TaskState, ...]) -> Select[Any]:
    known = _selections.get((of_one_cohort, states))
    if known is None:
        known = select(*_TASK_COLUMNS).where(_TASKS.c.state.in_([literal(state.value) for state in states]))
        if of_one_cohort:
            known = known.where(_TASKS.c.cohort == bindparam("of_cohort"))
        known = known.order_by(_TASKS.c.arrival.nulls_last(), _TASKS.c.number)
        _selections[of_one_cohort, states] = known
    return known
