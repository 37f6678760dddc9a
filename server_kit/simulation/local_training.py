"""What simulated devices send when they have trained, many of them worked out at once."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, fields, replace
from typing import TYPE_CHECKING, Any, NamedTuple

import torch

from server_kit.interfaces import DeviceId, Order, Update
from server_kit.simulation.private_updates import noised_as_a_whole

if TYPE_CHECKING:
    from server_kit.local_task import LocalTask
    from server_kit.round import Ticket
    from server_kit.simulation.population import Population
    from server_kit.simulation.privacy_terms import SpendingPlan
    from server_kit.simulation.training import DeviceData, Trainer

_TOGETHER = 64  # devices whose halves are held until their updates are there
_HARDLY = 1e-4  # a learning rate at which a model stays where it is
Key = tuple[DeviceId, float]
"""A device and when it was asked: an answer of its own."""


def key_of(ticket: Ticket) -> Key:
    return ticket.device, ticket.asked_at_seconds


@dataclass(frozen=True)
class Expected:
    """An answer under way: what was asked, when it comes, and which participation of the device it is."""

    order: Order
    asked_at_seconds: float
    at_seconds: float
    number: int
    round: int
    """The run's round when it was asked: it trains on what it has then."""

    @property
    def key(self) -> Key:
        return self.order.device, self.asked_at_seconds


class Outcome(NamedTuple):
    """What became of an answer that is part of a sum."""

    loss: float | None = None
    is_finite: bool = True


AS_TOLD = Outcome()
"""Nothing that was not known when it was announced."""


