"""Looks at models on the app's records, one model in memory at a time, and never tells whether that went well.

`Evaluating` finds how each model does on all records, `Polling` which one each record votes for. Every model of a
question is downloaded, whatever the ones before it came to, and on a schedule: when a device asks for the next model
would tell how long it took over the last.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Generic, TypeVar

from device_sdk.ballot import Ballot
from device_sdk.failures import in_evaluation, is_failure
from device_sdk.policy import Reason, TaskRefused
from device_sdk.trainers.errors import EvaluationFailed, InvalidSettings, ModelMismatch
from device_sdk.trainers.protocol import Evaluate, Evaluation, RecordLosses, go_on
from device_sdk.wire.errors import MalformedMessage, PayloadMismatch, Refused
from device_sdk.wire.messages import ErrorCode
from device_sdk.wire.tensors import read_model

if TYPE_CHECKING:
    from device_sdk.trainers.protocol import BetweenBatches, Weights
    from device_sdk.wire.messages import Blob, ModelReference

Look = TypeVar("Look")
Found = TypeVar("Found")

OVER = frozenset({ErrorCode.NOT_ASKED, ErrorCode.NOT_FOUND})
"""What a server says when a model is asked for that nobody needs any more."""
_USELESS = Evaluation(math.inf, 0.0)


@dataclass
class _Looking(Generic[Look]):
    """Has the app look at the models of one question; `TaskRefused` where that fails for a reason not in the data."""

    download: Callable[[Blob], memoryview]
    look: Look
    between_batches: BetweenBatches
    next_tick: Callable[[], None] = go_on
    """Waits before every download but the first."""
    is_stopped: Callable[[], bool] = lambda: True
    """Whether a `TrainingStopped` is an order to this device; else it is a failure of the app."""
    failed: Callable[[], None] = go_on
    """Is called for every model that the app fails at."""
    failure: EvaluationFailed | None = None
    """What the app's code raised first. The answer does not show it: the app must be told in another way."""
    _has_downloaded: bool = False

    def _seen(self, model: ModelReference, seen: Callable[[Weights], Found]) -> Found | None:
        """What an app finds in a model; none if it fails."""
        weights = self._weights(model)
        try:
            self.between_batches()
            return seen(weights)
        except (ModelMismatch, InvalidSettings) as error:
            raise TaskRefused(Reason.MODEL) from error  # follows from the question alone
        except BaseException as error:
            if not is_failure(error, is_stopped=self.is_stopped()):
                raise
            # One record may be the reason, and silence would tell of it.
            self.failure = self.failure or in_evaluation(error)
            self.failed()
            return None

    def _weights(self, model: ModelReference) -> Weights:
        if self._has_downloaded:
            self.next_tick()
        self._has_downloaded = True
        try:
            return read_model(self.download(model.blob), model.tensors)
        except (PayloadMismatch, MalformedMessage) as error:
            raise TaskRefused(Reason.MODEL) from error
        except Refused as refusal:
            if refusal.code not in OVER:
                raise
            raise TaskRefused(Reason.LATE) from refusal


class Evaluating(_Looking[Evaluate]):
    """How each model does on all records."""

    def of(self, models: Sequence[ModelReference]) -> list[Evaluation]:
        """In the order of the models; equal ones are looked at once."""
        found: dict[bytes, Evaluation] = {}
        for model in models:
            if model.blob.sha256 not in found:
                found[model.blob.sha256] = self._seen(model, self._evaluation) or _USELESS
        return [found[model.blob.sha256] for model in models]

    def _evaluation(self, weights: Weights) -> Evaluation:
        evaluation = self.look(weights, self.between_batches)
        loss, share = float(evaluation.loss), float(evaluation.correct_share)
        return Evaluation(math.inf if math.isnan(loss) else loss, share)


class Polling(_Looking[RecordLosses]):
    """Which model each record votes for."""

    def of(self, models: Sequence[ModelReference]) -> list[int]:
        """A choice for each record; none at all if the app fails, and then chance alone answers."""
        ballot: Ballot | None = None
        for choice, model in enumerate(models):
            if any(model.blob.sha256 == earlier.blob.sha256 for earlier in models[:choice]):
                continue  # it would not do better than itself
            ballot = self._seen(model, partial(self._cast, choice, ballot)) or ballot
        return [] if ballot is None or self.failure is not None else ballot.votes

    def _cast(self, choice: int, so_far: Ballot | None, weights: Weights) -> Ballot:
        import numpy as np

        losses = np.asarray(self.look(weights, self.between_batches), dtype=np.float64)
        ballot = Ballot(len(losses)) if so_far is None else so_far
        if losses.shape != (ballot.records,):
            raise EvaluationFailed("the losses are not one for each record; nothing was counted")
        ballot.cast(choice, losses)
        return ballot
