"""What a device refuses, whatever the server asks. Every refusal has a reason that stays on the device.

A task is looked at before anything is downloaded, booked or read. The server only hears `DeclineReason`. "Terms" and
"model" follow from the task, from what the app decided beforehand, and from what this very server has been given;
never from data, and never from what was spent elsewhere. What the rest of the budget forbids is heard as "not now", as
if the device were not charging. The ledger has the last word: it books, or refuses, when the update is there.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import StrEnum
from typing import TYPE_CHECKING

from device_sdk.errors import DeviceError
from device_sdk.question_policy import QuestionPolicy
from device_sdk.tally import Taken
from device_sdk.task_limits import TaskLimits
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


TRAINING = "training"
"""What a task's request is for, in the ledger and in the tally."""
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
    MUCH_NOISE = "its noise is larger than allowed, so that it would cost next to nothing"
    FINE_GRID = "its grid is finer than allowed"
    WORK = "it asks for more steps or more time than a task may take"
    MANY_TODAY = "this server has given as many of them today as it may"
    MANY = "this server has given as many of them as it may"
    ROUND_COST = "it costs more than a round may"
    WHOLE_BUDGET = "it costs more than the whole budget"
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
    UNANSWERABLE = "its mechanism fails, whatever the data"
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
    # What was spent, here or elsewhere, is the device's own affair.
    Reason.BUDGET: DeclineReason.NOT_NOW,
    Reason.ANSWERS_COST: DeclineReason.NOT_NOW,
    Reason.UNANSWERABLE: DeclineReason.NOT_NOW,
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
    limits: TaskLimits = field(default_factory=TaskLimits)
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
    taken: Callable[[str], Taken] = lambda purpose: Taken()  # noqa: ARG005
    """How many this server has given, by purpose."""

    def admit(self, task: Task, abilities: Abilities) -> UpdateMechanism:
        """The mechanism that will noise the update of a task that may be done; `TaskRefused` for any other."""
        if task.device != self.device:
            raise TaskRefused(Reason.ANOTHER_DEVICE)
        if self.is_known(task.task):
            raise TaskRefused(Reason.REPLAYED)
        limits = self.policy.limits
        self.check_number(TRAINING, limits.most_tasks_per_day, limits.most_tasks)
        return self.admit_again(task, abilities, booked=False)

    def check_number(self, purpose: str, most_per_day: int, most: int) -> None:
        """Refuse one more than this server may give."""
        taken = self.taken(purpose)
        if taken.in_all >= most:
            raise TaskRefused(Reason.MANY)
        if taken.today >= most_per_day:
            raise TaskRefused(Reason.MANY_TODAY)

    def admit_again(self, task: Task, abilities: Abilities, *, booked: bool) -> UpdateMechanism:
        """The same for a task that was admitted before, perhaps by another version of the app; `booked` is paid for."""
        check_model(task.model, self.policy, abilities)
        _check_mask(task)
        _check_unit(task, self.policy, abilities)
        _check_limits(task, self.policy.limits)
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
        check_budget(cost, self.ledger, self.server)


def check_budget(cost: PrivacyCost, ledger: Ledger, server: str) -> None:
    """Refuse what the ledger would not book now; it decides anew when it does.

    That something is more than the whole budget follows from the app's settings; that it is more than what is left
    follows from what other servers were given, and is heard as "not now".
    """
    status = ledger.status()
    try:
        spend = spend_of(cost, status.limits)
    except (BudgetExhausted, InvalidTerms) as error:
        raise TaskRefused(Reason.WHOLE_BUDGET) from error
    if not spend.fits(status.limits):
        raise TaskRefused(Reason.WHOLE_BUDGET)
    if not (status.spent + spend).fits(status.limits):
        raise TaskRefused(Reason.BUDGET)
    quota, used = status.quotas.get(server), status.spent_by_server.get(server)
    if quota is not None and not (spend if used is None else used + spend).fits(shared(status.limits, quota)):
        raise TaskRefused(Reason.BUDGET)


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


def _check_limits(task: Task, limits: TaskLimits) -> None:
    is_record = is_record_level(task)
    most_noise = limits.most_record_noise if is_record else limits.most_device_noise
    if as_written(task.privacy.noise_multiplier, "noise") > as_written(most_noise, "most noise"):
        raise TaskRefused(Reason.MUCH_NOISE)
    if task.privacy.grid_bits > (limits.most_record_grid_bits if is_record else limits.most_device_grid_bits):
        raise TaskRefused(Reason.FINE_GRID)
    if (task.objective.steps or 0) > limits.most_steps or (task.objective.epochs or 0) > limits.most_epochs:
        raise TaskRefused(Reason.WORK)
    check_deadline(task.deadline_seconds, limits)


def check_deadline(deadline_seconds: float, limits: TaskLimits) -> None:
    """Refuse what may keep a device busy for longer than the app wants."""
    if deadline_seconds > limits.longest_deadline_seconds:
        raise TaskRefused(Reason.WORK)


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
