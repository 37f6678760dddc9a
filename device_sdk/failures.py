"""What the app's own code or data did wrong: told to the app, and to nobody else.

A record that makes the app's code raise must not be noticed from outside. So nothing of this ends a run, closes a
stream or changes what is sent: the device answers as it would have answered, without the data, and goes on. The app
hears of it by an event at once, in `Device.failures` whenever it looks, and at the latest from `Device.close`.
"""

from __future__ import annotations

import threading
from collections import Counter
from collections.abc import Callable
from typing import TYPE_CHECKING, TypeVar

from device_sdk.events import emit, error_name
from device_sdk.trainers.errors import (
    EvaluationFailed,
    SharingFailed,
    TrainerError,
    TrainingFailed,
    TrainingStopped,
    UnreadableRecords,
)

if TYPE_CHECKING:
    from device_sdk.trainers.protocol import ModelChecker
    from privacy.tensor_shapes import Shapes

Failure = TypeVar("Failure", bound=TrainerError)
ENDS_THE_APP = (KeyboardInterrupt, SystemExit, GeneratorExit)
"""What no code may swallow; everything else that an app's code raises is a failure of that code."""
_PAID = "mend it before the next one, for every answer is paid for"


class Failures:
    """Of one device, noted from any thread. Of many only the first keeps its cause, and with it what that refers to."""

    def __init__(self) -> None:
        self._mutex = threading.Lock()
        self._first: Exception | None = None
        self._counts: Counter[str] = Counter()
        self._is_told = True

    @property
    def counts(self) -> Counter[str]:
        """How many there were, by what the app would be told."""
        with self._mutex:
            return Counter(self._counts)

    def note(self, failure: Exception) -> None:
        """Remember a failure, and say so by an event."""
        with self._mutex:
            self._counts[error_name(failure)] += 1
            self._first = self._first or failure
            self._is_told = False
        emit("app_failed", failure=error_name(failure), error=error_name(failure.__cause__ or failure))

    def untold(self) -> Exception | None:
        """The first failure, saying how many there were; none if there is none, or `untold` has told it before."""
        with self._mutex:
            if self._is_told or self._first is None:
                return None
            self._is_told, told = True, ", ".join(f"{count} {name}" for name, count in sorted(self._counts.items()))
            if self._counts.total() > 1:
                self._first.add_note(f"there were more failures of the app's code or data: {told} in all")
            return self._first


def forgiving(checker: ModelChecker, failures: Failures) -> Callable[[Shapes], None]:
    """`check_model` of an app's trainer; where it fails it does not object, for only a `TrainerError` is a no."""

    def check(shapes: Shapes) -> None:
        try:
            checker.check_model(shapes)
        except TrainerError:
            raise
        except Exception as error:
            failures.note(in_training(error))

    return check


def is_failure(error: BaseException, *, is_stopped: bool) -> bool:
    """Whether the app's code has failed, unless the app ends or the device was told to stop."""
    if isinstance(error, ENDS_THE_APP):
        return False
    return not (isinstance(error, TrainingStopped) and is_stopped)


def in_training(error: BaseException) -> TrainingFailed:
    """What the app is told of a training that came to nothing."""
    return _caused(
        TrainingFailed(
            f"training {_what(error)}; the server was answered as if there were nothing to learn, so that it cannot "
            f"tell; {_PAID}"
        ),
        error,
    )


def in_evaluation(error: BaseException) -> EvaluationFailed:
    """The same of an evaluation."""
    return _caused(
        EvaluationFailed(
            f"evaluating a model {_what(error)}; the server was answered as if the model were useless, or by chance "
            f"alone, so that it cannot tell; {_PAID}"
        ),
        error,
    )


def in_sharing(error: BaseException) -> SharingFailed:
    """The same of a summary."""
    return _caused(
        SharingFailed(
            f"counting the records {_what(error)}; the server was sent a summary of none, so that it cannot tell; "
            "share another under a new subject when the data can be counted"
        ),
        error,
    )


def in_reading() -> UnreadableRecords:
    """What the app is told of records that counted as nothing; not how many, nor which."""
    return UnreadableRecords(
        "some of the device's records cannot be read or make the model raise; they count as nothing, so that the "
        "server cannot tell; look at each of them with the app's own model, and mend or remove them"
    )


def _what(error: BaseException) -> str:
    # The type alone: the text may quote data.
    return "took longer than it may" if isinstance(error, TrainingStopped) else f"raised {error_name(error)}"


def _caused(failure: Failure, error: BaseException) -> Failure:
    failure.__cause__ = error
    return failure
