"""What simulated devices say about themselves: histograms, first updates, choices between models.

Where there are terms of privacy, it is noised and counted as they ask; who has spent what they allow stays silent.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, Any

import torch

from device_sdk.wire.question_terms import candour_of, choice_mechanism
from privacy.budget import NeighbouringRelation
from privacy.mechanisms import VotedChoice
from privacy.randomness import NoiseSource, SeededSource
from server_kit.errors import InvalidSetting
from server_kit.interfaces import DeviceId, Order, SummaryRequest
from server_kit.simulation.histograms import feature_histogram, label_histogram
from server_kit.simulation.training.bench import Bench
from server_kit.simulation.voting import votes

if TYPE_CHECKING:
    from device_sdk.wire.question_terms import ChoiceMechanism
    from server_kit.simulation.fleet import SimulatedFleet

BYTES = 4
"""Of a number that is sent."""


@dataclass(frozen=True)
class Telling:
    """Speaks for the devices of a fleet, which keeps count of what they have said."""

    fleet: SimulatedFleet

    def summaries(self, request: SummaryRequest, devices: Sequence[DeviceId]) -> Mapping[DeviceId, torch.Tensor]:
        if request.kind == "truth":
            return self._truth(devices)
        if request.kind == "update":
            return self._first_updates(request, devices)
        if self.fleet.privacy is not None:
            # The budget has room for one; who has told already stays silent.
            devices = [device for device in devices if device not in self.fleet.summarised]
        for device in devices:
            self.fleet.summarised[device] = self.fleet.summarised.get(device, 0) + 1
        histogram = label_histogram if request.kind == "label_histogram" else feature_histogram
        classes = self.fleet.population.dataset.num_classes
        answers = {
            device: histogram(
                request,
                self.fleet.population.samples(device, "train", self.fleet.round),
                classes,
                self._noise(device, request.kind),
            )
            for device in devices
        }
        self.fleet.tally.bytes_up += sum(answer.numel() for answer in answers.values()) * BYTES
        return answers

    def _noise(self, device: DeviceId, purpose: str) -> NoiseSource:
        moment = self.fleet.summarised.get(device, 0)
        return NoiseSource(SeededSource(f"simulated {purpose}:{self.fleet.seed}:{device}:{moment}"))

    def _truth(self, devices: Sequence[DeviceId]) -> Mapping[DeviceId, torch.Tensor]:
        groups = self.fleet.population.true_groups(self.fleet.round)
        if groups is None:
            return {}
        return {device: torch.tensor([int(groups[self.fleet.population.index(device)])]) for device in devices}

    def _first_updates(self, request: SummaryRequest, devices: Sequence[DeviceId]) -> Mapping[DeviceId, torch.Tensor]:
        able = [
            device for device in devices if self.fleet.participations.get(device, 0) < self.fleet.most_participations
        ]
        if request.model is None or request.task is None or not able:
            return {}
        # Beside what they may be out for, and without an end to it.
        work = self.fleet.under_way([Order(device, "", 0, request.model, request.task) for device in able], 0.0)
        self.fleet.delay_seconds += max(one.at_seconds for one in work)
        updates = {update.device: update.delta.clone() for _, update in self.fleet.train(work)}
        return {device: updates[device] for device in able if torch.isfinite(updates[device]).all()}

    def choices(self, devices: Sequence[DeviceId], models: torch.Tensor) -> Mapping[DeviceId, int]:
        fleet = self.fleet
        if not devices:
            return {}
        if not fleet.is_private:
            fleet.tally.bytes_down += len(devices) * models.numel() * BYTES
        if fleet.privacy is None or fleet.is_private:
            return dict(zip(devices, fleet.best_models(devices, models), strict=True))
        able = [device for device in devices if fleet.chosen.get(device, 0) < fleet.privacy.terms.most_choices]
        mechanism = self._choosing(len(models))
        if isinstance(mechanism, VotedChoice):
            return {device: self._told(mechanism, device, self.votes(device, models)) for device in able}
        best = fleet.best_models(able, models) if able else []
        return {device: self._told(mechanism, device, choice) for device, choice in zip(able, best, strict=True)}

    def _told(self, mechanism: Any, device: DeviceId, found: int | list[int]) -> int:
        """What a device tells of its choice; it is counted."""
        self.fleet.chosen[device] = number = self.fleet.chosen.get(device, 0) + 1
        noise = NoiseSource(SeededSource(f"simulated choice:{self.fleet.seed}:{device}:{number}"))
        told: int = mechanism.decode(mechanism.answer(found, noise).payload)
        return told

    def _choosing(self, options: int) -> ChoiceMechanism:
        """How a choice among so many is told under the terms."""
        if self.fleet.privacy is None:
            raise InvalidSetting("without privacy terms a choice is told as it is; nothing was noised")
        terms, epsilon = self.fleet.privacy.terms, str(self.fleet.privacy.choice_epsilon)
        return choice_mechanism(terms.chosen_by, options, epsilon, NeighbouringRelation(terms.relation))

    def votes(self, device: DeviceId, models: torch.Tensor) -> list[int]:
        """The model that each record of a device votes for."""
        return votes(self._bench, models, self.fleet.population.samples(device, "train", self.fleet.round))

    @cached_property
    def _bench(self) -> Bench:
        return Bench(self.fleet.trainer.spec)

    def candour(self, options: int) -> float:
        return 1.0 if self.fleet.privacy is None else candour_of(self._choosing(options))
