"""Whatever a device sends is held against what it was asked for: mechanism, terms, size, cost, subject.

A header decides before a byte is taken, the bytes before they are stored. What a device sends unasked is limited by
the day, because receipts are kept for good.
"""

from __future__ import annotations

import logging
import re
import threading
import time
from collections import OrderedDict
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING

from device_sdk.wire.errors import Refused
from device_sdk.wire.messages import ErrorCode, SummaryHeader
from device_sdk.wire.summary_terms import mechanism_in
from privacy.mechanisms.feature_histogram import FeatureHistogram
from privacy.mechanisms.label_histogram import LabelHistogram
from server_kit.daemon.plausible import check_content
from server_kit.daemon.refusals import Misconduct

if TYPE_CHECKING:
    from device_sdk.wire.messages import DeviceId, Question
    from device_sdk.wire.summary_terms import SummaryMechanism
    from device_sdk.wire.task_terms import UpdateMechanism
    from privacy.budget import PrivacyCost
    from privacy.receipts import Receipt
    from server_kit.daemon.wanted import WantedSummaries

log = logging.getLogger("covey.server")

FALSE_COST = "another cost"
"""Under which name a receipt that books another cost than its release has is counted."""
SUMMARIES_A_DAY = 100
_DAY_SECONDS = 24 * 3600.0
_MOST_OPEN = 64
"""Questions to one device that may still be answered; the oldest is forgotten."""
_REQUEST = re.compile(r"[0-9a-f]{64}")
_LEDGER = re.compile(r"[!-~]{1,64}")


@dataclass
class IntakeChecks:
    """For any thread."""

    wanted: WantedSummaries
    summaries_a_day: float = SUMMARIES_A_DAY
    clock: Callable[[], float] = time.monotonic
    _open: dict[DeviceId, OrderedDict[str, Question]] = field(default_factory=dict)
    _unasked: dict[DeviceId, tuple[float, float]] = field(default_factory=dict)
    """How many summaries each device has sent unasked that are not earned again yet, and when that was so."""
    _told: set[DeviceId] = field(default_factory=set)
    _mutex: threading.Lock = field(default_factory=threading.Lock)

    def asking(self, question: Question) -> None:
        """A device is about to be asked; the answer may come before this one knows that the question went out."""
        with self._mutex:
            asked = self._open.setdefault(question.device, OrderedDict())
            asked[question.question] = question
            while len(asked) > _MOST_OPEN:
                asked.popitem(last=False)

    def mechanism_of(self, device: DeviceId, header: SummaryHeader) -> SummaryMechanism:
        """How an announced summary was noised; refused unless it was asked for, or may be sent unasked."""
        question = self._question(device, header)
        mechanism = self.wanted.mechanism_of(header, question)
        if question is None and self._spent(device) + 1 > self.summaries_a_day:
            raise Refused(
                ErrorCode.TOO_MANY_CALLS,
                f"this device sends more summaries than it is asked for; {self.summaries_a_day:g} a day are taken; "
                "come back later; nothing was taken",
                _DAY_SECONDS / self.summaries_a_day,
            )
        return mechanism

    def content(self, device: DeviceId, header: SummaryHeader, payload: bytes) -> None:
        """Refuse bytes that the announced mechanism cannot have made."""
        check_content(self.wanted.mechanism_of(header, self._question(device, header)), payload)

    def kept(self, device: DeviceId, header: SummaryHeader) -> None:
        """A summary is stored: its question is answered, or it counts as sent unasked."""
        with self._mutex:
            asked = self._open.get(device, OrderedDict())
            if asked.pop(header.subject, None) is not None:
                return
        self._unasked[device] = (self._spent(device) + 1, self.clock())
        self._tell_of_unused(device, mechanism_in(header))

    def _question(self, device: DeviceId, header: SummaryHeader) -> Question | None:
        with self._mutex:
            return self._open.get(device, OrderedDict()).get(header.subject)

    def _spent(self, device: DeviceId) -> float:
        spent, at_seconds = self._unasked.get(device, (0.0, 0.0))
        earned = (self.clock() - at_seconds) * self.summaries_a_day / _DAY_SECONDS
        return max(0.0, spent - earned)

    def _tell_of_unused(self, device: DeviceId, mechanism: SummaryMechanism | None) -> None:
        if not isinstance(mechanism, LabelHistogram | FeatureHistogram) or device in self._told:
            return
        if self.wanted.histogram.mechanism and not self.wanted.uses(mechanism):
            self._told.add(device)
            log.warning(
                "a device's histogram has other terms than the preset reckons with; it is not used",
                extra={"device": device, "wanted": str(self.wanted.histogram)},
            )


def check_receipt(receipt: Receipt, mechanism: UpdateMechanism | SummaryMechanism, last: Receipt | None) -> None:
    """Refuse a receipt that does not book what this mechanism costs, or that counts otherwise than the one before."""
    if receipt.mechanism != mechanism.name or not _books(receipt.cost, mechanism.cost):
        raise Misconduct(
            FALSE_COST,
            ErrorCode.RECEIPT_REFUSED,
            "this receipt books another mechanism or another cost than its release has; it was not counted",
        )
    if not _REQUEST.fullmatch(receipt.request) or not _LEDGER.fullmatch(receipt.ledger):
        raise Misconduct(
            FALSE_COST,
            ErrorCode.RECEIPT_REFUSED,
            "this receipt names its request or its ledger as no ledger does; it was not counted",
        )
    if last is not None and last.cost.relation is not receipt.cost.relation:
        raise Misconduct(
            FALSE_COST,
            ErrorCode.RECEIPT_REFUSED,
            "this receipt counts under another neighbouring relation than the one before; it was not counted",
        )


def _books(booked: PrivacyCost, cost: PrivacyCost) -> bool:
    """Whether a ledger books this cost: as it is, or pure parts as one, which composes no better."""
    return booked in (cost, replace(cost, pure_micro_epsilon=(sum(cost.pure_micro_epsilon),)))
