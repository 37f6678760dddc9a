"""Looks at models on the app's records, one model in memory at a time, and never tells whether that went well.

`Evaluating` finds how each model does on all records, `Polling` which one each record votes for.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Generic, TypeVar

from device_sdk.ballot import Ballot
from device_sdk.policy import Reason, TaskRefused
from device_sdk.trainers.errors import EvaluationFailed, InvalidSettings, ModelMismatch
from device_sdk.trainers.protocol import Evaluate, Evaluation, RecordLosses
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
    failure: EvaluationFailed | None = None
    """What the app's code raised. The answer does not show it: the app must be told in another way."""

    def _seen(self, model: ModelReference, seen: Callable[[Weights], Found]) -> Found | None:
        """What an app finds in a model; none if it fails."""
        self.between_batches()
        weights = self._weights(model)
        try:
            return seen(weights)
        except (ModelMismatch, InvalidSettings) as error:
            raise TaskRefused(Reason.MODEL) from error  # follows from the question alone
        except Exception as error:
            # One record may be the reason, and silence would tell of it.
            self.failure = _told(error)
            return None

    def _weights(self, model: ModelReference) -> Weights:
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


def _told(error: Exception) -> EvaluationFailed:
    failure = EvaluationFailed(
        f"evaluating a model raised {type(error).__name__}; the server was answered as if the model were useless, or "
        "by chance alone, so that it cannot tell; mend the evaluation before the next question, for every answer is "
        "paid for"
    )
    failure.__cause__ = error
    return failure
