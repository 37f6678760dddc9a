"""What steps leave behind is deleted once devices have their next tasks: nobody waits for it."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from device_sdk.wire.codec import decode
from device_sdk.wire.messages import Task
from server_kit.checkpoints import of_cohort
from server_kit.daemon.cohort_worker import report_line
from server_kit.store.protocol import CohortState, TaskState

if TYPE_CHECKING:
    from server_kit.daemon.federation_records import FederationRecords
    from server_kit.daemon.model_shelf import ModelShelf
    from server_kit.daemon.task_writer import TaskWriter
    from server_kit.store.protocol import FoldRecord

_MANY_MODELS = 64


@dataclass
class Tidying:
    """Remembers which steps have left files that nobody needs."""

    kept: FederationRecords
    models: ModelShelf
    writer: TaskWriter
    _untidy: list[FoldRecord] = field(default_factory=list)

    def after(self, fold: FoldRecord) -> None:
        """There is something to tidy up after this step, some time."""
        self._untidy.append(fold)

    def tidy(self) -> None:
        """Delete it now."""
        folds, self._untidy = self._untidy, []
        for fold in folds:
            self._prune_checkpoints(fold)
        if folds:
            self.kept.prune()
            self._prune_models()

    def _prune_checkpoints(self, fold: FoldRecord) -> None:
        """Keep the last few of a cohort that trains, and nothing of those that are gone."""
        records, checkpoints = self.kept.store.all_cohorts(), self.kept.checkpoints
        checkpoints.prune(of_cohort(fold.cohort), {record.checkpoint for record in records})
        # Up to this one: the worker may have written the next already.
        checkpoints.prune(report_line(fold.cohort), (fold.report,), keep=0)
        for record in records:
            if record.state is CohortState.MERGED:
                checkpoints.prune(of_cohort(record.cohort), (), keep=0)

    def _prune_models(self) -> None:
        """Forget models that no task and no cohort refers to."""
        if self.models.count() <= _MANY_MODELS:
            return
        found = self.kept.store.tasks(None, TaskState.OUT, TaskState.ARRIVED)
        tasks = [decode(Task, record.message) for record in found]
        wanted = {task.model.blob.sha256 for task in tasks} | self.writer.written()
        self.models.keep_only(wanted | {task.objective.mask.sha256 for task in tasks if task.objective.mask})
