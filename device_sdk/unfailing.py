"""A mechanism that answers whatever the app's data do: without them, where they cannot be read.

It stands between a mechanism and the ledger. The cost is booked before the data are read, so a failure comes when the
spend is made; an answer that is missing then would tell of the record that made it fail.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Generic, TypeVar

from device_sdk.failures import is_failure
from device_sdk.policy import Reason, TaskRefused
from privacy.errors import MissingExtra, UnsupportedModel

if TYPE_CHECKING:
    from privacy.budget import PrivacyCost
    from privacy.randomness import NoiseSource
    from privacy.release import Answer, Guarantee, Mechanism

Data = TypeVar("Data")


@dataclass
class Unfailing(Generic[Data]):
    """`mechanism`, and what it answers for data that fail: the answer to `nothing`, data of the same public form."""

    mechanism: Mechanism[Data]
    nothing: Callable[[], Data]
    failed: Callable[[BaseException], None]
    """Tells the app."""
    is_stopped: Callable[[], bool] = field(default=lambda: False)
    """Whether a `TrainingStopped` is an order to this device, and not a failure."""
    _is_unreadable: bool = False

    @property
    def name(self) -> str:
        return self.mechanism.name

    @property
    def terms(self) -> dict[str, int | str]:
        return self.mechanism.terms

    @property
    def cost(self) -> PrivacyCost:
        return self.mechanism.cost

    @property
    def guarantee(self) -> Guarantee:
        return self.mechanism.guarantee

    def check(self, data: Data) -> None:
        """Refuse only what follows from the model; data of another form than the task's are a failure of the app."""
        try:
            self.mechanism.check(data)
        except (UnsupportedModel, MissingExtra):
            raise
        except BaseException as error:
            self._note(error)
            self._is_unreadable = True

    def answer(self, data: Data, noise: NoiseSource) -> Answer:
        if not self._is_unreadable:
            try:
                return self.mechanism.answer(data, noise)
            except BaseException as error:
                self._note(error)
        try:
            return self.mechanism.answer(self.nothing(), noise)
        except Exception as error:
            # No data were looked at, so that the server may know of it.
            self.failed(error)
            raise TaskRefused(Reason.UNANSWERABLE) from error

    def _note(self, error: BaseException) -> None:
        if not is_failure(error, is_stopped=self.is_stopped()):
            raise error
        self.failed(error)
