"""What a device refuses, whatever the server asks. Every refusal has a reason that stays on the device.

A task is looked at before anything is downloaded, booked or read. The server only hears `DeclineReason`, which
follows from the task and from what the app decided beforehand, never from data. The ledger has the last word
about the budget: it books, or refuses, when the update is there.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import StrEnum
from typing import TYPE_CHECKING

from device_sdk.errors import DeviceError
from device_sdk.question_policy import QuestionPolicy
from device_sdk.trainers.errors import TrainerError
from device_sdk.trainers.protocol import (
    Evaluate,
    Evaluator,
    ModelChecker,
    RecordEvaluator,
    RecordLosses,
    units_of,
)
from device_sdk.wire.messages import DeclineReason, DeviceLevelTerms, PrivacyTerms
from device_sdk.wire.task_terms import (
    TRAINABLE,
    UpdateMechanism,
    is_record_level,
    mask_size_bytes,
    mechanism_of,
    shapes_of,
)
from privacy.accounting import epsilon_spent, spend_of
from privacy.budget import PrivacyUnit
from privacy.errors import BudgetExhausted, InvalidTerms
from privacy.exact import as_written, positive
from privacy.ledger.admission import shared
from privacy.tensor_shapes import in_order

if TYPE_CHECKING:
    from collections.abc import Callable

    from device_sdk.wire.messages import DeviceId, ModelReference, Task
    from privacy.budget import PrivacyCost
    from privacy.exact import Number
    from privacy.ledger import Ledger
    from privacy.tensor_shapes import Shapes


MOST_WIDTH_BYTES = 8
"""The widest coordinate that the wire carries."""


class Reason(StrEnum):
    """Why a task or a question is refused."""

    ANOTHER_DEVICE = "it is another device's"
    REPLAYED = "it was taken before"
    MODEL = "its model is not one that this app trains"
    MODEL_SIZE = "its model is larger than allowed"
    OBJECTIVE = "its objective cannot be followed"
    TERMS = "its privacy terms make no sense"
    UNIT = "it protects records where the app wants the device protected"
    RELATION = "its neighbouring relation is not the ledger's"
    AMPLIFICATION = "it counts on secret batches that this training does not draw"
    CLIP_NORM = "its clip norm is not the agreed one"
    NOISE = "its noise is not the agreed one"
    OTHER_TERMS = "its privacy terms are not the agreed ones"
    ROUND_COST = "it costs more than a round may"
    BUDGET = "it costs more than is left of the budget"
    NO_SHARE = "the budget has no part for hiding records one by one: it was made without training='record'"
    KIND = "this app does not answer such questions"
    NO_EVALUATION = "this app does not evaluate models"
    NO_VOTES = "this app does not evaluate models record by record"
    ONE_MODEL = "its models are all the same"
    ANSWER_COST = "it costs more than an answer may"
    ANSWERS_COST = "it costs more than is left for answers"
    LATE = "its deadline has passed"
    TOO_MANY_ATTEMPTS = "it was begun too often without an end"
    UNASKED = "it came without a check-in"
    CONDITIONS = "the conditions for taking part do not hold"
    APP = "the app declined it"


_HEARD = {
    Reason.ANOTHER_DEVICE: DeclineReason.NOT_NOW,
    Reason.REPLAYED: DeclineReason.NOT_NOW,
    Reason.MODEL: DeclineReason.MODEL,
    Reason.MODEL_SIZE: DeclineReason.MODEL,
    Reason.OBJECTIVE: DeclineReason.MODEL,
    Reason.NO_EVALUATION: DeclineReason.MODEL,
    Reason.NO_VOTES: DeclineReason.MODEL,
    Reason.ONE_MODEL: DeclineReason.MODEL,
    Reason.LATE: DeclineReason.NOT_NOW,
    Reason.TOO_MANY_ATTEMPTS: DeclineReason.NOT_NOW,
    Reason.UNASKED: DeclineReason.NOT_NOW,
    Reason.CONDITIONS: DeclineReason.NOT_NOW,
    Reason.APP: DeclineReason.NOT_NOW,
}


class TaskRefused(DeviceError):
    """The device does not do this task, or answer this question; nothing was released but the decline."""

    def __init__(self, reason: Reason) -> None:
        super().__init__(f"this was declined: {reason.value}; nothing was released")
        self.reason = reason

    @property
    def heard(self) -> DeclineReason:
        """All that the server learns."""
        return _HEARD.get(self.reason, DeclineReason.TERMS)


@dataclass(frozen=True)
class Policy:
    """What the app agreed to, before any server asked; what is None is left to the budget alone."""

    unit: PrivacyUnit = PrivacyUnit.RECORD
    """Whom every update must protect at least: each record, or with DEVICE everything the device holds."""
    agreed: PrivacyTerms | None = None
    """If given, a task has exactly these terms."""
    least_noise_multiplier: Number | None = None
    epsilon_per_round: float | None = None
    """The most that one update may cost, at the budget's δ."""
    most_model_bytes: int = 1 << 30
    questions: QuestionPolicy = field(default_factory=QuestionPolicy)

    def __post_init__(self) -> None:
        object.__setattr__(self, "unit", PrivacyUnit(self.unit))
        if self.least_noise_multiplier is not None:
            positive(self.least_noise_multiplier, "least_noise_multiplier")
        if self.epsilon_per_round is not None:
            positive(self.epsilon_per_round, "epsilon_per_round")


