"""A split on trial: children that do not serve their own devices better than one model would are merged back.

Some steps after a split each child's devices compare their child's model with the mean of the children's
models, which is what a merge would give them. They answer with a choice, which can be randomised on the device.

Where nobody was placed, and devices choose among children that started apart at random, nobody is asked more than he is
anyway: devices that look again choose as they did before where groups are real, and anew where all are alike.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

import torch

from server_kit.cohort_tree import parent_of
from server_kit.interfaces import Formation, Look, Merge, Split, Wants

if TYPE_CHECKING:
    import numpy as np

    from server_kit.interfaces import CohortId, DeviceId, Federated, Memory, Seen


@dataclass(frozen=True)
class Gated:
    """Whatever `inner` splits is tried for `steps` steps of each child.

    The split stays if the share of devices that prefer their child is above `least_share`, with `deviations`
    standard errors to spare. A cohort that was merged is left whole for `pause` of its steps.
    """

    inner: Formation
    steps: int = 10
    least_share: float = 0.6
    least_share_randomised: float = 0.6
    """The share where answers are randomised: they are so uncertain that a higher one would undo true groups too."""
    deviations: float = 1.0
    looks: int = 3
    """How often they are asked at most, each time after as many further steps, as long as the share is neither surely
    above nor surely below: true groups are then preferred by more, others by fewer. Randomised answers cost, so that
    those are asked for once."""
    asked: int = 32
    pause: int = 50
    least_steadiness: float = 0.5
    """Where devices chose for themselves: how much more often than by chance they must choose the same again, from 0 to
    1, likewise with standard errors to spare."""
    least_repeats: int = 48
    """The last so many that have chosen again are looked at."""
    most_repeats: int = 120
    """How many are waited for where that is neither so nor, by thrice the standard errors, out of reach: some random
    starts take long to part."""

    @property
    def wants(self) -> Wants:
        return replace(self.inner.wants, choices=True)

    def begin(self, federation: Federated, rng: np.random.Generator) -> Split | None:
        return self.inner.begin(federation, rng)

    def welcome(self, newcomers: Sequence[DeviceId], federation: Federated, rng: np.random.Generator) -> None:
        self.inner.welcome(newcomers, federation, rng)

    def look(self, seen: Seen, memory: Memory, federation: Federated, rng: np.random.Generator) -> Look:
        inner = self.inner.look(seen, memory, federation, rng)
        self._note(seen, federation)
        paused = federation.memory.setdefault("paused", {})
        paused[seen.cohort] = paused.get(seen.cohort, 0) - 1
        verdict = self._verdict(seen, federation) or self._verdict_on_choices(seen, federation)
        if verdict is not None:
            paused[verdict.cohort] = self.pause
            return Look(verdict, inner.answers)
        if isinstance(inner.decision, Split):
            if paused.get(seen.cohort, 0) > 0:
                return Look(None, inner.answers)
            trial = "trials" if inner.decision.members else "trials by choices"
            federation.memory.setdefault(trial, {})[seen.cohort] = {}
        return inner

    def _note(self, seen: Seen, federation: Federated) -> None:
        """Remember who was in which cohort last, the latest first, and no more of them than could be asked."""
        lately, here = federation.memory.setdefault("lately", {}), dict.fromkeys(reversed(seen.devices))
        # Who was out when the cohort split brought an update to whichever child, and then went to its own.
        for cohort, devices in lately.items():
            lately[cohort] = [device for device in devices if device not in here]
        lately[seen.cohort] = [*here, *lately.get(seen.cohort, [])][: 2 * self.asked]

    def _verdict(self, seen: Seen, federation: Federated) -> Merge | None:
        """Count this step of a child on trial; once all have had their steps, ask their devices."""
        parent = parent_of(seen.cohort)
        trials = federation.memory.setdefault("trials", {})
        if parent is None or parent not in trials:
            return None
        children = [leaf for leaf in federation.leaves if parent_of(leaf) == parent]
        counted = trials[parent]
        counted[seen.cohort] = counted.get(seen.cohort, 0) + 1
        # A child that nobody visits must not keep the trial open.
        patience = self.steps if len(counted) == len(children) else 3 * self.steps
        if min(counted.get(child, patience) for child in children) < self.steps or max(counted.values()) < patience:
            return None
        del trials[parent]
        if len(children) < 2:
            return None
        merged = torch.stack([federation.model(child) for child in children]).mean(dim=0)
        share, error = self._preferring(children, merged, federation)
        candid = federation.fleet.candour(2) == 1
        least, spare = self.least_share if candid else self.least_share_randomised, self.deviations * error
        looks = federation.memory.setdefault("looks", {})
        looked = looks.pop(parent, 0) + 1
        if share - spare > least:
            return None
        if candid and share + spare > least and looked < self.looks:
            trials[parent], looks[parent] = {}, looked
            return None
        # Undoing the randomisation of few answers may lead beyond what a share can be.
        found = f"{min(max(share, 0.0), 1.0):.0%} ± {error:.0%}"
        return Merge(parent, merged, f"too few devices are sure to do better in their own cohort: {found}")

    def _verdict_on_choices(self, seen: Seen, federation: Federated) -> Merge | None:
        """Undo children between which devices do not choose alike, once enough of them have chosen again."""
        parent = parent_of(seen.cohort)
        trials, chosen = federation.memory.get("trials by choices", {}), federation.memory.get("chosen", {})
        again = chosen.get("again", [])
        if parent is None or parent not in trials or len(again) < self.least_repeats:
            return None
        if chosen["among"] != list(federation.leaves):
            return None
        lately = again[-self.least_repeats :]
        found, error = steadiness(lately)
        stays = found - self.deviations * error > self.least_steadiness
        hopeless = found + 3 * self.deviations * error < self.least_steadiness
        if not (stays or hopeless or len(again) >= self.most_repeats):
            return None
        del trials[parent]
        if stays:
            return None
        # A child that nobody wants is where it started, by chance.
        wanted = Counter(now for _, now in lately)
        parts = [federation.model(leaf) * (number / len(lately)) for leaf, number in wanted.items()]
        merged = torch.stack(parts).sum(dim=0)
        return Merge(parent, merged, f"devices that chose again chose anew: {max(found, 0.0):.0%} ± {error:.0%} steady")

    def _preferring(
        self, children: Sequence[CohortId], merged: torch.Tensor, federation: Federated
    ) -> tuple[float, float]:
        """The share of devices that do better with their child's model, and its standard error.

        Where answers are randomised, the share that was told is p·share + (1−p)·(1−share), which can be undone.
        """
        preferring = asked = 0
        for child in children:
            devices = federation.memory["lately"].get(child, [])[: self.asked]
            chosen = federation.fleet.choices(devices, torch.stack([merged, federation.model(child)]))
            preferring += sum(chosen.values())
            asked += len(chosen)
        if not asked:
            return 0.0, 1.0
        told = preferring / asked
        error = math.sqrt(max(told * (1 - told), 1 / asked) / asked)
        honest = federation.fleet.candour(2)
        return (told - (1 - honest)) / (2 * honest - 1), error / (2 * honest - 1)


def steadiness(again: Sequence[Sequence[CohortId]]) -> tuple[float, float]:
    """How much more often than by chance two choices of a device agree (Cohen's κ), and its standard error."""
    number = len(again)
    before, now = Counter(first for first, _ in again), Counter(second for _, second in again)
    chance = sum(before[leaf] * now[leaf] for leaf in before) / number**2
    if chance == 1.0:
        return 0.0, 0.0  # all want one and the same
    told = sum(first == second for first, second in again) / number
    error = math.sqrt(max(told * (1 - told), 1 / number) / number)
    return (told - chance) / (1 - chance), error / (1 - chance)
