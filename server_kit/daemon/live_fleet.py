"""The devices behind a running server, as the engine sees them (`interfaces.Fleet`).

What the engine asks for at once takes real devices a while. Orders are booked and pushed, and answered in their own
time; what devices say about themselves is waited for, as long as `patience_seconds`, while the gateway goes on.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import torch

from device_sdk.wire.codec import encode
from device_sdk.wire.messages import Cohorts, CohortsChanged, Feedback, QuestionKind, Split, Task
from device_sdk.wire.question_terms import candour_of
from device_sdk.wire.summary_terms import described
from privacy.mechanisms.feature_histogram import FeatureHistogram
from server_kit.daemon.plausible import check_content
from server_kit.daemon.questions import Asked
from server_kit.daemon.refusals import Misconduct
from server_kit.errors import InvalidSetting
from server_kit.interfaces import CheckIn
from server_kit.store.protocol import FeedbackRecord, TaskRecord

if TYPE_CHECKING:
    from device_sdk.wire.messages import DeviceId
    from server_kit.config import Privacy
    from server_kit.daemon.feedback_mac import FeedbackSeal
    from server_kit.daemon.live_desk import LiveDesk
    from server_kit.daemon.questions import Questions
    from server_kit.daemon.task_writer import TaskWriter
    from server_kit.interfaces import Answer, CohortId, Order, SummaryRequest
    from server_kit.store.protocol import Store, SummaryRecord, TaskId

log = logging.getLogger("covey.server")

Book = Callable[[Sequence[Task], float], None]
"""Makes tasks durable, together with the rounds that they belong to."""


@dataclass
class LiveFleet:
    """Everyone who is connected. Used by the coordinator's one thread."""

    store: Store
    desk: LiveDesk
    questions: Questions
    writer: TaskWriter
    seal: FeedbackSeal
    privacy: Privacy
    book: Book
    pretrain: Callable[[SummaryRequest, Sequence[DeviceId]], Mapping[DeviceId, torch.Tensor]]
    round_of: Callable[[CohortId], int]
    patience_seconds: float = 30.0
    feedback: list[FeedbackRecord] = field(default_factory=list)
    """What devices are to be told about the step that is being digested."""
    digesting: Sequence[TaskId] = ()
    """Whose updates the step has folded that is being digested."""
    splits: list[Split] = field(default_factory=list)
    """All that ever happened, oldest first."""
    clock: Callable[[], float] = time.time
    _counted: set[DeviceId] = field(default_factory=set)

    def waiting(self, now_seconds: float) -> Sequence[DeviceId]:
        del now_seconds
        return list(self.desk.presence.waiting())

    def check_ins(
        self, devices: Sequence[DeviceId], leaves: Sequence[CohortId], *, exploring: bool = True
    ) -> Sequence[CheckIn]:
        del leaves, exploring
        said = self.desk.presence.waiting()
        return [said.get(device) or CheckIn(device) for device in devices]

    def dispatch(self, orders: Sequence[Order], now_seconds: float) -> None:
        if orders:
            self.book([self.writer.task(order, self.round_of(order.cohort)) for order in orders], now_seconds)

    def summaries(self, request: SummaryRequest, devices: Sequence[DeviceId]) -> Mapping[DeviceId, torch.Tensor]:
        if request.kind == "update":
            return self.pretrain(request, devices)
        if request.kind == "truth":
            raise InvalidSetting(
                "the oracle knows the devices' true groups, which only a simulation has; choose another preset"
            )
        wanted = set(devices)
        return {
            record.device: counts
            for record in self.store.summaries(request.kind, on_unreadable=self._count_unopened)
            if record.device in wanted and (counts := self._counts(record)) is not None
        }

    def choices(self, devices: Sequence[DeviceId], models: torch.Tensor) -> Mapping[DeviceId, int]:
        if not devices or len(models) < 2:
            return dict.fromkeys(devices, 0)
        references = tuple(self.writer.reference(model) for model in models)
        if len({reference.blob.sha256 for reference in references}) < len(references):
            # Models that are the same leave nothing to choose.
            return {}
        epsilon, choice_by = str(self.privacy.choice_epsilon), self.privacy.chosen_by
        asked = Asked(QuestionKind.BEST_MODEL, references, epsilon, choice_by=choice_by)
        answers = self.questions.ask(devices, asked, self.patience_seconds)
        return {device: int(answer) for device, answer in answers.items()}

    def candour(self, options: int) -> float:
        return candour_of(self.privacy.choice_mechanism(options))

    def tell(self, answers: Sequence[Answer], leaves: Sequence[CohortId]) -> None:
        del leaves
        rounds = self._rounds_of_tasks() if answers else {}
        for answer in answers:
            # A device knows its update by the round that its task named, which is over by now.
            told_round = rounds.get(answer.device, answer.round - 1)
            feedback = Feedback(answer.cohort, told_round, b"", answer.reward_change, answer.sub_cluster)
            sealed = self.seal.sealed(answer.device, feedback)
            self.feedback.append(FeedbackRecord(answer.device, encode(sealed)))

    def tell_split(self, cohort: CohortId, children: Sequence[CohortId]) -> None:
        self.splits.append(Split(cohort, tuple(children)))

    def cohorts(self, leaves: Sequence[CohortId]) -> Cohorts:
        """What devices should know about the tree."""
        return Cohorts(tuple(leaves), tuple(self.splits))

    def taken_feedback(self) -> list[FeedbackRecord]:
        taken, self.feedback = self.feedback, []
        return taken

    def _rounds_of_tasks(self) -> dict[DeviceId, int]:
        records = (self.store.task(task) for task in self.digesting)
        return {record.device: record.round for record in records if record is not None}

    def _counts(self, record: SummaryRecord) -> torch.Tensor | None:
        """A histogram, if the device noised it as the server expects; else it says nothing.

        What arrives is checked before it is stored, but an older version may have stored anything.
        """
        mechanism = described(record.mechanism, record.terms)
        if mechanism is None or not self.desk.checks.wanted.uses(mechanism):
            return None
        try:
            check_content(mechanism, record.payload)
        except Misconduct as fault:
            self._count(record.device, fault.reason, str(fault))
            return None
        counts = torch.tensor(mechanism.decode(record.payload), dtype=torch.float32)
        return counts / mechanism.features_per_record if isinstance(mechanism, FeatureHistogram) else counts

    def _count_unopened(self, device: DeviceId) -> None:
        self._count(device, "unreadable summary", "it does not open")

    def _count(self, device: DeviceId, reason: str, why: str) -> None:
        """Once in the life of a process: the same row is read again and again."""
        if device in self._counted:
            return
        self._counted.add(device)
        log.warning("a stored summary was left out: %s", why, extra={"device": device})
        self.store.count_refusal(reason, device, self.clock())


def changed(fleet: LiveFleet, leaves: Sequence[CohortId]) -> CohortsChanged:
    """The message for everyone who is connected."""
    return CohortsChanged(fleet.cohorts(leaves))


def booked(task: Task, version: int, now_seconds: float) -> TaskRecord:
    """A task as the store keeps it."""
    return TaskRecord(task.task, task.device, task.cohort, task.round, version, now_seconds, encode(task))
