"""Looks at models on the app's records, one model in memory at a time, and never tells whether that went well."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from device_sdk.policy import Reason, TaskRefused
from device_sdk.trainers.errors import EvaluationFailed, InvalidSettings, ModelMismatch
from device_sdk.trainers.protocol import Evaluation
from device_sdk.wire.errors import MalformedMessage, PayloadMismatch, Refused
from device_sdk.wire.messages import ErrorCode
from device_sdk.wire.tensors import read_model

if TYPE_CHECKING:
    from device_sdk.trainers.protocol import BetweenBatches, Evaluate, Weights
    from device_sdk.wire.messages import Blob, ModelReference

OVER = frozenset({ErrorCode.NOT_ASKED, ErrorCode.NOT_FOUND})
"""What a server says when a model is asked for that nobody needs any more."""
_USELESS = Evaluation(math.inf, 0.0)


@dataclass
class Evaluating:
    """Evaluates the models of one question; `TaskRefused` where that fails for a reason that is not in the data."""

    download: Callable[[Blob], memoryview]
    evaluate: Evaluate
    between_batches: BetweenBatches
    failure: EvaluationFailed | None = None
    """What the app's code raised. The answer does not show it: the app must be told in another way."""

    def of(self, models: Sequence[ModelReference]) -> list[Evaluation]:
        """In the order of the models; equal ones are looked at once."""
        found: dict[bytes, Evaluation] = {}
        for model in models:
            if model.blob.sha256 not in found:
                found[model.blob.sha256] = self._one(model)
        return [found[model.blob.sha256] for model in models]

    def _one(self, model: ModelReference) -> Evaluation:
        self.between_batches()
        weights = self._weights(model)
        try:
            evaluation = self.evaluate(weights, self.between_batches)
            loss, share = float(evaluation.loss), float(evaluation.correct_share)
        except (ModelMismatch, InvalidSettings) as error:
            raise TaskRefused(Reason.MODEL) from error  # follows from the question alone
        except Exception as error:
            # One record may be the reason, and silence would tell of it.
            self.failure = _told(error)
            return _USELESS
        return Evaluation(math.inf if math.isnan(loss) else loss, share)

    def _weights(self, model: ModelReference) -> Weights:
        try:
            return read_model(self.download(model.blob), model.tensors)
        except (PayloadMismatch, MalformedMessage) as error:
            raise TaskRefused(Reason.MODEL) from error
        except Refused as refusal:
            if refusal.code not in OVER:
                raise
            raise TaskRefused(Reason.LATE) from refusal


def _told(error: Exception) -> EvaluationFailed:
    failure = EvaluationFailed(
        f"evaluating a model raised {type(error).__name__}; the server was answered as if the model were useless, so "
        "that it cannot tell; mend the evaluation before the next question, for every answer is paid for"
    )
    failure.__cause__ = error
    return failure
