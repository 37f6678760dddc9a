"""What devices have spent at this server, by the receipts that they signed."""

from __future__ import annotations

import math
import statistics
from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING

from privacy.accounting import epsilon_spent, shown_epsilon
from privacy.errors import InvalidTerms

if TYPE_CHECKING:
    from device_sdk.wire.messages import DeviceId
    from privacy.budget import PrivacyCost
    from privacy.receipts import Receipt
    from server_kit.store.protocol import Intake

_MOST_KINDS = 64
"""Of costs that one device has; a device of ours has a handful, and adding up hundreds takes minutes."""


@dataclass(frozen=True)
class PrivacySpend:
    """ε over devices, at one δ; of a device, over all that it released here."""

    devices: int = 0
    releases: int = 0
    median_epsilon: float = 0.0
    most_epsilon: float = 0.0
    left_out: Mapping[DeviceId, int] = field(default_factory=dict)
    """Devices with receipts that cannot be read or added up, and how many these are; they are in no other figure."""


@dataclass(frozen=True)
class SpendSpread:
    """How ε is spread over devices, at one δ, and which mechanisms it went to."""

    devices_by_epsilon: Mapping[float, int] = field(default_factory=dict)
    releases_by_mechanism: Mapping[str, int] = field(default_factory=dict)
    left_out: Mapping[DeviceId, int] = field(default_factory=dict)

    @property
    def summary(self) -> PrivacySpend:
        if not self.devices_by_epsilon:
            return PrivacySpend(left_out=self.left_out)
        spread = [epsilon for epsilon, devices in self.devices_by_epsilon.items() for _ in range(devices)]
        return PrivacySpend(
            devices=len(spread),
            releases=sum(self.releases_by_mechanism.values()),
            median_epsilon=shown_epsilon(statistics.median(spread)),
            most_epsilon=shown_epsilon(max(spread)),
            left_out=self.left_out,
        )


def stored_spend(store: Intake, delta: float) -> SpendSpread:
    """What all devices together have spent, by their receipts. What they spent elsewhere is known to them only."""
    unreadable: Counter[DeviceId] = Counter()
    receipts = store.receipts(lambda device: unreadable.update([device]))
    spread = spend_spread(receipts, delta, lambda key: store.device_of(key) or key.hex())
    return replace(spread, left_out=dict(Counter(spread.left_out) + unreadable))


def privacy_spend(receipts: Iterable[Receipt], delta: float) -> PrivacySpend:
    """The spend of all devices together with their receipts."""
    return spend_spread(receipts, delta).summary


def spend_spread(
    receipts: Iterable[Receipt], delta: float, owner: Callable[[bytes], DeviceId] = bytes.hex
) -> SpendSpread:
    """As `privacy_spend`, with every device in it.

    No receipt can make this fail. A device whose costs cannot be added up is left out, and named by `owner` of its key.
    """
    costs: dict[bytes, Counter[PrivacyCost]] = {}
    mechanisms: dict[bytes, Counter[str]] = {}
    for receipt in receipts:
        costs.setdefault(receipt.device_key, Counter())[receipt.cost] += 1
        mechanisms.setdefault(receipt.device_key, Counter())[receipt.mechanism] += 1
    spent = _spent(costs, delta)
    told: Counter[str] = Counter()
    for key in spent:
        told.update(mechanisms[key])
    left_out = {owner(key): costs[key].total() for key in costs if key not in spent}
    return SpendSpread(dict(Counter(spent.values())), dict(told), left_out)


def _spent(costs: Mapping[bytes, Counter[PrivacyCost]], delta: float) -> dict[bytes, float]:
    """The ε of each device, of those whose costs can be added up."""
    # Devices that did the same work spent the same, so few sums are worked out.
    alike: dict[frozenset[tuple[PrivacyCost, int]], float | None] = {}
    spent = {}
    for key, counted in costs.items():
        work = frozenset(counted.items())
        if work not in alike:
            alike[work] = _epsilon(work, delta)
        epsilon = alike[work]
        if epsilon is not None:
            spent[key] = epsilon
    return spent


def _epsilon(work: frozenset[tuple[PrivacyCost, int]], delta: float) -> float | None:
    if len(work) > _MOST_KINDS:
        return None
    try:
        epsilon = epsilon_spent([cost for cost, times in work for _ in range(times)], delta)
    except (InvalidTerms, ArithmeticError, ValueError):
        return None
    return epsilon if math.isfinite(epsilon) else None
