"""Checking by experiment that a mechanism hides as much as it claims.

    scout     every world, every statistic, many thresholds: which guess tells the neighbours apart best?
    confirm   that one guess on fresh runs: how much ε does its success need at least?

Scouting runs take no part in the verdict, so the whole confidence is spent on one test. The result is
a lower bound on ε. One above the claim is evidence of a fault. One below it proves nothing: this audit,
whose power is stated beside it, has seen no more. See docs/decisions/0005-empirical-audit.md.
"""

from __future__ import annotations

import itertools
import math
import time
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from privacy.auditing.bounds import scipy_special
from privacy.auditing.claims import Claim
from privacy.auditing.learning import learned_from
from privacy.auditing.power import detectable_epsilon, detectable_mu
from privacy.auditing.report import AuditReport, Verdict
from privacy.auditing.rules import Promise, Rule, Tally
from privacy.auditing.runs import Progress, Runs
from privacy.auditing.scouting import Prospect, Scouted
from privacy.auditing.statistics import fitted_to
from privacy.auditing.worlds import World, beside_known, worlds_left_out, worlds_of
from privacy.errors import InvalidTerms

if TYPE_CHECKING:
    from privacy.auditing.observations import Observations
    from privacy.release import Mechanism

_FEWEST_SCOUTS = 50  # runs for each neighbour in each world


