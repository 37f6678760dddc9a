"""What a device remembers about cohorts: how well its updates fitted where they went (Auxo's affinity record).

    R ← γ·ΔR + (1−γ)·R             for the cohort that was trained in
    R' ← γ·ΔR/(d+1) + (1−γ)·R'     for every other leaf at tree distance d: evidence spreads, more weakly further off
    R_child = R_parent + bonus     when a cohort splits, the bonus for the child of the device's own sub-cluster

Auxo adds ΔR/(d+1) to the other leaves as it is. Beside a mean that forgets, such a sum overtakes it: a device
that fits well would soon prefer the sibling of its cohort. So both forget alike.

The record stays on the device. It depends on the server's feedback alone, which depends on updates already
released, so asking for a cohort by it reveals nothing that was not paid for. A device that lost its record
explores again.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Protocol

CohortId = str
GAMMA = 0.2
SPLIT_BONUS = 0.1


class Chance(Protocol):
    """Where exploration comes from: the OS's random source on a device, a seeded one in simulation."""

    def random(self) -> float:
        """Uniform in [0, 1)."""

    def below(self, bound: int) -> int:
        """Uniform in 0..bound-1."""


@dataclass(frozen=True)
class Affinity:
    """How well one cohort fits: the reward, the sub-cluster the device was put in there, and when."""

    reward: float = 0.0
    sub_cluster: int | None = None
    round: int = 0


UNKNOWN = Affinity()


@dataclass(frozen=True)
class Feedback:
    """What a cohort tells a device that took part: None is "no verdict this time"."""

    cohort: CohortId
    round: int
    reward_change: float | None = None
    sub_cluster: int | None = None


@dataclass(frozen=True)
class Exploration:
    """How often a device tries a cohort at random: ε_r = max(least, first·decay^round), by rounds, not by calls."""

    first: float = 0.1
    decay: float = 0.99
    least: float = 0.01

    def probability(self, round_number: int) -> float:
        return max(self.least, self.first * self.decay ** max(0, round_number))


@dataclass(frozen=True)
class AffinityRecord:
    """The affinities of one device. A value: learning gives a new record."""

    affinities: Mapping[CohortId, Affinity] = field(default_factory=dict)

    def __bool__(self) -> bool:
        return bool(self.affinities)

    def reward(self, cohort: CohortId) -> float:
        return self.affinities.get(cohort, UNKNOWN).reward

    def learned(
        self,
        feedback: Feedback,
        leaves: Iterable[CohortId],
        distance: Callable[[CohortId, CohortId], int],
        gamma: float = GAMMA,
    ) -> AffinityRecord:
        """The record after a round's feedback; stale feedback (an earlier round of that cohort) changes nothing."""
        known = dict(self.affinities)
        before = known.get(feedback.cohort)
        if before is not None and feedback.round < before.round:
            return self
        own = before or UNKNOWN
        change = feedback.reward_change
        reward = own.reward if change is None else gamma * change + (1 - gamma) * own.reward
        # An outlier's sub-cluster is no longer believed.
        kept = None if change is not None and change < 0 else own.sub_cluster
        sub_cluster = kept if feedback.sub_cluster is None else feedback.sub_cluster
        known[feedback.cohort] = Affinity(reward, sub_cluster, feedback.round)
        for other in leaves:
            if change is not None and other != feedback.cohort:
                theirs = known.get(other, UNKNOWN)
                spread = change / (distance(feedback.cohort, other) + 1)
                reward = gamma * spread + (1 - gamma) * theirs.reward
                known[other] = Affinity(reward, theirs.sub_cluster, theirs.round)
        return AffinityRecord(known)

    def after_split(self, parent: CohortId, children: Sequence[CohortId], bonus: float = SPLIT_BONUS) -> AffinityRecord:
        """The record once `parent` has split: the children inherit its reward, the likelier child a little more."""
        if parent not in self.affinities:
            return self
        known = dict(self.affinities)
        inherited = known[parent]
        for index, child in enumerate(children):
            extra = bonus if inherited.sub_cluster == index else 0.0
            known.setdefault(child, Affinity(inherited.reward + extra, None, inherited.round))
        return AffinityRecord(known)

    def choose(self, leaves: Sequence[CohortId], explore_probability: float, chance: Chance) -> CohortId:
        """The leaf to ask for: the best known, ties at random; any leaf while nothing is known or when exploring."""
        known = {leaf: self.affinities[leaf].reward for leaf in leaves if leaf in self.affinities}
        if not known or chance.random() < explore_probability:
            return leaves[chance.below(len(leaves))]
        best = max(known.values())
        ties = [leaf for leaf, reward in known.items() if reward == best]
        return ties[chance.below(len(ties))]
