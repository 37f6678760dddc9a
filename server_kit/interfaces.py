"""Every extension point of the server, side by side, and the few nouns that flow between them.

A federation is a choice of parts: how devices are summarised, clustered, split, matched, selected, trained
and aggregated. A part holds settings and no state. What it must remember about a cohort stands in a `Memory`
that comes in by argument, so that calls need no secret order, a cohort can be copied when it splits, and the
engine can put everything into a checkpoint. Chance comes in by argument too: the same seed, the same run.

Models are flat float32 vectors on a torch device; `w` is a model, `Δ = w_i − w` an update.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Literal, Protocol

from privacy.budget import NeighbouringRelation

if TYPE_CHECKING:
    import numpy as np
    import torch

    from server_kit.clustering.distances import DistanceRows
    from server_kit.clustering.partition import Clustering
    from server_kit.layout import Layout
    from server_kit.local_task import LocalTask

DeviceId = str
CohortId = str
"""The path from the root, e.g. `0.1.0`: the root is `0`, its children `0.0`, `0.1`, …"""
Memory = dict[str, Any]
"""What a part remembers about one cohort: JSON values and tensors, owned and checkpointed by the engine."""


@dataclass(frozen=True)
class DeviceView:
    """What the server knows about a waiting device. None is "never heard", not zero."""

    device: DeviceId
    latency_seconds: float | None = None
    loss: float | None = None
    samples: int | None = None
    participations: int = 0
    last_round: int | None = None
    cluster: int | None = None
    staleness: int | None = None
    """How stale its last answer was."""


@dataclass(frozen=True)
class Update:
    """One device's contribution: how it would change the model version it was handed."""

    device: DeviceId
    delta: torch.Tensor
    base_version: int = 0
    staleness: int = 0
    weight: float = 1.0
    loss: float | None = None
    steps: int = 0
    base: torch.Tensor | None = None
    mask: torch.Tensor | None = None
    halves: tuple[torch.Tensor, torch.Tensor] | None = None


class Updates(Protocol):
    """A round's updates, streamed: each pass reads them anew, so that memory does not grow with their number."""

    def __len__(self) -> int: ...

    def __iter__(self) -> Iterator[Update]: ...


class Announced(Protocol):
    """What is known of an update before anybody has seen it."""

    @property
    def device(self) -> DeviceId: ...

    @property
    def staleness(self) -> int: ...

    @property
    def weight(self) -> float: ...


@dataclass(frozen=True)
class Counted:
    """An update that is part of a sum, or not finite and left out of it."""

    device: DeviceId
    staleness: int
    weight: float
    loss: float | None = None
    is_finite: bool = True


@dataclass(frozen=True)
class Summed:
    """A weighted sum of updates that nobody has seen one by one."""

    total: torch.Tensor
    """Σ share·Δ in float64, over those that are finite."""
    counted: Sequence[Counted]
    """All of them, in the order of the updates."""


class SelfSumming(Updates, Protocol):
    """Updates that can be added up where they are made, for an aggregator that wants their sum and nothing else.

    A simulated device's update is the product of its records with a few numbers. The sum of many of them is one large
    product, while each by itself would be written, checked and read again.
    """

    def summed(self, share: Callable[[Announced], float]) -> Summed | None:
        """Their sum by these shares, or None where they must be read one by one."""


def summed(updates: Updates, share: Callable[[Announced], float]) -> Summed | None:
    """The sum of updates by these shares, from those that are `SelfSumming`; None where they must be read."""
    # By name: to ask whether something is an instance of a protocol takes a quarter of a millisecond.
    add_up: Callable[[Callable[[Announced], float]], Summed | None] | None = getattr(updates, "summed", None)
    return None if add_up is None else add_up(share)


class InParts(Updates, Protocol):
    """Updates of which a few coordinates can be read without the rest, for rules that look across all devices."""

    @property
    def has_parts(self) -> bool:
        """Whether that is cheaper than to read them whole."""

    def parts(self, start: int, stop: int) -> Iterator[torch.Tensor]:
        """The coordinates from `start` to `stop` of each update, in the order of the updates."""


def has_parts(updates: Updates) -> bool:
    """Whether some coordinates of these can be read by themselves."""
    return bool(getattr(updates, "has_parts", False))


def in_parts(updates: Updates, start: int, stop: int) -> Iterator[torch.Tensor]:
    """Some coordinates of each update, cut out of whole ones where they cannot be read by themselves."""
    read: Callable[[int, int], Iterator[torch.Tensor]] | None = getattr(updates, "parts", None)
    return (update.delta[start:stop] for update in updates) if read is None else read(start, stop)


@dataclass(frozen=True)
class RoundOutcome:
    """What became of a round: who was asked, who arrived in time, how long it took."""

    round: int
    selected: tuple[DeviceId, ...]
    arrived: tuple[DeviceId, ...]
    duration_seconds: float
    losses: Mapping[DeviceId, float] = field(default_factory=dict)
    latencies_seconds: Mapping[DeviceId, float] = field(default_factory=dict)
    accuracy: float | None = None
    loss: float | None = None
    """Of the new model, as its accuracy: on the server's own data."""
    weights: Mapping[DeviceId, float] = field(default_factory=dict)


