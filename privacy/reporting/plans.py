"""`covey privacy plan`: the noise that a budget needs, or the ε of a noise, and what else could be planned."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from privacy.accounting.planning import Plan, epsilon_for
from privacy.budget import PrivacyUnit
from privacy.errors import InvalidTerms
from privacy.reporting.amounts import counted, up, whom
from privacy.reporting.tables import pairs, paragraph, table

_ROUND_FACTORS = (0.25, 0.5, 1, 2, 4)
_NOISE_FACTORS = (0.5, 1, 2, 4)


def alternatives(plan: Plan) -> dict[tuple[float, int], float | None]:
    """ε by noise multiplier and rounds around the plan; none where it would be beyond all sense."""
    return {
        (noise, rounds): _epsilon(plan, noise, rounds)
        for noise in _noises(plan)
        for rounds in sorted({max(1, round(plan.rounds * factor)) for factor in _ROUND_FACTORS})
    }


def plan_text(plan: Plan, limit: float | None) -> str:
    """For a person. `limit` is the ε that was asked to be kept, if one was."""
    lines = [
        ("Protects", whom(plan.unit, plan.relation)),
        ("Noise", f"multiplier {plan.noise_multiplier:.6f}: the noise's deviation over the clip norm"),
        ("Costs", f"ε={up(plan.epsilon)} at δ={plan.delta:g}, whatever the server asks meanwhile"),
        ("", f"ε={up(plan.epsilon_if_fixed)} if nobody adapts the plan to its answers"),
        ("Counted by", plan.method),
    ]
    title = f"{counted(plan.rounds, 'round')} that one device takes part in"
    if plan.steps_per_round is not None:
        title += f", {counted(plan.steps_per_round, 'step')} each at sampling rate {plan.sampling_rate:g}"
    if plan.histogram_epsilon:
        title += f", and one histogram of ε={plan.histogram_epsilon:g}"
        if plan.unit is PrivacyUnit.DEVICE:
            lines.append(("Note", "a histogram hides single records only, so with it the total is about one record"))
    return "\n\n".join([paragraph(title), pairs(lines), _alternatives(plan, limit)])


def plan_json(plan: Plan, limit: float | None) -> dict[str, Any]:
    """For a program; docs/commands.md lists the keys."""
    return {
        "format": "covey-privacy-plan-1",
        "unit": plan.unit.value,
        "relation": plan.relation.value,
        "rounds": plan.rounds,
        "noise_multiplier": plan.noise_multiplier,
        "histogram_epsilon": plan.histogram_epsilon,
        "sampling_rate": plan.sampling_rate,
        "steps_per_round": plan.steps_per_round,
        "epsilon": plan.epsilon,
        "delta": plan.delta,
        "epsilon_if_fixed": plan.epsilon_if_fixed,
        "method": plan.method,
        "fits": None if limit is None else plan.epsilon <= limit,
        "alternatives": [
            {"noise_multiplier": noise, "rounds": rounds, "epsilon": epsilon}
            for (noise, rounds), epsilon in alternatives(plan).items()
        ],
    }


def _alternatives(plan: Plan, limit: float | None) -> str:
    found = alternatives(plan)
    rounds = sorted({rounds for _, rounds in found})
    rows = [
        [f"{noise:.6g}", *(_cell(found[noise, count], limit) for count in rounds)]
        for noise in sorted({noise for noise, _ in found})
    ]
    heads = ["Noise \\ rounds", *(f"{count:,}" for count in rounds)]
    remark = f"* exceeds ε={limit:g}" if limit is not None else ""
    return f"ε for other plans\n\n{table(heads, rows, 'r' * len(heads))}\n{remark}".rstrip()


def _cell(epsilon: float | None, limit: float | None) -> str:
    if epsilon is None:
        return "beyond sense"
    return up(epsilon, 3) + ("" if limit is None else "*" if epsilon > limit else " ")


def _noises(plan: Plan) -> Iterator[float]:
    return (
        float(f"{plan.noise_multiplier * factor:.6g}") if factor != 1 else plan.noise_multiplier
        for factor in _NOISE_FACTORS
    )


def _epsilon(plan: Plan, noise: float, rounds: int) -> float | None:
    if (noise, rounds) == (plan.noise_multiplier, plan.rounds):
        return plan.epsilon
    try:
        return epsilon_for(
            noise,
            rounds,
            plan.delta,
            plan.unit,
            plan.relation,
            histogram_epsilon=plan.histogram_epsilon,
            sampling_rate=plan.sampling_rate,
            steps_per_round=plan.steps_per_round,
        ).epsilon
    except InvalidTerms:
        return None
