"""What devices have spent at this server, by the receipts that they signed."""

from __future__ import annotations

import statistics
from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass
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


def privacy_spend(receipts: Iterable[Receipt], delta: float) -> PrivacySpend:
    """The spend of all devices together with their receipts. What they spent elsewhere is known to them only."""
    costs: dict[bytes, Counter[PrivacyCost]] = {}
    for receipt in receipts:
        costs.setdefault(receipt.device_key, Counter())[receipt.cost] += 1
    if not costs:
        return PrivacySpend()
    # Devices that did the same work spent the same, so few sums are worked out.
    alike = Counter(frozenset(counted.items()) for counted in costs.values())
    epsilons = {work: epsilon_spent([cost for cost, times in work for _ in range(times)], delta) for work in alike}
    spread = [epsilons[work] for work, devices in alike.items() for _ in range(devices)]
    return PrivacySpend(
        devices=len(costs),
        releases=sum(counted.total() for counted in costs.values()),
        median_epsilon=shown_epsilon(statistics.median(spread)),
        most_epsilon=shown_epsilon(max(spread)),
    )
