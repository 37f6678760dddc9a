"""What trainers call between batches, for one deadline: conditions, cancellation, and a certificate that may end."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from device_sdk.conditions import Conditions, TrainingGate
from device_sdk.trainers.errors import TrainingStopped

if TYPE_CHECKING:
    from device_sdk.config import ConditionSettings
    from device_sdk.renewal import Renewal
    from device_sdk.wire.cancelling import Stop


@dataclass(frozen=True)
class Pauses:
    """Makes a pause for each piece of work of one device."""

    conditions: Conditions
    settings: ConditionSettings
    renewal: Renewal
    stop: Stop

    def for_work(self, work_seconds: float) -> Pause:
        gate = TrainingGate(
            self.conditions,
            self.stop,
            deadline_seconds=work_seconds,
            ask_every_seconds=self.settings.ask_every_seconds,
            patience_seconds=self.settings.patience_seconds,
        )
        return Pause(gate, self.renewal)


class Pause:
    """Comes back when work may go on, or raises `TrainingStopped`."""

    def __init__(self, gate: TrainingGate, renewal: Renewal) -> None:
        self._gate, self._renewal = gate, renewal
        self.stopped = False
        """Whether the device was told to stop: by the app, or by a condition that did not come to hold in time."""
        self.overran = False
        """Whether the work took longer than it may. That depends on data, so the server must not notice."""
        self.error: Exception | None = None
        """What went wrong here; it is the device's own affair, and not to be taken for the trainer's."""

    def __call__(self) -> None:
        try:
            self._gate()
            self._renewal.renew_if_due()
        except TrainingStopped:
            self.overran = self._gate.overran
            self.stopped = not self.overran
            raise
        except Exception as error:
            self.stopped, self.error = True, error
            raise TrainingStopped("the device cannot go on; nothing was released") from error
