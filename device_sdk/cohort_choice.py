"""Which cohort a device asks for: the best it knows, now and then another, from what servers said of its updates.

Feedback is learned from once, and only where an update waits for it; what was not asked for is ignored.
"""

from __future__ import annotations

import secrets
from contextlib import suppress
from typing import TYPE_CHECKING

from device_sdk.affinity import Exploration
from device_sdk.affinity_store import lineage
from device_sdk.errors import FeedbackRefused
from device_sdk.round_order import task_of
from device_sdk.wire.messages import AffinityClaim, Cohorts, Feedback

if TYPE_CHECKING:
    from device_sdk.kept import Kept


class SystemChance:
    """Chance from the operating system."""

    def random(self) -> float:
        return secrets.randbits(53) / (1 << 53)

    def below(self, bound: int) -> int:
        return secrets.randbelow(bound)


class CohortChoice:
    """The affinities of one device, and the cohorts that there are."""

    def __init__(self, kept: Kept, exploration: Exploration) -> None:
        self._kept, self._exploration = kept, exploration
        self._leaves: tuple[str, ...] = ()

    def follow(self, cohorts: Cohorts) -> None:
        """Learn which cohorts train now, and from which they came."""
        self._leaves = cohorts.leaves
        self._kept.affinities.follow(cohorts.splits)

    def claim(self) -> AffinityClaim:
        """The cohort to ask for, and what proves a history there."""
        with self._kept.vault.undisturbed():
            record = self._kept.affinities.load()
            latest = max((known.round for known in record.affinities.values()), default=0)
            cohort = record.choose(self._leaves, self._exploration.probability(latest), SystemChance())
            return self._kept.affinities.claim(cohort)

    def learn(self, feedback: Feedback) -> None:
        """Learn from the feedback to an update that was sent, and end its round."""
        for entry in self._kept.journal.awaiting_feedback():
            task = task_of(entry)
            # A cohort that has split meanwhile is answered for by one of its children.
            if task.round == feedback.round and task.cohort in lineage(feedback.cohort):
                with self._kept.vault.changing():
                    with suppress(FeedbackRefused):
                        self._kept.affinities.learn(feedback, self._leaves)
                    self._kept.journal.finish(entry.task)
                return
