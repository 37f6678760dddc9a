"""What every store refuses, in the same words."""

from __future__ import annotations

from typing import TYPE_CHECKING

from server_kit.errors import LeaseLost, StoreConflict
from server_kit.store.protocol import TaskState

if TYPE_CHECKING:
    from device_sdk.wire.messages import CohortId
    from server_kit.store.protocol import FoldRecord, Lease, TaskId


def asked_twice() -> StoreConflict:
    return StoreConflict("a task with this id is booked already; give each task an id of its own; nothing was booked")


def check_ending(state: TaskState) -> None:
    if state not in (TaskState.DECLINED, TaskState.LOST):
        raise StoreConflict(f"a task that is out ends as declined or lost, not as {state}; nothing was changed")


def no_bytes(task: TaskId) -> StoreConflict:
    return StoreConflict(
        f"no update waits for task {task}: none arrived, or it was folded or late and is scrubbed; nothing was read"
    )


def updates_taken(cohort: CohortId) -> StoreConflict:
    return StoreConflict(
        f"some of the updates chosen for cohort {cohort} do not wait for it: they are folded elsewhere, moved or "
        "late; look again at what waits; nothing was decided"
    )


def not_begun(fold: FoldRecord) -> StoreConflict:
    return StoreConflict(
        f"the step of cohort {fold.cohort} from version {fold.version} was never begun or is done already; "
        "nothing was changed"
    )


def gone_on(cohort: CohortId) -> StoreConflict:
    return StoreConflict(
        f"cohort {cohort} has made a model since its record was read; look again at what is stored; nothing was changed"
    )


def not_done(step: tuple[CohortId, int]) -> StoreConflict:
    return StoreConflict(
        f"the step of cohort {step[0]} from version {step[1]} is not done or was digested already; nothing was changed"
    )


def lease_lost(lease: Lease) -> LeaseLost:
    return LeaseLost(
        f"{lease.holder} no longer holds {lease.name}: another process does, or it was given up; "
        "stop working at it; nothing was changed"
    )