@dataclass(frozen=True)
class CheckIn:
    """A device reports for work. What it asks for follows from its own record, which stays with it."""

    device: DeviceId
    cohort: CohortId | None = None
    sub_cluster: int | None = None
    reward: float = 0.0
    """How well it says it fits the cohort it asks for."""
    changed: bool = False
    """Whether it has noticed that its data are no longer what they were."""


@dataclass(frozen=True)
class Order:
    """A device is to train this model of its cohort."""

    device: DeviceId
    cohort: CohortId
    version: int
    model: torch.Tensor
    task: LocalTask


@dataclass(frozen=True)
class Answer:
    """What a cohort tells a device that took part; None is "no verdict this time"."""

    device: DeviceId
    cohort: CohortId
    round: int
    reward_change: float | None = None
    sub_cluster: int | None = None


@dataclass(frozen=True)
class SummaryRequest:
    """What devices are to say about themselves, once: a histogram of their labels, or an update from `model`.

    `truth` is the group that the simulator put them in; only simulated fleets can answer.
    """

    kind: Literal["label_histogram", "feature_histogram", "update", "truth"]
    epsilon: float | None = None
    """For histograms: the price of one release; None for no noise, which only simulations allow."""
    relation: NeighbouringRelation = NeighbouringRelation.REPLACE
    bins: int = 16
    """For feature histograms: how finely features are told apart."""
    model: torch.Tensor | None = None
    task: LocalTask | None = None

    @property
    def noise_scale(self) -> float | None:
        """Of the noise on each count; None without noise. A feature is a share of a record, hence one scale."""
        return None if self.epsilon is None else self.relation.changes / self.epsilon


@dataclass(frozen=True)
class Seen:
    """One step of a cohort in the eyes of those who look for structure: a row for each usable update."""

    cohort: CohortId
    round: int
    devices: tuple[DeviceId, ...]
    versions: tuple[int, ...]
    """The model version each update started from."""
    updates: torch.Tensor
    """[n, d]: the updates themselves or sketches of them."""
    halves: tuple[torch.Tensor, torch.Tensor] | None = None
    claims: Mapping[DeviceId, CheckIn] = field(default_factory=dict)
    mixing_rate: float | None = None
    """How far one arrival moves the model, where the aggregator has such a rate."""


@dataclass(frozen=True)
class Split:
    """A leaf becomes several: who goes where, and with which models they start (copies of the parent's if None)."""

    cohort: CohortId
    parts: int
    members: Mapping[DeviceId, int] = field(default_factory=dict)
    models: Sequence[torch.Tensor] | None = None
    reason: str = ""


@dataclass(frozen=True)
class Merge:
    """What descends from a cohort trains together again, from this model."""

    cohort: CohortId
    model: torch.Tensor
    reason: str = ""


Decision = Split | Merge


class Clock(Protocol):
    """The time that decides deadlines: of the wall, or of a simulation."""

    def seconds(self) -> float: ...

    def wait_until(self, seconds: float) -> None: ...


class Fleet(Protocol):
    """The devices behind the server, real or simulated. Whoever does not answer is missing in what comes back."""

    def waiting(self, now_seconds: float) -> Sequence[DeviceId]:
        """Who could be asked now."""

    def check_ins(
        self, devices: Sequence[DeviceId], leaves: Sequence[CohortId], *, exploring: bool = True
    ) -> Sequence[CheckIn]:
        """What these devices ask for; without exploring, what each believes to be best."""

    def dispatch(self, orders: Sequence[Order], now_seconds: float) -> None:
        """Have devices train; they answer in their own time."""

    def summaries(self, request: SummaryRequest, devices: Sequence[DeviceId]) -> Mapping[DeviceId, torch.Tensor]:
        """What devices say about themselves."""

    def choices(self, devices: Sequence[DeviceId], models: torch.Tensor) -> Mapping[DeviceId, int]:
        """Which of these models each device finds best on its own data, as it is willing to tell."""

    def candour(self, options: int) -> float:
        """How likely it is that a choice among so many is told as it is; 1 where nothing is randomised."""

    def tell(self, answers: Sequence[Answer], leaves: Sequence[CohortId]) -> None:
        """Bring feedback to the devices' records."""

    def tell_split(self, cohort: CohortId, children: Sequence[CohortId]) -> None:
        """A cohort has split: records inherit what they knew about it."""


class Selector(Protocol):
    """Chooses which waiting devices train next."""

    def select(
        self, waiting: Sequence[DeviceView], count: int, memory: Memory, rng: np.random.Generator
    ) -> list[DeviceId]:
        """At most `count` different devices among `waiting`; all of them if there are no more."""

    def observe(self, outcome: RoundOutcome, memory: Memory) -> None:
        """Learn from how the round went."""


