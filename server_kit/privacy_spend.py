"""What devices have spent at this server, by the receipts that they signed."""

from __future__ import annotations

import statistics
from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from privacy.accounting import epsilon_spent, shown_epsilon

if TYPE_CHECKING:
    from privacy.budget import PrivacyCost
    from privacy.receipts import Receipt


@dataclass(frozen=True)
class PrivacySpend:
    """ε over devices, at one δ; of a device, over all that it released here."""

    devices: int = 0
    releases: int = 0
    median_epsilon: float = 0.0
    most_epsilon: float = 0.0


@dataclass(frozen=True)
class SpendSpread:
    """How ε is spread over devices, at one δ, and which mechanisms it went to."""

    devices_by_epsilon: Mapping[float, int] = field(default_factory=dict)
    releases_by_mechanism: Mapping[str, int] = field(default_factory=dict)

    @property
    def summary(self) -> PrivacySpend:
        if not self.devices_by_epsilon:
            return PrivacySpend()
        spread = [epsilon for epsilon, devices in self.devices_by_epsilon.items() for _ in range(devices)]
        return PrivacySpend(
            devices=len(spread),
            releases=sum(self.releases_by_mechanism.values()),
            median_epsilon=shown_epsilon(statistics.median(spread)),
            most_epsilon=shown_epsilon(max(spread)),
        )


def privacy_spend(receipts: Iterable[Receipt], delta: float) -> PrivacySpend:
    """The spend of all devices together with their receipts. What they spent elsewhere is known to them only."""
    return spend_spread(receipts, delta).summary


def spend_spread(receipts: Iterable[Receipt], delta: float) -> SpendSpread:
    """As `privacy_spend`, with every device in it."""
    costs: dict[bytes, Counter[PrivacyCost]] = {}
    mechanisms: Counter[str] = Counter()
    for receipt in receipts:
        costs.setdefault(receipt.device_key, Counter())[receipt.cost] += 1
        mechanisms[receipt.mechanism] += 1
    # Devices that did the same work spent the same, so few sums are worked out.
    alike = Counter(frozenset(counted.items()) for counted in costs.values())
    devices: Counter[float] = Counter()
    for work, count in alike.items():
        devices[epsilon_spent([cost for cost, times in work for _ in range(times)], delta)] += count
    return SpendSpread(dict(devices), dict(mechanisms))