def audit(
    mechanism: Mechanism[Any],
    worlds: Sequence[World] | str | None = None,
    *,
    trials: int = 20_000,
    confidence: float = 0.999,
    delta: float = 1e-6,
    seed: int | str | None = None,
    progress: Progress | None = None,
) -> AuditReport:
    """The most ε that this mechanism can be shown to spend, from about `trials` runs for each of two neighbours.

    `worlds` are pairs of neighbours to try, or the name of a built-in mechanism whose pairs fit; by
    default those of the mechanism's own name. `delta` is where a claim that is not pure is read off; one
    that is neither pure nor Gaussian is also tried at larger δ, and the report names the one it speaks of.
    `seed` makes an audit repeatable, for tests; else all noise is the operating system's.
    """
    started = time.monotonic()
    scipy_special()
    _check_terms(trials, confidence)
    claims = Claim.all_of(mechanism, delta)
    chosen = worlds_of(mechanism, worlds) if worlds is None or isinstance(worlds, str) else list(worlds)
    left_out = worlds_left_out(mechanism, worlds) if worlds is None or isinstance(worlds, str) else ()
    if not chosen:
        raise InvalidTerms("an audit needs at least one pair of neighbours; nothing was run")
    chosen.append(beside_known(chosen[0]))
    # Half as many runs to find the best guess, over all worlds, as to judge it.
    scouts = max(_FEWEST_SCOUTS, trials // (2 * len(chosen)))
    planned = 2 * (sum(_share(world, scouts) for world in chosen) + trials)
    runs = Runs(mechanism, planned, seed, progress)
    found = _scout(runs, chosen, scouts, claims)
    tally, claim = _confirm(runs, found, trials), found.claim
    strength = tally.bound(claim.promise, 1 - confidence, claim.delta)
    return AuditReport(
        mechanism=mechanism.name,
        claimed_epsilon=claim.epsilon,
        delta=claim.delta,
        lower_bound=claim.epsilon_of(strength),
        world=found.world.name,
        statistic=found.rule.statistic.name,
        trials=trials,
        seconds=time.monotonic() - started,
        confidence=confidence,
        verdict=Verdict.EXCEEDS_CLAIM if strength > claim.strength else Verdict.NO_EVIDENCE_OF_MORE,
        detectable_shortfall=_shortfall(claim, tally, 1 - confidence),
        left_out=left_out if runs.can_copy else (*left_out, "a copy of the mechanism beside it: it cannot be copied"),
    )


def audit_update(
    mechanism: Mechanism[Any],
    worlds: Sequence[World] | str | None = None,
    *,
    trials: int = 10_000,
    confidence: float = 0.999,
    delta: float = 1e-6,
    seed: int | str | None = None,
    progress: Progress | None = None,
) -> AuditReport:
    """`audit` for an update with Gaussian noise: slower runs, so fewer of them; refuses any other claim."""
    if Claim.of(mechanism, delta).promise is not Promise.GAUSSIAN:
        raise InvalidTerms(f"{mechanism.name} does not claim Gaussian noise; use `audit`; nothing was run")
    return audit(mechanism, worlds, trials=trials, confidence=confidence, delta=delta, seed=seed, progress=progress)


@dataclass(frozen=True)
class _Found:
    """What scouting found most promising: where to look, at how many numbers, how to guess, against which claim."""

    world: World
    columns: int
    rule: Rule
    claim: Claim


def _scout(runs: Runs, worlds: Sequence[World], scouts: int, claims: Sequence[Claim]) -> _Found:
    best: tuple[Prospect, _Found] | None = None
    for world in worlds:
        seen = runs.observe(world, 2 * _share(world, scouts))
        if seen.failed.all():
            continue
        for found, claim in itertools.product(_scouted(seen, world, claims[0].promise), claims):
            prospect = found.best_rule(claim.promise, claim.delta).beyond(claim.strength)
            if best is None or prospect.beats(best[0]):
                best = prospect, _Found(world, seen.values.shape[1], prospect.rule, claim)
    if best is None:
        ended = f" (the last one: {type(runs.last_error).__name__})" if runs.last_error else ""
        raise InvalidTerms(
            f"the mechanism raised an error in every run{ended}, or always answered the same, so there was nothing "
            "to audit; see that the worlds hold the kind of data it takes; there is no verdict"
        ) from runs.last_error
    return best[1]


def _scouted(seen: Observations, world: World, promise: Promise) -> list[Scouted]:
    """What every statistic makes of these runs; one that is learned is seen at work on runs it did not learn from."""
    fitted = fitted_to(seen, world.centres, gaussian=promise is Promise.GAUSSIAN)
    lesson, unseen = seen.halves()
    tried = [(statistic, seen) for statistic in fitted]
    tried += [(statistic, unseen) for statistic in learned_from(lesson, world.centres)]
    return [found for statistic, shown in tried if (found := Scouted.of(statistic, shown))]


def _share(world: World, scouts: int) -> int:
    """Fewer where a run asks for three answers; noise used twice shows itself in a few."""
    return scouts // 2 if world.beside_known else scouts


def _confirm(runs: Runs, found: _Found, trials: int) -> Tally:
    tally = Tally()
    while (left := 2 * trials - tally.first_runs - tally.second_runs) > 0:
        tally += found.rule.tally(runs.observe(found.world, left, found.columns))
    return tally


def _shortfall(claim: Claim, tally: Tally, alpha: float) -> float | None:
    """The share of its noise that the mechanism could lack and be found out 19 times in 20.

    What the test must show to convict is known exactly. What it shows of the mechanism as claimed is
    taken from this audit: where the worlds bring out half of ε only, noise must fall by more than half.
    """
    if claim.promise is Promise.PURE:
        needed = detectable_epsilon(claim.strength, tally.guesses, alpha)
    elif claim.promise is Promise.GAUSSIAN:
        needed = detectable_mu(claim.strength, min(tally.first_runs, tally.second_runs), alpha)
    else:
        return None
    shown = max(0.0, min(claim.strength, tally.estimate(claim.promise)))
    return None if math.isinf(needed) or not shown else 1 - shown / needed


def _check_terms(trials: int, confidence: float) -> None:
    if trials < 1:
        raise InvalidTerms(f"an audit needs at least one run for each neighbour, got {trials}; nothing was run")
    if not 0 < confidence < 1:
        raise InvalidTerms(f"confidence lies between 0 and 1, got {confidence!r}; nothing was run")
