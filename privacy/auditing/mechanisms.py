"""Mechanisms to audit by name: the built-in ones in a size that is quick to run, or anyone's own."""

from __future__ import annotations

import importlib
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from privacy.accounting.planning import noise_for
from privacy.budget import NeighbouringRelation, PrivacyUnit
from privacy.errors import InvalidTerms
from privacy.exact import Number
from privacy.mechanisms import (
    BoundedScalar,
    ClippedUpdate,
    DiscreteGaussian,
    FeatureHistogram,
    LabelHistogram,
    RandomizedResponse,
    VotedChoice,
)
from privacy.mechanisms.dp_sgd import DpSgd
from privacy.release import Mechanism

_LAPLACE = ("bounded_scalar", "feature_histogram", "label_histogram", "randomized_response", "voted_choice")
_GAUSSIAN = ("clipped_update", "discrete_gaussian", "dp_sgd")
BUILT_IN = tuple(sorted((*_LAPLACE, *_GAUSSIAN)))
# Noise multipliers and bits of the grid at which a server could once read low bits that had no noise.
_EXTREMES_OF_DP_SGD: tuple[tuple[int, int], ...] = ((8, 24), (512, 16), (512, 24), (2**36, 8))
_PROTOCOL = ("name", "terms", "cost", "guarantee", "check", "answer")


def built_in(
    name: str,
    *,
    epsilon: Number = 1,
    delta: float = 1e-6,
    noise_multiplier: Number | None = None,
    relation: NeighbouringRelation | str = NeighbouringRelation.REPLACE,
) -> Mechanism[Any]:
    """A built-in mechanism with few bins or coordinates: what is audited does not depend on their number.

    A Gaussian one gets `noise_multiplier`, or the least noise that keeps one release within (ε, δ).
    """
    relation = _relation(relation)
    if name in _GAUSSIAN:
        noise = _noise_for(name, epsilon, delta, relation) if noise_multiplier is None else noise_multiplier
        return _gaussian(name, noise, relation)
    if noise_multiplier is not None and name in _LAPLACE:
        raise InvalidTerms(f"{name} takes its noise from ε, not from a noise multiplier; nothing was run")
    match name:
        case "label_histogram":
            return LabelHistogram(2, epsilon, relation)
        case "feature_histogram":
            return FeatureHistogram(2, 2, 4, epsilon, relation=relation)
        case "randomized_response":
            return RandomizedResponse(4, epsilon, relation)
        case "voted_choice":
            return VotedChoice(3, epsilon, relation)
        case "bounded_scalar":
            return BoundedScalar(0.0, 1.0, epsilon, relation=relation)
    raise InvalidTerms(f"there is no built-in mechanism {name!r}; choose from {', '.join(BUILT_IN)}; nothing was run")


def usual_trials(name: str) -> int:
    """Runs for each neighbour, unless said otherwise: fewer where each one trains a model."""
    return 3_000 if name.startswith("dp_sgd") else 20_000


@dataclass(frozen=True)
class Extremes:
    """Terms of one mechanism that are as hard to hide behind as it lets through."""

    mechanisms: dict[str, Mechanism[Any]]
    """By a name that tells the terms."""
    refused: tuple[str, ...]
    """What the mechanism does not let through, and so cannot be asked for."""


def extremes_of(name: str, relation: NeighbouringRelation | str = NeighbouringRelation.REPLACE) -> Extremes:
    """Other terms under which a built-in mechanism is to be audited as well; none but for DP-SGD."""
    mechanisms: dict[str, Mechanism[Any]] = {}
    refused = []
    for noise_multiplier, grid_bits in _EXTREMES_OF_DP_SGD if name == "dp_sgd" else ():
        terms = f"{_as_written(noise_multiplier)}, grid {grid_bits}"
        try:
            mechanisms[f"{name} {terms}"] = _dp_sgd(noise_multiplier, _relation(relation), grid_bits)
        except InvalidTerms:
            refused.append(f"noise multiplier {terms}: it refuses such terms, so that nobody can ask for them")
    return Extremes(mechanisms, tuple(refused))


def load(dotted: str) -> Mechanism[Any]:
    """The mechanism that `package.module:factory` makes when called without arguments.

    The module is also looked for in the current directory. Its code is run: load only what you trust.
    """
    module_name, colon, factory_name = dotted.partition(":")
    if not (module_name and colon and factory_name):
        raise InvalidTerms(f"name a mechanism as package.module:factory, got {dotted!r}; nothing was run")
    here = str(Path.cwd())
    if here not in sys.path:
        sys.path.insert(0, here)  # as for `python -m`
    try:
        factory = getattr(importlib.import_module(module_name), factory_name)
    except (ImportError, AttributeError) as error:
        raise InvalidTerms(f"{dotted} could not be found ({error}); nothing was run") from error
    mechanism = factory()
    missing = [part for part in _PROTOCOL if not hasattr(mechanism, part)]
    if missing:
        raise InvalidTerms(f"what {dotted} made is no mechanism: it lacks {', '.join(missing)}; nothing was run")
    made: Mechanism[Any] = mechanism
    return made


def _as_written(noise_multiplier: int) -> str:
    return str(noise_multiplier) if noise_multiplier < 10**6 else f"2**{noise_multiplier.bit_length() - 1}"


def _noise_for(name: str, epsilon: Number, delta: float, relation: NeighbouringRelation) -> float:
    if name == "dp_sgd":
        one_step = {"sampling_rate": 1, "steps_per_round": 1}
        return noise_for(epsilon, delta, 1, PrivacyUnit.RECORD, relation, **one_step).noise_multiplier
    return noise_for(epsilon, delta, 1, PrivacyUnit.DEVICE, relation).noise_multiplier


def _gaussian(name: str, noise_multiplier: Number, relation: NeighbouringRelation) -> Mechanism[Any]:
    if name == "clipped_update":
        return ClippedUpdate({"weights": (4,)}, 1, noise_multiplier, relation)
    if name == "discrete_gaussian":
        return DiscreteGaussian(2, 1, noise_multiplier, relation)
    return _dp_sgd(noise_multiplier, relation)


def _dp_sgd(noise_multiplier: Number, relation: NeighbouringRelation, grid_bits: int = 8) -> DpSgd:
    """One step on every record: the most that a release can show of it."""
    return DpSgd({"dense.weight": (4, 4)}, 1, noise_multiplier, 1, 1, 1, 1, relation=relation, grid_bits=grid_bits)


def _relation(relation: NeighbouringRelation | str) -> NeighbouringRelation:
    try:
        return NeighbouringRelation(relation)
    except ValueError as error:
        known = ", ".join(NeighbouringRelation)
        raise InvalidTerms(f"a neighbouring relation is one of {known}, got {relation!r}; nothing was run") from error
