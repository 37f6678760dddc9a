"""A task is refused for one named reason, before anything is booked; the server hears no more than it must."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from device_sdk.policy import Abilities, Gatekeeper, Policy, Reason, TaskRefused
from device_sdk.tally import Taken
from device_sdk.task_limits import TaskLimits
from device_sdk.trainers import ModelMismatch
from device_sdk.wire.messages import (
    Blob,
    DeclineReason,
    DeviceLevelTerms,
    Dtype,
    LocalObjective,
    ModelReference,
    RecordLevelTerms,
    Relation,
    Task,
    TensorSpec,
)
from device_sdk.wire.task_terms import HALVES, mechanism_of
from privacy import ClippedUpdate, Ledger, LedgerKeys, NeighbouringRelation, PrivacyBudget, PrivacyUnit, Request
from privacy.mechanisms.dp_sgd import DpSgd

DEVICE, SERVER = "0123456789abcdef" * 2, "covey-server"
TERMS = DeviceLevelTerms("1", "8", Relation.REPLACE, 17)
DP_SGD = RecordLevelTerms("1", "2", "1/20", "10", Relation.REPLACE, 8)
TASK = Task(
    task="task-1",
    device=DEVICE,
    cohort="0",
    round=1,
    model=ModelReference(
        1, Blob(bytes(32), 1000), (TensorSpec("w", Dtype.F32, (3, 2)), TensorSpec("b", Dtype.F32, (3,)))
    ),
    objective=LocalObjective(0.1, 10, epochs=1),
    privacy=TERMS,
    deadline_seconds=60.0,
)
RECORD_TASK = replace(TASK, privacy=DP_SGD, objective=LocalObjective(0.1, 10, steps=5))
BOTH = frozenset(PrivacyUnit)
EXACT = Policy(agreed=TERMS)
ANY_NOISE = Policy(limits=TaskLimits(most_device_noise=1e30))


def of_another_model(shapes):
    raise ModelMismatch("not mine")


def with_terms(**terms):
    return replace(TASK, privacy=replace(TERMS, **terms))


def record_task(**terms):
    return replace(RECORD_TASK, privacy=replace(DP_SGD, **terms))


def with_objective(task=TASK, **settings):
    return replace(task, objective=replace(task.objective, **settings))


@pytest.fixture
def gatekeeper(tmp_path):
    # A share for each kind of training.
    budget = PrivacyBudget(epsilon=8, delta=1e-6, pure_epsilon=1, renyi_epsilon=3)
    with Ledger.open(tmp_path / "ledger", LedgerKeys.generate(), budget) as ledger:
        yield Gatekeeper(DEVICE, SERVER, Policy(), ledger, lambda task: task == "task-0")


def verdict(gatekeeper, task, *, policy=None, abilities=None):
    """The reason for refusing a task; none if it is admitted."""
    keeper = gatekeeper if policy is None else replace(gatekeeper, policy=policy)
    before = keeper.ledger.status()
    try:
        keeper.admit(task, abilities or Abilities(BOTH))
    except TaskRefused as refusal:
        return refusal.reason
    finally:
        assert keeper.ledger.status() == before
    return None


@pytest.mark.parametrize("task", [TASK, RECORD_TASK, with_objective(halves=True)])
def test_an_honest_task_is_admitted(gatekeeper, task):
    assert verdict(gatekeeper, task) is None


LARGE = replace(TASK.model, blob=Blob(bytes(32), 10**9))
WHOLE = replace(TASK.model, tensors=(TensorSpec("w", Dtype.I64, (3, 2)),))


@pytest.mark.parametrize(
    ("reason", "task", "policy", "abilities"),
    [
        (Reason.ANOTHER_DEVICE, replace(TASK, device="f" * 32), None, None),
        (Reason.REPLAYED, replace(TASK, task="task-0"), None, None),
        (Reason.MODEL, TASK, None, Abilities(BOTH, of_another_model)),
        (Reason.MODEL, replace(TASK, model=WHOLE), None, None),
        (Reason.MODEL_SIZE, replace(TASK, model=LARGE), Policy(most_model_bytes=10**6), None),
        (Reason.OBJECTIVE, with_objective(mask=Blob(bytes(32), 3)), None, None),
        (Reason.OBJECTIVE, with_objective(RECORD_TASK, mask=Blob(bytes(32), 2)), None, None),
        (Reason.TERMS, with_terms(grid_bits=3), None, None),
        (Reason.TERMS, replace(RECORD_TASK, privacy=replace(DP_SGD, sampling_rate="2")), None, None),
        (Reason.TERMS, with_terms(noise_multiplier="70000"), ANY_NOISE, None),
        (Reason.TERMS, with_terms(noise_multiplier="1" + 20 * "0"), ANY_NOISE, None),
        (Reason.MUCH_NOISE, with_terms(noise_multiplier="10000.000001"), None, None),
        (Reason.MUCH_NOISE, record_task(noise_multiplier="100.01"), None, None),
        (Reason.MUCH_NOISE, with_terms(noise_multiplier="21"), Policy(limits=TaskLimits(most_device_noise=20)), None),
        (Reason.FINE_GRID, record_task(grid_bits=9), None, None),
        (Reason.FINE_GRID, with_terms(grid_bits=18), Policy(limits=TaskLimits(most_device_grid_bits=17)), None),
        (Reason.WORK, with_objective(RECORD_TASK, steps=1_000_000), None, None),
        (Reason.WORK, with_objective(steps=10_001, epochs=None), None, None),
        (Reason.WORK, with_objective(epochs=101), None, None),
        (Reason.WORK, replace(TASK, deadline_seconds=7 * 86_400.0), None, None),
        (Reason.UNIT, RECORD_TASK, Policy(unit=PrivacyUnit.DEVICE), None),
        (Reason.UNIT, RECORD_TASK, EXACT, None),
        (Reason.RELATION, with_terms(relation=Relation.ADD_REMOVE), None, None),
        (Reason.AMPLIFICATION, RECORD_TASK, None, Abilities()),
        (Reason.AMPLIFICATION, with_objective(RECORD_TASK, steps=None, epochs=1), None, None),
        (Reason.AMPLIFICATION, with_objective(RECORD_TASK, halves=True), None, None),
        (Reason.CLIP_NORM, with_terms(clip_norm="100"), EXACT, None),
        (Reason.NOISE, with_terms(noise_multiplier="7.999"), EXACT, None),
        (Reason.NOISE, with_terms(noise_multiplier="9"), EXACT, None),
        (Reason.NOISE, with_terms(noise_multiplier="7.999"), Policy(least_noise_multiplier=8), None),
        (Reason.OTHER_TERMS, with_terms(grid_bits=20), EXACT, None),
        (Reason.OTHER_TERMS, TASK, Policy(agreed=DP_SGD), None),
        (
            Reason.OTHER_TERMS,
            replace(RECORD_TASK, privacy=replace(DP_SGD, sampling_rate="1/2")),
            Policy(agreed=DP_SGD),
            None,
        ),
        (Reason.ROUND_COST, TASK, Policy(epsilon_per_round=0.1), None),
        (Reason.WHOLE_BUDGET, with_terms(noise_multiplier="0.1"), None, None),
        (Reason.WHOLE_BUDGET, record_task(noise_multiplier="0.1"), None, None),
    ],
)
def test_a_task_is_refused_for_its_reason(gatekeeper, reason, task, policy, abilities):
    assert verdict(gatekeeper, task, policy=policy, abilities=abilities) is reason


@pytest.mark.parametrize("settings", [{"least_noise_multiplier": 0}, {"epsilon_per_round": -1}, {"unit": "planet"}])
def test_a_policy_that_makes_no_sense_is_refused(settings):
    with pytest.raises(ValueError, match=r"above 0|planet"):
        Policy(**settings)


def test_what_is_agreed_may_be_written_in_another_way(gatekeeper):
    task = with_terms(clip_norm="2/2", noise_multiplier="8.0")
    assert verdict(gatekeeper, task, policy=EXACT) is None


def test_a_server_that_has_used_its_quota_is_refused_and_another_is_not(gatekeeper):
    gatekeeper.ledger.set_quota(SERVER, 1)
    assert verdict(gatekeeper, TASK) is Reason.BUDGET
    assert verdict(replace(gatekeeper, server="another"), TASK) is None


def test_a_budget_made_for_the_other_kind_of_training_says_so_and_not_that_it_is_spent(tmp_path):
    with Ledger.open(tmp_path / "ledger", LedgerKeys.generate(), PrivacyBudget(epsilon=8, delta=1e-6)) as ledger:
        gatekeeper = Gatekeeper(DEVICE, SERVER, Policy(), ledger, lambda _: False)
        assert verdict(gatekeeper, RECORD_TASK) is Reason.NO_SHARE
        assert verdict(gatekeeper, TASK) is None


def test_a_budget_that_is_used_up_refuses_and_what_is_booked_goes_on(gatekeeper):
    mechanism = mechanism_of(TASK)
    for number in range(1000):
        if verdict(gatekeeper, TASK) is not None:
            break
        request = Request(SERVER, "training", str(number))
        gatekeeper.ledger.reserve(mechanism.name, mechanism.terms, mechanism.cost, request)
    assert verdict(gatekeeper, TASK) is Reason.BUDGET
    assert gatekeeper.admit_again(TASK, Abilities(BOTH), booked=True) == mechanism


@given(st.sampled_from(list(Reason)))
def test_the_server_hears_one_of_three_words(reason):
    assert TaskRefused(reason).heard in set(DeclineReason)


def test_what_follows_from_the_terms_is_told_as_terms_alone():
    reasons = (Reason.WHOLE_BUDGET, Reason.ROUND_COST, Reason.NOISE, Reason.CLIP_NORM, Reason.WORK, Reason.MANY)
    assert {TaskRefused(reason).heard for reason in reasons} == {DeclineReason.TERMS}


@pytest.mark.parametrize("reason", [Reason.BUDGET, Reason.ANSWERS_COST])
def test_what_was_spent_sounds_like_a_device_that_is_not_charging(reason):
    assert TaskRefused(reason).heard is TaskRefused(Reason.CONDITIONS).heard is DeclineReason.NOT_NOW


def test_a_server_gives_as_many_tasks_as_it_may_in_a_day_and_in_all(gatekeeper):
    policy = Policy(limits=TaskLimits(most_tasks_per_day=3, most_tasks=5))
    for taken, reason in ((Taken(9, 2, 4), None), (Taken(9, 3, 4), Reason.MANY_TODAY), (Taken(9, 0, 5), Reason.MANY)):
        keeper = replace(gatekeeper, taken=lambda purpose, taken=taken: taken)
        assert verdict(keeper, TASK, policy=policy) is reason


def test_a_task_becomes_the_mechanism_that_its_terms_describe():
    shapes = {"b": (3,), "w": (3, 2)}
    assert mechanism_of(TASK) == ClippedUpdate(shapes, 1, 8, NeighbouringRelation.REPLACE, 17)
    assert mechanism_of(RECORD_TASK) == DpSgd(
        shapes,
        sampling_rate="0.05",
        noise_multiplier=2,
        clip_norm=1,
        steps=5,
        expected_batch_size=10,
        learning_rate="0.1",
    )
    halved = mechanism_of(with_objective(halves=True))
    assert set(halved.shapes) == {f"{half}{name}" for half in HALVES for name in shapes}
