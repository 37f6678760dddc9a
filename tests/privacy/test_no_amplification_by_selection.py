"""Being selected by a server makes nothing cheaper, and nobody can claim that it does."""

from __future__ import annotations

import inspect
from types import ModuleType

import pytest

from privacy.accounting import composition, limits, planning
from privacy.budget import PrivacyUnit
from privacy.errors import InvalidTerms

FORBIDDEN = ("select", "client", "participation", "population", "cohort", "amplif", "fraction")


def claims_of_selection(module: ModuleType) -> set[str]:
    """Parameters by which a caller could say how rarely a server picks a device."""
    found = set()
    for name, function in inspect.getmembers(module, callable):
        if getattr(function, "__module__", None) == module.__name__:
            parameters = inspect.signature(function).parameters
            found |= {f"{name}({parameter})" for parameter in parameters if any(f in parameter for f in FORBIDDEN)}
    return found


@pytest.mark.parametrize("module", [composition, limits, planning])
def test_no_rate_of_selection_can_be_claimed(module: ModuleType) -> None:
    assert not claims_of_selection(module)


def test_a_parameter_for_it_would_be_noticed() -> None:
    twin = ModuleType("twin")

    def epsilon_spent(costs: object, delta: float, selection_rate: float) -> float:
        del costs, selection_rate
        return delta

    epsilon_spent.__module__ = "twin"
    twin.epsilon_spent = epsilon_spent  # type: ignore[attr-defined]
    assert claims_of_selection(twin) == {"epsilon_spent(selection_rate)"}


def test_a_device_level_plan_takes_no_sampling_rate() -> None:
    with pytest.raises(InvalidTerms):
        planning.noise_for(8, 1e-6, 20, PrivacyUnit.DEVICE, sampling_rate=0.01, steps_per_round=1)
