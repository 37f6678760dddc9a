"""A simulated fleet: who has which data, how fast it is, when it is there, and what happens to it on the way.

Everything follows from the settings and the seed, and is computed when it is first asked for. Devices are
called "0", "1", …; the server's code sees them as it sees real ones.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from server_kit.errors import InvalidSetting
from server_kit.interfaces import DeviceId
from server_kit.simulation.attacks import Attack, Backdoor
from server_kit.simulation.availability import Always, Availability, Presence
from server_kit.simulation.chance import generator, uniforms
from server_kit.simulation.changes import LabelFlip, Newcomers, Shift, check_share, chosen
from server_kit.simulation.datasets.dataset import Dataset, Inputs
from server_kit.simulation.datasets.label_counts import count_labels
from server_kit.simulation.device_speeds import Speeds, UniformSpeeds
from server_kit.simulation.latency import Latency
from server_kit.simulation.partition import Holdout, LastFraction, Partition, PartitionRule
from server_kit.simulation.ragged import BoolArray, IntArray
from server_kit.simulation.seen_samples import Part, SeenSamples
from server_kit.simulation.stages import Change, Stages

if TYPE_CHECKING:
    from server_kit.simulation.training import DeviceData


@dataclass(frozen=True, eq=False)
class Samples:
    """What one device trains or is tested on, scaled."""

    x: NDArray[np.float32]
    y: IntArray


@dataclass(frozen=True, eq=False)
class Population:
    """Settings of a fleet, and answers about each device of it."""

    dataset: Dataset
    partition: PartitionRule
    num_devices: int
    seed: int = 0
    holdout: Holdout = field(default_factory=LastFraction)
    speeds: Speeds = field(default_factory=UniformSpeeds)
    availability: Availability = field(default_factory=Always)
    newcomers: tuple[Newcomers, ...] = ()
    shifts: tuple[Shift, ...] = ()
    label_flip: LabelFlip | None = None
    attack: Attack | None = None
    affinity_loss: float = 0.0
    """The chance that a device has lost its affinity record when a round begins."""

    def __post_init__(self) -> None:
        check_share(self.affinity_loss)
        if self.num_devices < 1:
            raise InvalidSetting(f"num_devices must be at least 1, got {self.num_devices}; no population was made")

    def __len__(self) -> int:
        return self.num_devices

    @cached_property
    def devices(self) -> tuple[DeviceId, ...]:
        """All devices, whether or not they have joined yet."""
        return tuple(map(str, range(self.num_devices)))

    def index(self, device: DeviceId) -> int:
        """The place of a device in arrays over all devices."""
        try:
            return self._places[device]
        except KeyError:
            raise InvalidSetting(f"there is no device {device!r} in this population of {self.num_devices}") from None

    @cached_property
    def _places(self) -> dict[DeviceId, int]:
        return {device: place for place, device in enumerate(self.devices)}

    # What devices have

    @cached_property
    def dealt(self) -> Partition:
        """Which samples each device got."""
        return self.partition.assign(self.dataset, self.num_devices, generator(self.seed, "partition"))

    @cached_property
    def seen(self) -> SeenSamples:
        """The samples of all devices, before and after every shift."""
        tested = self.holdout.test_mask(self.dataset, self.dealt, generator(self.seed, "held out"))
        rows, stages = self.dealt.rows, self.stages
        return SeenSamples(
            self.dataset,
            {"train": rows.where(~tested), "test": rows.where(tested)},
            stages.transforms,
            {"train": stages.claimed, "test": stages.world},
        )

    @cached_property
    def stages(self) -> Stages:
        """How devices see their samples in the course of the run."""
        labels, size = self.dataset.num_classes, self.num_devices
        shifts = [
            Change(shift.at_round, chosen(shift.share, size, self.seed, f"shift {number}"), shift.transform(labels))
            for number, shift in enumerate(self.shifts)
        ]
        attack = None if self.label_flip is None else Change(0, self.attackers, self.label_flip.transform(labels))
        return Stages.of(self.dealt, shifts, attack)

    def num_samples(self, device: DeviceId, part: Part = "train") -> int:
        """How many samples the device has."""
        return self._counts[part][self.index(device)]

    def samples(self, device: DeviceId, part: Part = "train", round_number: int = 0) -> Samples:
        """The samples of a device as it sees them in this round."""
        rows = self.seen.located_for(self.index(device), part, self.stages.stage(round_number))
        table = self.seen.table
        return Samples(np.multiply(table.x[rows], np.float32(self.dataset.scale), dtype=np.float32), table.y[rows])

    def device_data(self, part: Part = "train", round_number: int = 0) -> DeviceData:
        """The samples of all devices for the training kernels; the same object until data shift again."""
        stage = self.stages.stage(round_number)
        if part not in self._device_data or self._device_data[part][0] != stage:
            self._device_data[part] = stage, self._for_kernels(part, stage)
        return self._device_data[part][1]

    def label_counts(self, part: Part = "train", round_number: int = 0) -> IntArray:
        """[devices, classes]: what each device would count in this round."""
        located = self.seen.located(part, self.stages.stage(round_number))
        return count_labels(located, self.seen.table.y, self.dataset.num_classes)

    def poisoned_data(self, round_number: int = 0) -> DeviceData | None:
        """What dishonest devices learn from, where that is not what they have: their records, and poisoned ones."""
        stage = self.stages.stage(round_number)
        if not isinstance(self.attack, Backdoor) or not self.liars:
            return None
        if stage not in self._poisoned:
            self._poisoned[stage] = self._with_poison(self.attack, stage)
        return self._poisoned[stage]

    def backdoor_data(self, round_number: int = 0) -> DeviceData | None:
        """Test records that show whether there is a backdoor: whoever calls them by its target has it."""
        if not isinstance(self.attack, Backdoor):
            return None
        stage, attack = self.stages.stage(round_number), self.attack
        located, table = self.seen.located("test", stage), self.seen.table
        rows = [located[number][attack.chosen(table.y[located[number]])] for number in range(self.num_devices)]
        x = attack.stamped(table.x[np.concatenate(rows)], self._brightest)
        return self._dealt_out(x, np.full(len(x), attack.target, dtype=np.int64), [len(each) for each in rows])

    def _with_poison(self, attack: Backdoor, stage: int) -> DeviceData:
        located, table = self.seen.located("train", stage), self.seen.table
        own = [located[self.index(device)] if device in self.liars else located[0][:0] for device in self.devices]
        pool = np.unique(np.concatenate(own))
        poison = attack.stamped(table.x[pool[attack.chosen(table.y[pool])]], self._brightest)
        x, y, sizes = [], [], []
        for device, rows in zip(self.devices, own, strict=True):
            with_poison = poison if device in self.liars else poison[:0]
            kept = rows[table.y[rows] != attack.source]
            x += [table.x[kept], with_poison]
            y += [table.y[kept], np.full(len(with_poison), attack.target, dtype=np.int64)]
            sizes.append(len(kept) + len(with_poison))
        return self._dealt_out(np.concatenate(x), np.concatenate(y), sizes)

    def _dealt_out(self, x: Inputs, y: IntArray, sizes: Sequence[int]) -> DeviceData:
        import torch

        from server_kit.simulation.training import DeviceData

        ends = np.cumsum(sizes).tolist()
        rows = {device: range(end - size, end) for device, end, size in zip(self.devices, ends, sizes, strict=True)}
        return DeviceData(torch.from_numpy(x), torch.from_numpy(y), rows, scale=self.dataset.scale)

    @cached_property
    def _brightest(self) -> float:
        return float(self.dataset.x.max())

    @cached_property
    def _poisoned(self) -> dict[int, DeviceData]:
        return {}

    # Who they are

    def true_groups(self, round_number: int = 0) -> IntArray | None:
        """The true group of each device, None where the partition knows of none; a shift moves devices."""
        return None if self._groups is None else self._groups[self.stages.stage(round_number)]

    def true_group(self, device: DeviceId, round_number: int = 0) -> int | None:
        """The true group of one device."""
        groups = self.true_groups(round_number)
        return None if groups is None else int(groups[self.index(device)])

    @cached_property
    def attackers(self) -> BoolArray:
        """Which devices train on wrong labels."""
        return chosen(self.label_flip.share if self.label_flip else 0.0, self.num_devices, self.seed, "attackers")

    @cached_property
    def liars(self) -> frozenset[DeviceId]:
        """Which devices send something else than they should; those that flip labels believe them."""
        if self.attack is None:
            return frozenset()
        lying = chosen(self.attack.share, self.num_devices, self.seed, "liars")
        return frozenset(device for device, lies in zip(self.devices, lying.tolist(), strict=True) if lies)

    @cached_property
    def joins_at_round(self) -> IntArray:
        """From which round on each device is there."""
        joins = np.zeros(self.num_devices, dtype=np.int64)
        for wave, newcomers in enumerate(self.newcomers):
            joins[chosen(newcomers.share, self.num_devices, self.seed, f"newcomers {wave}")] = newcomers.at_round
        return joins

    def loses_affinity(self, device: DeviceId, round_number: int) -> bool:
        """Whether the device has lost its affinity record when this round begins."""
        one = np.array([self.index(device)])
        return bool(uniforms(self.seed, "lost affinity", one, round_number)[0] < self.affinity_loss)

    # When they answer

    @cached_property
    def latency(self) -> Latency:
        """The speeds of all devices."""
        return self.speeds.draw(self.num_devices, self.seed)

    def latency_seconds(
        self, device: DeviceId, round_number: int, *, bytes_down: float, bytes_up: float, steps: int
    ) -> float:
        """How long the device takes to fetch, train and send."""
        one = np.array([self.index(device)])
        return float(self.latency.seconds(one, round_number, bytes_down=bytes_down, bytes_up=bytes_up, steps=steps)[0])

    @cached_property
    def presence(self) -> Presence:
        """The comings and goings of all devices."""
        return self.availability.draw(self.num_devices, self.seed)

    def available(self, device: DeviceId, time_seconds: float) -> bool:
        """Whether the device can be asked at this time, if it has joined."""
        number = self.index(device)
        # Every answer that comes asks this, and most fleets are always there.
        return self._never_away or bool(self.presence.available(np.array([number]), time_seconds)[0])

    def waiting(self, time_seconds: float, round_number: int = 0) -> list[DeviceId]:
        """All devices that have joined by this round and can be asked at this time."""
        there = self.joins_at_round <= round_number
        there &= self.presence.available(np.arange(self.num_devices), time_seconds)
        # As an array of objects, because a list of thousands is made for each device that is asked.
        return list(self._names[there])

    @cached_property
    def _never_away(self) -> bool:
        return isinstance(self.availability, Always)

    @cached_property
    def _names(self) -> NDArray[np.object_]:
        return np.array(self.devices, dtype=object)

    @cached_property
    def _counts(self) -> dict[Part, list[int]]:
        """How many samples each device has, as plain numbers: they are asked for in every round."""
        return {part: rows.sizes.tolist() for part, rows in self.seen.rows.items()}

    @cached_property
    def _groups(self) -> IntArray | None:
        return None if self.dealt.groups is None else self.stages.groups(self.dealt.label_groups)

    @cached_property
    def _device_data(self) -> dict[Part, tuple[int, DeviceData]]:
        """The latest stage of each part, which is all that a run needs at a time."""
        return {}

    def _for_kernels(self, part: Part, stage: int) -> DeviceData:
        import torch

        from server_kit.simulation.training import DeviceData

        located, table = self.seen.located(part, stage), self.seen.table
        rows = {device: located[number] for number, device in enumerate(self.devices)}
        return DeviceData(torch.from_numpy(table.x), torch.from_numpy(table.y), rows, scale=self.dataset.scale)
