"""What the demo came to, in numbers: who found whom, and whether it was worth it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from functools import cached_property
from typing import TYPE_CHECKING, Any

import numpy as np

from server_kit.clustering import adjusted_rand_index
from server_kit.demo.data import KINDS
from server_kit.demo.terms import DELTA, EPSILON

if TYPE_CHECKING:
    from server_kit.demo.measuring import Accuracies
    from server_kit.demo.running import Results


@dataclass(frozen=True)
class KindLine:
    """Devices of one kind: right answers with the model of their cohort, and with the one model."""

    kind: str
    devices: int
    cohorts: str
    cohort_model: float
    one_model: float

    @property
    def gain(self) -> float:
        """In shares of all answers."""
        return self.cohort_model - self.one_model


@dataclass(frozen=True)
class DeviceLine:
    """One device."""

    device: str
    kind: str
    cohort: str
    cohort_model: float
    one_model: float


class Summary:
    """Results, put side by side."""

    def __init__(self, results: Results) -> None:
        self.results = results
        self.kinds = np.array([device.kind for device in results.devices])
        self.epsilon = results.progress.spent[-1][1]

    @cached_property
    def one_model(self) -> Accuracies:
        """For each device."""
        return self.results.one_model.rounds[self.results.terms.rounds]

    @cached_property
    def cohort_models(self) -> Accuracies:
        """For each device, with the model of the cohort it trained in last."""
        progress, homes = self.results.progress, self.results.last.homes
        newest = {cohort: progress.newest(cohort, self.results.terms.rounds) for cohort in set(homes.values())}
        return np.array(
            [
                float("nan") if (point := newest.get(homes.get(device, ""))) is None else point.accuracies[device]
                for device in range(len(self.kinds))
            ]
        )

    @property
    def agreement(self) -> float:
        """Adjusted Rand index of the found cohorts with the kinds; whoever is in no cohort is alone."""
        homes = self.results.last.homes
        named = [homes.get(device, f"none {device}") for device in range(len(self.kinds))]
        return adjusted_rand_index(np.unique(named, return_inverse=True)[1], self.kinds)

    def by_kind(self) -> list[KindLine]:
        """A line for each kind that has devices, and one for all of them."""
        lines = [
            self._line(kind.name, np.flatnonzero(self.kinds == number).tolist())
            for number, kind in enumerate(KINDS[: self.results.terms.kinds])
        ]
        return [*lines, self._line("all devices", list(range(len(self.kinds))))]

    def by_device(self) -> list[DeviceLine]:
        homes = self.results.last.homes
        return [
            DeviceLine(
                device.name,
                KINDS[device.kind].name,
                homes.get(number, "none"),
                float(self.cohort_models[number]),
                float(self.one_model[number]),
            )
            for number, device in enumerate(self.results.devices)
        ]

    def document(self) -> dict[str, Any]:
        """For programs."""
        return {
            "format": "covey-demo-1",
            "devices": self.results.terms.devices,
            "rounds": self.results.terms.rounds,
            "seconds": round(self.results.last.seconds, 1),
            "epsilon": {"spent": self.epsilon, "budget": EPSILON, "delta": DELTA},
            "agreement": self.agreement,
            "by_kind": [asdict(line) for line in self.by_kind()],
            "by_device": [asdict(line) for line in self.by_device()],
        }

    def _line(self, name: str, members: Sequence[int]) -> KindLine:
        homes = self.results.last.homes
        cohorts = sorted({homes.get(device, "none") for device in members})
        return KindLine(
            name,
            len(members),
            ", ".join(cohorts),
            float(np.nanmean(self.cohort_models[members])),
            float(self.one_model[members].mean()),
        )