@dataclass(frozen=True)
class Abilities:
    """What can be done with a task or a question: by a trainer, or by an app's own training loop."""

    units: frozenset[PrivacyUnit] = frozenset({PrivacyUnit.DEVICE})
    check_model: Callable[[Shapes], None] | None = None
    """Raises `ModelMismatch` for a model that cannot be trained."""
    evaluate: Evaluate | None = None
    """None: questions are declined."""
    record_losses: RecordLosses | None = None
    """None: choices by votes are declined."""

    @classmethod
    def of(cls, trainer: object) -> Abilities:
        return cls(
            units_of(trainer),
            trainer.check_model if isinstance(trainer, ModelChecker) else None,
            trainer.evaluate if isinstance(trainer, Evaluator) else None,
            trainer.record_losses if isinstance(trainer, RecordEvaluator) else None,
        )


@dataclass(frozen=True)
class Gatekeeper:
    """Looks at every task of one server before this device does anything for it."""

    device: DeviceId
    server: str
    policy: Policy
    ledger: Ledger
    is_known: Callable[[str], bool]
    """Whether a task was taken before."""

    def admit(self, task: Task, abilities: Abilities) -> UpdateMechanism:
        """The mechanism that will noise the update of a task that may be done; `TaskRefused` for any other."""
        if task.device != self.device:
            raise TaskRefused(Reason.ANOTHER_DEVICE)
        if self.is_known(task.task):
            raise TaskRefused(Reason.REPLAYED)
        return self.admit_again(task, abilities, booked=False)

    def admit_again(self, task: Task, abilities: Abilities, *, booked: bool) -> UpdateMechanism:
        """The same for a task that was admitted before, perhaps by another version of the app; `booked` is paid for."""
        check_model(task.model, self.policy, abilities)
        _check_mask(task)
        _check_unit(task, self.policy, abilities)
        try:
            mechanism = mechanism_of(task)
        except InvalidTerms as error:
            raise TaskRefused(Reason.TERMS) from error
        if mechanism.width_bytes > MOST_WIDTH_BYTES:
            raise TaskRefused(Reason.TERMS)  # it could be paid for, and never be sent
        _check_agreed(task.privacy, self.policy)
        if not booked:
            self._check_cost(mechanism.cost)
        return mechanism

    def _check_cost(self, cost: PrivacyCost) -> None:
        budget, most = self.ledger.budget, self.policy.epsilon_per_round
        if cost.relation is not budget.relation:
            raise TaskRefused(Reason.RELATION)
        if most is not None and epsilon_spent([cost], budget.delta) > most:
            raise TaskRefused(Reason.ROUND_COST)
        if cost.sampled is not None and not budget.renyi_share:
            raise TaskRefused(Reason.NO_SHARE)
        if not fits(cost, self.ledger, self.server):
            raise TaskRefused(Reason.BUDGET)


