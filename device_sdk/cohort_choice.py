"""Which cohort a device asks for: the best it knows, now and then another, from what servers said of its updates.

Feedback is learned from once, and only where an update waits for it; what was not asked for is ignored.
"""

from __future__ import annotations

import secrets
from contextlib import suppress
from typing import TYPE_CHECKING

from device_sdk.affinity import Exploration
from device_sdk.errors import FeedbackRefused
from device_sdk.round_record import Kind, Phase
from device_sdk.wire.codec import decode
from device_sdk.wire.messages import AffinityClaim, Cohorts, Feedback, Task

if TYPE_CHECKING:
    from device_sdk.kept import Kept
    from device_sdk.round_record import Round

MOST_AWAITING_FEEDBACK = 16


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
        record = self._kept.affinities.load()
        latest = max((known.round for known in record.affinities.values()), default=0)
        cohort = record.choose(self._leaves, self._exploration.probability(latest), SystemChance())
        return self._kept.affinities.claim(cohort)

    def learn(self, feedback: Feedback) -> None:
        """Learn from the feedback to an update that was sent, and end its round."""
        for entry in self.awaiting_feedback():
            task = decode(Task, entry.order)
            if (task.cohort, task.round) == (feedback.cohort, feedback.round):
                with self._kept.vault.changing():
                    with suppress(FeedbackRefused):
                        self._kept.affinities.learn(feedback, self._leaves)
                    self._kept.journal.finish(entry.task, self._kept.ledger)
                return

    def awaiting_feedback(self) -> list[Round]:
        """Rounds whose update was acknowledged and not yet judged, oldest first."""
        there = self._kept.journal.rounds()
        return [entry for entry in there if entry.kind is Kind.TRAINING and entry.phase is Phase.UPLOADED]

    def stop_waiting(self) -> None:
        """End the oldest rounds for which no feedback has come, beyond a few."""
        for old in self.awaiting_feedback()[:-MOST_AWAITING_FEEDBACK]:
            self._kept.journal.finish(old.task, self._kept.ledger)
