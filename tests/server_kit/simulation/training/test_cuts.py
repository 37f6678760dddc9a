"""Devices are cut into parts so that no other cut is cheaper."""

from __future__ import annotations

from itertools import combinations, pairwise

from hypothesis import given
from hypothesis import strategies as st

from server_kit.simulation.training import LocalTask, LogisticRegression, Mlp
from server_kit.simulation.training.cuts import _STEP_COST, Alike, cheapest_parts
from server_kit.simulation.training.planning import _row_space_cost

kinds = st.builds(
    Alike, st.integers(1, 30), st.integers(1, 2000), st.floats(0, 1e9, width=32), st.floats(0, 1e6, width=32)
)
falling = st.lists(kinds, max_size=7).map(lambda found: sorted(found, key=lambda kind: -kind.steps))


def cost(part: list[Alike]) -> float:
    """What is written in the module's docstring, device by device."""
    first = part[0]
    padded = sum(kind.devices * (first.once + first.each_step * kind.steps) for kind in part)
    return first.steps * _STEP_COST + padded


@given(falling)
def test_no_other_cut_is_cheaper(found):
    parts = cheapest_parts(found)
    assert [kind for part in parts for kind in found[part]] == found
    ours = sum(cost(found[part]) for part in parts)
    places = range(1, len(found))
    for count in range(len(found)):
        for inner in combinations(places, count):
            bounds = [0, *inner, len(found)]
            assert ours <= (1 + 1e-9) * sum(cost(found[low:high]) for low, high in pairwise(bounds))


def parts_of(spec, sizes: list[int], task: LocalTask) -> int:
    return len(cheapest_parts([Alike(1, task.steps_for(size), *_row_space_cost(spec, size, task)) for size in sizes]))


def test_small_models_train_together_and_large_ones_with_their_like():
    sizes, task = [200, 90, 60, 40, 20, 10], LocalTask(0.1, epochs=20)
    assert parts_of(LogisticRegression(), sizes, task) == 1
    assert parts_of(Mlp(hidden=(2000,)), [400, 10], LocalTask(0.1)) == 2