@dataclass(frozen=True)
class LocalTraining:
    """Trains what devices were asked to; what one sends follows from its order, its records and its number."""

    population: Population
    trainer: Trainer
    seed: int
    privacy: SpendingPlan | None
    reports_loss: bool

    def updates(self, work: Sequence[Expected]) -> Iterator[tuple[int, Update]]:
        """The updates of these answers with their places, those that can be worked out together side by side."""
        for places in self._alike(work):
            alike = [work[place] for place in places]
            for place, update in self._train_alike(alike, alike[0].order.task):
                yield places[place], update

    @property
    def sees_each(self) -> bool:
        """Whether every update must be written down, for the noise that it gets as a whole or for what liars send."""
        return self._noises_whole or bool(self.population.liars)

    @property
    def _noises_whole(self) -> bool:
        return self.privacy is not None and self.privacy.terms.unit == "device"

    def summed(self, work: Sequence[Expected], shares: Sequence[float]) -> tuple[torch.Tensor, Sequence[Outcome]]:
        """Σ share·Δ of these answers in float64, and what became of each; without masks and halves."""
        total = torch.zeros(work[0].order.model.numel(), dtype=torch.float64)
        outcomes = [AS_TOLD] * len(work)
        for places in self._alike(work):
            alike = [work[place] for place in places]
            for chunk in self.trainer.sum_in_chunks(
                shares=[shares[place] for place in places], **self._asked(alike, self._private(alike[0].order.task))
            ):
                total += chunk.total
                if chunk.start_losses is None and all(chunk.finite):
                    continue
                losses = [None] * len(chunk.positions) if chunk.start_losses is None else chunk.start_losses.tolist()
                for position, loss, is_finite in zip(chunk.positions, losses, chunk.finite, strict=True):
                    outcomes[places[position]] = Outcome(None if loss is None else self._told(loss), is_finite)
        return total, outcomes

    def _alike(self, work: Sequence[Expected]) -> Iterable[list[int]]:
        """Places of answers that can be worked out together."""
        groups: dict[tuple[object, ...], list[int]] = {}
        known: dict[tuple[int, int, bool], list[int]] = {}
        liars = self.population.liars
        for place, one in enumerate(work):
            lies = one.order.device in liars
            same = (id(one.order.task), one.round, lies)
            if same not in known:
                likeness = (self.population.stages.stage(one.round), lies, *_likeness(one.order.task))
                known[same] = groups.setdefault(likeness, [])
            known[same].append(place)
        return groups.values()

    def _private(self, task: LocalTask) -> LocalTask:
        return task if self.privacy is None else self.privacy.private(task)

    def _train_alike(self, work: Sequence[Expected], task: LocalTask) -> Iterator[tuple[int, Update]]:
        """Devices with the same task, whatever models they start from."""
        if work[0].order.device not in self.population.liars:
            task = self._private(task)
        if not task.halves:
            yield from self._train_together(work, task)
            return
        for start in range(0, len(work), _TOGETHER):
            some = work[start : start + _TOGETHER]
            halves = {place: kept(update).halves for place, update in self._train_together(some, _looking(task))}
            for place, update in self._train_together(some, replace(task, halves=False)):
                yield start + place, replace(update, halves=halves[place])

    def _train_together(self, work: Sequence[Expected], task: LocalTask) -> Iterator[tuple[int, Update]]:
        for chunk in self.trainer.train_in_chunks(**self._asked(work, task)):
            for row, place in enumerate(chunk.positions):
                halves = None if chunk.halves is None else (chunk.halves[0, row], chunk.halves[1, row])
                loss = None if chunk.start_losses is None else float(chunk.start_losses[row])
                yield place, self._update(work[place], chunk.updates[row], int(chunk.steps[row]), halves, loss)

    def _asked(self, work: Sequence[Expected], task: LocalTask) -> dict[str, Any]:
        """What a trainer must know."""
        models = {id(one.order.model): one.order.model for one in work}
        at = {key: number for number, key in enumerate(models)}
        return {
            "starts": torch.stack(list(models.values())) if len(models) > 1 else work[0].order.model.unsqueeze(0),
            "data": self._records(work[0]),
            "devices": [one.order.device for one in work],
            "task": task,
            "seed": self.seed,
            "round_number": [one.number for one in work],
            "start_of": [at[id(one.order.model)] for one in work],
            "with_start_losses": self.reports_loss,
        }

    def _records(self, one: Expected) -> DeviceData:
        poisoned = self.population.poisoned_data(one.round) if one.order.device in self.population.liars else None
        return self.population.device_data("train", one.round) if poisoned is None else poisoned

    def weight(self, device: DeviceId) -> float:
        """How much an update counts: the number of records is private."""
        return float(self.population.num_samples(device)) if self.privacy is None else 1.0

    def _told(self, loss: float) -> float | None:
        return loss if self.privacy is None and math.isfinite(loss) else None

    def _update(
        self,
        one: Expected,
        delta: torch.Tensor,
        steps: int,
        halves: tuple[torch.Tensor, torch.Tensor] | None,
        loss: float | None,
    ) -> Update:
        order, weight = one.order, self.weight(one.order.device)
        attack = self.population.attack
        if attack is not None and order.device in self.population.liars:
            delta = attack.sent(delta, order.model, self.trainer.spec.layout)
        elif self.privacy is not None and self._noises_whole:
            delta = noised_as_a_whole(delta, self.privacy, f"{self.seed}:{order.device}:{one.number}")
        loss = None if loss is None else self._told(loss)
        return Update(order.device, delta, order.version, 0, weight, loss, steps, order.model, order.task.mask, halves)


def kept(update: Update) -> Update:
    """A copy: chunks of training are written over."""
    halves = None if update.halves is None else (update.halves[0].clone(), update.halves[1].clone())
    return replace(update, delta=update.delta.clone(), halves=halves)


def _likeness(task: LocalTask) -> tuple[object, ...]:
    """Equal for tasks that can be trained side by side."""
    mask = None if task.mask is None else task.mask.cpu().numpy().tobytes()
    return (*(getattr(task, each.name) for each in fields(task) if each.name != "mask"), mask)


def _looking(task: LocalTask) -> LocalTask:
    """One epoch at the starting point: what either half of the records says about the model as it was handed out.

    Halves taken along the way of training would not do: each step undoes part of what the last one did, so halves
    of the same device differ more than those of strangers (on IID data their covariance is a fifth below zero).
    """
    return replace(
        task, learning_rate=_HARDLY, epochs=1, steps=None, momentum=0.0, proximal=0.0, mask=None, halves=True
    )