class Aggregator(Protocol):
    """Folds one round of updates, or one late one, into the next model.

    One that reads the updates more than once may say so in a class variable `reads_again`; who makes them, keeps them.
    One that wants a mean of them and nothing else says `of_a_mean`: it can be guarded (`aggregation.robust`).
    """

    def aggregate(self, model: torch.Tensor, updates: Updates, memory: Memory) -> torch.Tensor:
        """The next model; `model` itself is left alone. Without updates it stays as it is."""


class Trained(Protocol):
    """What a local objective may depend on: the model that a cohort has, and what its aggregator remembers."""

    @property
    def model(self) -> torch.Tensor: ...

    @property
    def aggregation(self) -> Memory: ...

    @property
    def layout(self) -> Layout: ...


class Objective(Protocol):
    """What a device is asked to do with its data."""

    def task_for(self, usual: LocalTask, view: DeviceView, cohort: Trained) -> LocalTask:
        """The task of one device of this cohort, made of the one that all would get."""


class Summarizer(Protocol):
    """What is asked of a device so that it can be compared with others."""

    def request(self, model: torch.Tensor, usual: LocalTask) -> SummaryRequest:
        """The question; `model` and `usual` are what devices would train, and how."""


class Distance(Protocol):
    """Turns what devices said into points whose distance means likeness, or into rows of distances."""

    def compare(self, summaries: torch.Tensor, noise_scale: float | None) -> torch.Tensor | DistanceRows:
        """One row for each device; counts with noise of this scale are denoised first."""


class Clusterer(Protocol):
    """Finds which devices belong together."""

    def cluster(self, points: torch.Tensor | DistanceRows, rng: np.random.Generator) -> Clustering[Any]:
        """A label for each row; a clusterer that needs points refuses rows of distances."""


class SplitRule(Protocol):
    """Says whether the sub-clusters of a cohort are worth models of their own."""

    def reason(self, seen: Seen, labels: Mapping[DeviceId, int], memory: Memory) -> str | None:
        """Why to split now, by these labels; None to go on as one. Called once for each step of the cohort."""


class Matcher(Protocol):
    """Leads devices that check in to the leaf they train in."""

    def match(self, check_ins: Sequence[CheckIn], federation: Federated, rng: np.random.Generator) -> list[CohortId]:
        """A living leaf for each."""


class Federated(Protocol):
    """What parts that look beyond one cohort may know of the whole."""

    @property
    def fleet(self) -> Fleet: ...

    @property
    def leaves(self) -> Sequence[CohortId]: ...

    @property
    def memory(self) -> Memory:
        """What structure remembers about the federation as a whole."""

    @property
    def task(self) -> LocalTask:
        """What devices do in a usual round."""

    @property
    def steps(self) -> int:
        """Folds of all cohorts so far."""

    @property
    def suggested(self) -> Mapping[DeviceId, CohortId]:
        """Where the latest splits put devices."""

    @property
    def is_told(self) -> bool:
        """Whether what devices answer now reaches the server; False while they only look for their own use."""

    def model(self, cohort: CohortId) -> torch.Tensor: ...

    def fresh_model(self, number: int) -> torch.Tensor:
        """Another random start; number 0 is the one the federation began with."""

    def clustering(self, cohort: CohortId) -> Memory:
        """What structure remembers about one cohort."""

    def members(self, cohort: CohortId) -> Sequence[DeviceId]:
        """The devices assigned to a cohort, where the server keeps such a table."""

    def descend(self, check_in: CheckIn, rng: np.random.Generator) -> CohortId:
        """The leaf closest to what a device asks for."""


@dataclass(frozen=True)
class Look:
    """What looking at a step led to: maybe a change of structure, and feedback for those who took part."""

    decision: Decision | None = None
    answers: tuple[Answer, ...] = ()


class Formation(Protocol):
    """How cohorts come about: before training, and as it goes on."""

    @property
    def wants(self) -> Wants: ...

    def begin(self, federation: Federated, rng: np.random.Generator) -> Split | None:
        """Look at the fleet before the first round."""

    def welcome(self, newcomers: Sequence[DeviceId], federation: Federated, rng: np.random.Generator) -> None:
        """Devices are here for the first time, or say that their data have changed."""

    def look(self, seen: Seen, memory: Memory, federation: Federated, rng: np.random.Generator) -> Look:
        """Look at one step of one cohort; `memory` is that cohort's."""


@dataclass(frozen=True)
class Wants:
    """What a formation needs to see of updates."""

    updates: bool = False
    halves: bool = False
    sketch: int | None = None
    """The length of sketches to look at instead of whole updates."""
    summary: str = ""
    """The mechanism of the one histogram that devices are to send; empty: none."""
    summary_bins: int = 0
    """How finely features are told apart in it, where it is of features."""
    summary_epsilon: float = 0.0
    """What one summary of a device costs it."""
    choices: bool = False
    """Whether devices are asked to choose between models."""
    feedback: bool = False
    """Whether devices will be told how well their updates fit."""


class Mixing(Protocol):
    """Lets cohorts learn from each other after each round."""

    def mixed(self, models: Mapping[CohortId, torch.Tensor]) -> Mapping[CohortId, torch.Tensor]:
        """The leaves' models after the exchange."""
