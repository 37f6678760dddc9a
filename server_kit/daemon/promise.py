"""[policy] kept by the server: a device that has given all that was promised is asked for no more.

Counted are the releases that this server has received, each for what a device's own ledger books for it. Devices keep
budgets of their own; this is for those that would give more than the federation has promised to take.
"""

from __future__ import annotations

import threading
from collections.abc import Iterable
from functools import lru_cache
from typing import TYPE_CHECKING

from device_sdk.wire.question_terms import mechanism_of
from privacy.accounting import BudgetLimits, Spend, spend_of
from privacy.errors import BudgetExhausted, InvalidTerms
from server_kit.config.policy import promised

if TYPE_CHECKING:
    from device_sdk.wire.messages import DeviceId, Question
    from privacy.budget import PrivacyCost
    from privacy.receipts import Receipt
    from server_kit.config import ServerConfig


class Promise:
    """For any thread. What a device gives unasked from one share takes nothing from the others."""

    def __init__(self, limits: BudgetLimits, round_cost: PrivacyCost) -> None:
        self._limits, self._round_cost = limits, round_cost
        self._mutex = threading.Lock()
        self._spent: dict[DeviceId, tuple[int, Spend]] = {}
        """The number of the last receipt that is in the sum, and the sum."""

    @classmethod
    def of(cls, config: ServerConfig) -> Promise:
        return cls(promised(config), config.privacy.round_cost(config.training))

    def recall(self, device: DeviceId, receipts: Iterable[Receipt]) -> None:
        """What a device that has come sent earlier, as the store has it. It is read once in the life of a process."""
        with self._mutex:
            if device not in self._spent:
                self._spent[device] = (-1, Spend())
                self._add(device, receipts)

    def took(self, device: DeviceId, receipt: Receipt) -> None:
        """A release is durable. Of a device that has not come yet nothing is known; the store tells it then."""
        with self._mutex:
            if device in self._spent:
                self._add(device, [receipt])

    def allows_round(self, device: DeviceId) -> bool:
        """Whether one more round keeps the promise."""
        return self._allows(device, self._round_cost)

    def allows_answer(self, question: Question) -> bool:
        """Whether the answer to this question would keep it too."""
        return self._allows(question.device, mechanism_of(question, self._limits.relation).cost)

    def _add(self, device: DeviceId, receipts: Iterable[Receipt]) -> None:
        number, spent = self._spent[device]
        for receipt in receipts:
            # What was stored while a device came is read, and then told too.
            if receipt.sequence > number:
                number, spent = receipt.sequence, spent + _spend(receipt.cost, self._limits)
        self._spent[device] = (number, spent)

    def _allows(self, device: DeviceId, cost: PrivacyCost) -> bool:
        _, spent = self._spent.get(device, (-1, Spend()))
        more, limits = _spend(cost, self._limits), self._limits
        return all(
            not part or had + part <= limit
            for had, part, limit in (
                (spent.pure_micro_epsilon, more.pure_micro_epsilon, limits.pure_micro_epsilon),
                (spent.mu_squared_nano, more.mu_squared_nano, limits.mu_squared_nano),
                (spent.renyi_nano, more.renyi_nano, limits.renyi_nano),
            )
        )


@lru_cache(maxsize=1024)  # rounds cost the same, and what DP-SGD costs takes a while to compute
def _spend(cost: PrivacyCost, limits: BudgetLimits) -> Spend:
    """What a release takes from the promise: all of it, where the promise has no share for such releases.

    And where no figure can be put to it: an older version has stored whatever devices said of their costs.
    """
    try:
        return spend_of(cost, limits)
    except (BudgetExhausted, InvalidTerms, ArithmeticError):
        return Spend(limits.pure_micro_epsilon + 1, limits.mu_squared_nano + 1, limits.renyi_nano + 1)
