"""Terms are refused before anything is booked, or they are served; none of them ends a device's run.

Attack: ask for noise that the sampler cannot draw, for a million steps, for a week; count on the spend being booked
before the mechanism notices.
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from device_sdk.policy import Policy, Reason
from device_sdk.task_limits import TaskLimits
from device_sdk.wire.messages import DeclineReason
from privacy import (
    BoundedScalar,
    ClippedUpdate,
    DiscreteGaussian,
    FeatureHistogram,
    LabelHistogram,
    NeighbouringRelation,
    RandomizedResponse,
)
from privacy.errors import InvalidTerms
from privacy.grid_gaussian import LARGEST_DEVIATION, SMALLEST_DEVIATION
from privacy.mechanisms.dp_sgd import DenseTrainingData, DpSgd
from privacy.mechanisms.voted_choice import VotedChoice
from privacy.randomness import NoiseSource, SeededSource
from tests.device_sdk.runtime.federation import entries_of
from tests.device_sdk.runtime.trainers import Slow, run_until, trainer
from tests.hostile.device.witness import witnessed

SHAPES = {"layer.bias": (2,), "layer.weight": (2, 3)}
UPDATE = {name: np.full(shape, 1e3, np.float32) for name, shape in SHAPES.items()}

# Numbers as the wire lets them through: at most twenty digits, and twenty more after a point or a stroke.
DIGITS = st.integers(0, 20).flatmap(lambda n: st.integers(0, 10**n)).map(str)
EXACT = st.tuples(DIGITS, st.sampled_from("./"), DIGITS).map("".join).filter(lambda text: float_of(text) > 0)
RELATION = st.sampled_from(NeighbouringRelation)
REAL = st.floats(allow_nan=True, allow_infinity=True)


def float_of(text: str) -> float:
    whole, _, part = text.partition("/")
    try:
        return float(whole) / float(part or 1)
    except ZeroDivisionError:
        return 0.0


def check_refused_or_served(make, data):
    """`make` is refused, or what it makes answers."""
    try:
        mechanism = make()
    except InvalidTerms:
        return
    mechanism.check(data)
    payload = mechanism.answer(data, NoiseSource(SeededSource(7))).payload
    mechanism.decode(payload)


@given(EXACT, EXACT, RELATION, st.integers(0, 24))
def test_clipped_updates(clip_norm, noise, relation, grid_bits):
    check_refused_or_served(lambda: ClippedUpdate(SHAPES, clip_norm, noise, relation, grid_bits), UPDATE)


@pytest.mark.parametrize(
    ("noise", "grid_bits", "is_served"),
    [
        ("65536", 17, True),
        ("65536.000001", 17, False),
        ("70000", 17, False),
        ("0.25", 8, True),
        ("0.249999", 8, False),
    ],
)
def test_clipped_updates_at_the_ends_of_what_the_sampler_draws(noise, grid_bits, is_served):
    make = lambda: ClippedUpdate(SHAPES, "1", noise, grid_bits=grid_bits)  # noqa: E731
    if not is_served:
        with pytest.raises(InvalidTerms, match="nothing was drawn or booked"):
            make()
        return
    assert SMALLEST_DEVIATION <= make().deviation <= LARGEST_DEVIATION
    check_refused_or_served(make, UPDATE)


@settings(max_examples=30, deadline=None)
@given(st.tuples(*[EXACT] * 4), RELATION, st.integers(0, 24), st.floats(1e-12, 1e6), st.floats(0, 1))
def test_dp_sgd(exact, relation, grid_bits, learning_rate, momentum):
    rate, noise, clip_norm, batch = exact
    data = DenseTrainingData({name: part * 0 for name, part in UPDATE.items()}, 0, lambda *_: [])
    check_refused_or_served(
        lambda: DpSgd(SHAPES, rate, noise, clip_norm, 2, batch, learning_rate, momentum, 0, relation, grid_bits), data
    )


@given(EXACT, RELATION, st.integers(0, 64))
def test_choices(epsilon, relation, num_choices):
    check_refused_or_served(lambda: RandomizedResponse(num_choices, epsilon, relation), 1)
    check_refused_or_served(lambda: VotedChoice(num_choices, epsilon, relation), [0, 1, 1])


@given(REAL, REAL, EXACT, RELATION, REAL)
def test_scalars(low, high, epsilon, relation, value):
    check_refused_or_served(lambda: BoundedScalar(low, high, epsilon, relation=relation), value)


@given(REAL, REAL, EXACT, RELATION, REAL)
def test_histograms(low, high, epsilon, relation, value):
    check_refused_or_served(lambda: LabelHistogram(3, epsilon, relation), [0, 2, 9])
    records = np.array([[value, 0.0], [1.7e308, -1.7e308]]), np.array([0, 2])
    check_refused_or_served(lambda: FeatureHistogram(3, 4, 2, epsilon, low, high, relation), records)


@given(EXACT, EXACT, RELATION)
def test_vectors(clip_norm, noise, relation):
    check_refused_or_served(lambda: DiscreteGaussian(3, clip_norm, noise, relation), np.array([1.0, np.nan, 1e300]))


UNSERVED = {
    "noise beyond the sampler": (lambda task: terms(task, noise_multiplier="70000"), Reason.MUCH_NOISE),
    "noise beyond the sampler, allowed": (lambda task: terms(task, noise_multiplier="70000"), Reason.TERMS),
    "noise below the sampler": (lambda task: terms(task, noise_multiplier="0.1", grid_bits=8), Reason.TERMS),
    "a million steps": (lambda task: work(task, steps=1_000_000, epochs=None), Reason.WORK),
    "a thousand epochs": (lambda task: work(task, epochs=1000), Reason.WORK),
    "a week": (lambda task: replace(task, deadline_seconds=7 * 86_400.0), Reason.WORK),
}


def terms(task, **changes):
    return replace(task, privacy=replace(task.privacy, **changes))


def work(task, **changes):
    return replace(task, objective=replace(task.objective, **changes))


@pytest.mark.integration
@pytest.mark.parametrize(("altered", "reason"), UNSERVED.values(), ids=UNSERVED)
def test_a_server_that_asks_for_it_is_declined_and_nothing_is_booked(tmp_path, altered, reason):
    limits = TaskLimits() if reason is not Reason.TERMS else TaskLimits(most_device_noise=1e30)
    with witnessed(tmp_path / "home", rounds=1) as witness:
        witness.federation.altered = altered
        with witness.federation.enrolled(tmp_path / "home", policy=Policy(limits=limits)) as device:
            seen = witness.sees(device, trainer(), 1)
            assert device.status().ledger.sequence == 0
        assert ("decline", DeclineReason.TERMS.name) in seen
        assert seen[-1] == ("still there",)
        assert len(entries_of(tmp_path / "home" / "state")) == 1


@pytest.mark.integration
def test_a_mechanism_that_fails_whatever_the_data_ends_no_run(tmp_path, monkeypatch):
    def fails(self, data, noise):
        raise InvalidTerms("terms that pass every check; nothing was drawn")

    with witnessed(tmp_path / "home", rounds=1) as witness:
        device = witness.federation.enrolled(tmp_path / "home")
        with monkeypatch.context() as broken:
            broken.setattr(ClippedUpdate, "answer", fails)
            seen = witness.sees(device, trainer(), 1)
        assert witness.ended_by is None
        assert (("decline", "NOT_NOW") in seen, seen[-1]) == (True, ("still there",))
        assert device.failures == {"TrainingFailed": 2}  # with data, and without
        device._let_go()


@pytest.mark.integration
def test_work_that_takes_too_long_is_stopped_and_answered_for(tmp_path):
    with witnessed(tmp_path / "home", rounds=1) as witness:
        limits = TaskLimits(longest_task_seconds=1.0)
        device = witness.federation.enrolled(tmp_path / "home", policy=Policy(limits=limits))
        seen = witness.sees(device, Slow(), 1)
        assert ("decline",) not in [sight[:1] for sight in seen]
        assert witness.num("accept") == 1
        assert device.failures == {"TrainingFailed": 1}
        device._let_go()


@pytest.mark.integration
def test_a_server_gives_no_more_tasks_than_it_may(tmp_path):
    with witnessed(tmp_path / "home", rounds=100) as witness:
        policy = Policy(limits=TaskLimits(most_tasks=2))
        with witness.federation.enrolled(tmp_path / "home", policy=policy) as device:
            run_until(device, witness.federation, lambda desk: desk.declines, trainer())
        refused = witness.num("decline")
        with witness.federation.open(tmp_path / "home", policy=policy) as device:  # nor after a restart
            run_until(device, witness.federation, lambda desk: len(desk.declines) > refused, trainer())
        assert witness.num("accept") == 2
        assert {sight[1] for sight in witness.seen if sight[0] == "decline"} == {DeclineReason.TERMS.name}
