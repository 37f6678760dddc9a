"""The numbers of a fleet: by device, by group, over time. ε is one person's and is never added across devices."""

from __future__ import annotations

import math
import statistics
from collections.abc import Sequence
from dataclasses import dataclass

from privacy.budget import PrivacyUnit
from privacy.reporting.ledger_view import Booking, LedgerView
from privacy.reporting.spending import ShareUse, epsilon_after, epsilon_so_far, epsilon_together, shares_of

_MOST_MOMENTS = 60
_YEAR_2020 = 1_577_836_800


@dataclass(frozen=True)
class DeviceFigures:
    """One device of the fleet."""

    view: LedgerView
    name: str
    epsilon: float
    shares: tuple[ShareUse, ...]

    @property
    def least_left(self) -> float:
        """The share, of 1, that is left of whatever runs out first."""
        return min((1 - share.used for share in self.shares), default=0.0)

    @property
    def record_level(self) -> int:
        """How many of its releases hide single records only."""
        return sum(booking.cost.unit is PrivacyUnit.RECORD for booking in self.view.bookings)


@dataclass(frozen=True)
class GroupFigures:
    """All bookings of one mechanism, purpose or server."""

    name: str
    booked: int
    unsettled: int
    devices: int
    median_epsilon: float
    """Of the devices that took part, each by itself and as if it had released nothing else."""
    most_epsilon: float


@dataclass(frozen=True)
class Moment:
    """How much the devices had revealed by then: the least, the middle, the most, and the tenths between."""

    at: int
    low: float
    tenth: float
    median: float
    ninetieth: float
    high: float


def by_device(views: Sequence[LedgerView]) -> list[DeviceFigures]:
    """Those with the least left first."""
    names = short_names([view.place for view in views])
    figures = [
        DeviceFigures(view, name, epsilon_so_far(view), shares_of(view))
        for view, name in zip(views, names, strict=True)
    ]
    return sorted(figures, key=lambda device: (device.least_left, -device.epsilon, device.name))


def by_group(views: Sequence[LedgerView], field: str) -> list[GroupFigures]:
    """By `mechanism`, `purpose` or `server`, the costliest first."""
    groups: dict[str, list[tuple[LedgerView, list[Booking]]]] = {}
    for view in views:
        own: dict[str, list[Booking]] = {}
        for booking in view.bookings:
            own.setdefault(getattr(booking, field), []).append(booking)
        for name, bookings in own.items():
            groups.setdefault(name, []).append((view, bookings))
    figures = []
    for name, members in groups.items():
        epsilons = [epsilon_together(view, bookings) for view, bookings in members]
        everything = [booking for _, bookings in members for booking in bookings]
        figures.append(
            GroupFigures(
                name=name,
                booked=len(everything),
                unsettled=sum(booking.release is None for booking in everything),
                devices=len(members),
                median_epsilon=statistics.median(epsilons),
                most_epsilon=max(epsilons),
            )
        )
    return sorted(figures, key=lambda group: (-group.most_epsilon, group.name))


def over_time(views: Sequence[LedgerView], now: int) -> list[Moment]:
    """The spread of ε over the devices at up to sixty moments, by the devices' own clocks.

    A clock that stands before 2020 or after `now` is wrong; what it dates belongs to the nearest moment that is not.
    """
    times = sorted({booking.at for view in views for booking in view.bookings})
    sane = [at for at in times if _YEAR_2020 <= at <= now] or [now] * bool(times)
    if not sane:
        return []
    step = -(-len(sane) // _MOST_MOMENTS)
    chosen = sorted({*sane[::step], sane[-1]})
    curves = [_epsilons_at(view, chosen) for view in views]
    return [_moment(at, sorted(curve[index] for curve in curves)) for index, at in enumerate(chosen)]


def _epsilons_at(view: LedgerView, times: Sequence[int]) -> list[float]:
    """ε of one ledger by each of these times, and by the last of them in all."""
    found, position, epsilon = [], 0, epsilon_after(view, 0)
    for until in [*times[:-1], math.inf]:
        before = position
        while position < len(view.bookings) and view.bookings[position].at <= until:
            position += 1
        if position != before:
            epsilon = epsilon_after(view, position)
        found.append(epsilon)
    return found


def short_names(places: Sequence[str]) -> list[str]:
    """The last part of each path, with as many more as make it unique."""
    parts = [tuple(part for part in place.replace("\\", "/").split("/") if part not in ("", ".")) for place in places]
    for length in range(1, max(map(len, parts), default=1) + 1):
        names = ["/".join(part[-length:]) for part in parts]
        if len(set(names)) == len(names):
            return names
    return list(places)


def _moment(at: int, ordered: Sequence[float]) -> Moment:
    last = len(ordered) - 1

    def at_share(share: float) -> float:
        return ordered[round(share * last)]

    return Moment(at, ordered[0], at_share(0.1), at_share(0.5), at_share(0.9), ordered[-1])