def fits(cost: PrivacyCost, ledger: Ledger, server: str) -> bool:
    """Whether the ledger would book this cost now; it decides anew when it does."""
    status = ledger.status()
    try:
        spend = spend_of(cost, status.limits)
    except (BudgetExhausted, InvalidTerms):
        return False
    if not (status.spent + spend).fits(status.limits):
        return False
    quota, used = status.quotas.get(server), status.spent_by_server.get(server)
    return quota is None or (spend if used is None else used + spend).fits(shared(status.limits, quota))


def check_model(model: ModelReference, policy: Policy, abilities: Abilities) -> None:
    """Refuse a model that is too large, or not one that this app trains."""
    if model.blob.size_bytes > policy.most_model_bytes:
        raise TaskRefused(Reason.MODEL_SIZE)
    if not {spec.dtype for spec in model.tensors} <= TRAINABLE:
        raise TaskRefused(Reason.MODEL)
    if abilities.check_model is not None:
        try:
            abilities.check_model(in_order({spec.name: spec.shape for spec in model.tensors}))
        except TrainerError as error:
            raise TaskRefused(Reason.MODEL) from error


def _check_mask(task: Task) -> None:
    mask = task.objective.mask
    if mask is not None and mask.size_bytes != mask_size_bytes(shapes_of(task)):
        raise TaskRefused(Reason.OBJECTIVE)


def _check_unit(task: Task, policy: Policy, abilities: Abilities) -> None:
    if not is_record_level(task):
        return
    if policy.unit is PrivacyUnit.DEVICE:
        raise TaskRefused(Reason.UNIT)
    # The rate of DP-SGD holds where the device's own mechanism draws every batch by secret coins: not in an app's
    # own training loop, not in shuffled epochs, and not in batches that are dealt out to two halves.
    if PrivacyUnit.RECORD not in abilities.units or task.objective.steps is None or task.objective.halves:
        raise TaskRefused(Reason.AMPLIFICATION)
    if task.objective.mask is not None:
        raise TaskRefused(Reason.OBJECTIVE)


def _check_agreed(terms: PrivacyTerms, policy: Policy) -> None:
    least, agreed = policy.least_noise_multiplier, policy.agreed
    if least is not None and as_written(terms.noise_multiplier, "noise") < as_written(least, "least_noise_multiplier"):
        raise TaskRefused(Reason.NOISE)
    if agreed is None:
        return
    if type(terms) is not type(agreed):
        raise TaskRefused(Reason.UNIT if isinstance(agreed, DeviceLevelTerms) else Reason.OTHER_TERMS)
    if not _same(terms.noise_multiplier, agreed.noise_multiplier):
        raise TaskRefused(Reason.NOISE)
    if not _same(terms.clip_norm, agreed.clip_norm):
        raise TaskRefused(Reason.CLIP_NORM)
    for name in ("sampling_rate", "expected_batch_size"):
        if hasattr(agreed, name) and not _same(getattr(terms, name), getattr(agreed, name)):
            raise TaskRefused(Reason.OTHER_TERMS)
    if (terms.relation, terms.grid_bits) != (agreed.relation, agreed.grid_bits):
        raise TaskRefused(Reason.OTHER_TERMS)


def _same(one: str, other: str) -> bool:
    """Equal as numbers: 0.5 is 1/2."""
    return as_written(one, "terms") == as_written(other, "terms")
