"""Where a device that checks in belongs."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar

import torch

from server_kit.interfaces import CheckIn

if TYPE_CHECKING:
    import numpy as np

    from server_kit.interfaces import CohortId, DeviceId, Federated, Memory


_MOST_KEPT = 4096


@dataclass(frozen=True)
class ByRequest:
    """The device decides, by its own record (Auxo); the tree leads its request to a living leaf."""

    def match(self, check_ins: Sequence[CheckIn], federation: Federated, rng: np.random.Generator) -> list[CohortId]:
        if len(federation.leaves) == 1:
            return [federation.leaves[0]] * len(check_ins)
        return [federation.descend(check_in, rng) for check_in in check_ins]


@dataclass(frozen=True)
class Assigned:
    """The server decides, by its table (FedGroup, CFL, CASA); whoever is not in it goes anywhere."""

    keeps_table: ClassVar[bool] = True

    def match(self, check_ins: Sequence[CheckIn], federation: Federated, rng: np.random.Generator) -> list[CohortId]:
        table = federation.memory.get("assigned", {})
        requests = [CheckIn(check_in.device, table.get(check_in.device)) for check_in in check_ins]
        return [federation.descend(request, rng) for request in requests]


@dataclass(frozen=True)
class BestModel:
    """The device gets all leaves' models and takes the one that does best on its data (IFCA)."""

    asks_for_choices: ClassVar[bool] = True

    def match(self, check_ins: Sequence[CheckIn], federation: Federated, rng: np.random.Generator) -> list[CohortId]:
        leaves = federation.leaves
        if len(leaves) == 1:
            return [leaves[0]] * len(check_ins)
        models = torch.stack([federation.model(leaf) for leaf in leaves])
        chosen = federation.fleet.choices([check_in.device for check_in in check_ins], models)
        # Whoever does not say goes anywhere.
        return [
            leaves[chosen[check_in.device] if check_in.device in chosen else int(rng.integers(len(leaves)))]
            for check_in in check_ins
        ]


@dataclass(frozen=True)
class OwnChoice:
    """The device chooses among the leaves' models by its own data, and keeps to it until the tree changes.

    After a split it goes where the founders put it, if they did. With `renew_steps` one that has chosen looks again
    once so many steps of the federation have passed. Each look costs the download of all leaves' models, and an answer.
    What devices say that look again is kept: devices that belong somewhere choose alike (`formation.gated`).
    """

    renew_steps: int | None = None
    asks_for_choices: ClassVar[bool] = True

    def match(self, check_ins: Sequence[CheckIn], federation: Federated, rng: np.random.Generator) -> list[CohortId]:
        leaves = list(federation.leaves)
        if len(leaves) == 1:
            return leaves * len(check_ins)
        known: Memory = federation.memory.get("chosen", {})
        if known.get("among") != leaves:
            suggested = {device: leaf for device, leaf in federation.suggested.items() if leaf in leaves}
            known = {"among": leaves, "leaf": suggested, "step": {}, "since": federation.steps, "again": []}
        asked = [each.device for each in check_ins if self._must_ask(each, known, federation.steps)]
        models = torch.stack([federation.model(leaf) for leaf in leaves])
        told = {device: leaves[choice] for device, choice in federation.fleet.choices(asked, models).items()}
        found: dict[DeviceId, CohortId] = known["leaf"] | told
        if federation.is_told:
            steps = known["step"] | dict.fromkeys(told, federation.steps)
            again = [*known.get("again", []), *self._again(check_ins, told, known)]
            federation.memory["chosen"] = {**known, "leaf": found, "step": steps, "again": again[-_MOST_KEPT:]}
        return [found.get(each.device) or leaves[int(rng.integers(len(leaves)))] for each in check_ins]

    def _again(
        self, check_ins: Sequence[CheckIn], told: Mapping[DeviceId, CohortId], known: Memory
    ) -> list[list[CohortId]]:
        """What devices chose before, and now: those that first looked when the models had had time to part."""
        first = known.get("since", 0) + (self.renew_steps or 0)
        return [
            [known["leaf"][each.device], told[each.device]]
            for each in check_ins
            if each.device in told and not each.changed and known["step"].get(each.device, -1) >= first
        ]

    def _must_ask(self, check_in: CheckIn, known: Memory, step: int) -> bool:
        if check_in.changed or check_in.device not in known["leaf"]:
            return True
        chosen_at = known["step"].get(check_in.device)
        return None not in (self.renew_steps, chosen_at) and step - chosen_at >= self.renew_steps
