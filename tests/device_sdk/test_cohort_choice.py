"""Feedback is learned from where an update waits for it, and nowhere else."""

from __future__ import annotations

from contextlib import nullcontext
from types import SimpleNamespace

import pytest

from device_sdk.affinity import Exploration
from device_sdk.cohort_choice import CohortChoice
from device_sdk.wire.messages import Feedback


@pytest.mark.parametrize(
    ("cohort", "round_number", "is_meant"),
    [
        ("0.1", 3, True),
        ("0.1.0", 3, True),  # the cohort has split since
        ("0", 3, False),
        ("0.10", 3, False),
        ("0.2", 3, False),
        ("0.1", 4, False),
        ("0.1", 2, False),
    ],
)
def test_feedback_is_for_the_update_of_its_round_and_cohort_or_of_one_that_has_split(
    monkeypatch, cohort, round_number, is_meant
):
    finished: list[str] = []
    learned: list[Feedback] = []
    waiting = SimpleNamespace(task="task", cohort="0.1", round=3)
    monkeypatch.setattr("device_sdk.cohort_choice.task_of", lambda entry: entry)
    kept = SimpleNamespace(
        journal=SimpleNamespace(awaiting_feedback=lambda: [waiting], finish=finished.append),
        affinities=SimpleNamespace(learn=lambda feedback, _: learned.append(feedback)),
        vault=SimpleNamespace(changing=nullcontext),
    )
    feedback = Feedback(cohort, round_number, bytes(32), 0.5, 1)
    CohortChoice(kept, Exploration()).learn(feedback)  # type: ignore[arg-type]
    assert (finished, learned) == ((["task"], [feedback]) if is_meant else ([], []))
