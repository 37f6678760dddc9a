"""What no single field can show: parts of a message that contradict each other."""

from __future__ import annotations

import math
from typing import Any

from device_sdk.wire.errors import InvalidInvitation, MalformedMessage, TooLarge
from device_sdk.wire.invitation import Address
from device_sdk.wire.messages import (
    ChoiceBy,
    Delivery,
    EnrolmentReply,
    LocalObjective,
    ModelReference,
    Question,
    QuestionKind,
    RecordLevelTerms,
    Task,
    TensorSpec,
    UpdateHeader,
)

# safetensors' own preamble: an 8-byte length, and some text for each tensor; padded to 8 bytes.
_PREAMBLE_BYTES = 1024
_PREAMBLE_BYTES_PER_TENSOR = 1024


def tensor_bytes(tensors: tuple[TensorSpec, ...]) -> int:
    """What the tensors' numbers take together."""
    return sum(math.prod(spec.shape) * spec.dtype.width_bytes for spec in tensors)


def check_coherence(message: Any) -> None:
    """Raise `MalformedMessage` where a message contradicts itself."""
    match message:
        case Task():
            _check_model(message.model)
            _check_objective(message.objective)
            if isinstance(message.privacy, RecordLevelTerms) and message.objective.steps is None:
                raise MalformedMessage("DP-SGD is asked for without a number of steps; the message was not used")
        case Question():
            _check_question(message)
        case UpdateHeader() if message.encoding.size_bytes != message.payload.size_bytes:
            raise MalformedMessage("an update's size is not that of its numbers; the message was not used")
        case Delivery():
            check_coherence(message.header)
        case EnrolmentReply():
            _check_address(message.gateway)
        case _:
            pass


def _check_address(gateway: str) -> None:
    try:
        Address.from_text(gateway)
    except InvalidInvitation as error:
        raise MalformedMessage("a gateway's address is not host:port; the message was not used") from error


def _check_model(model: ModelReference) -> None:
    if len({spec.name for spec in model.tensors}) != len(model.tensors):
        raise MalformedMessage("two tensors of a model have one name; the message was not used")
    numbers = tensor_bytes(model.tensors)
    most = numbers + _PREAMBLE_BYTES + _PREAMBLE_BYTES_PER_TENSOR * len(model.tensors)
    if not numbers < model.blob.size_bytes <= most:
        raise TooLarge("a model's size is not that of its tensors; the message was not used")


def _check_question(question: Question) -> None:
    for model in question.models:
        _check_model(model)
    if any(model.tensors != question.models[0].tensors for model in question.models):
        raise MalformedMessage("the models of a question have not the same tensors; the message was not used")
    if (len(question.models) > 1) != (question.kind is QuestionKind.BEST_MODEL):
        raise MalformedMessage("a choice needs several models, any other question one; the message was not used")
    if (question.loss_bound is not None) != (question.kind is QuestionKind.LOSS):
        raise MalformedMessage("a question about a loss needs its bound, and no other has one; it was not used")
    if question.choice_by is not ChoiceBy.RESPONSE and question.kind is not QuestionKind.BEST_MODEL:
        raise MalformedMessage("only a choice can be made by votes; the message was not used")


def _check_objective(objective: LocalObjective) -> None:
    if (objective.epochs is None) == (objective.steps is None):
        raise MalformedMessage("an objective needs either epochs or steps; the message was not used")
    if objective.momentum == 1.0:
        raise MalformedMessage("momentum must be below 1; the message was not used")
