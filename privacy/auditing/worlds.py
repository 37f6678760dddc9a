"""Pairs of neighbouring data for each built-in mechanism, as hard to hide as we could think of.

A world is two data sets that the mechanism promises to make look alike. A pair that is no neighbour
under the mechanism's relation and unit would convict an honest mechanism, so each is built from the
mechanism's own terms: one record more or less, one record exchanged, or another whole contribution.
"""

from __future__ import annotations

import json
import math
from collections.abc import Callable
from dataclasses import dataclass, replace
from fractions import Fraction
from typing import TYPE_CHECKING, Any

from privacy.budget import NeighbouringRelation
from privacy.errors import InvalidTerms
from privacy.mechanisms.discrete_gaussian import GRID_STEPS as DISCRETE_GAUSSIAN_STEPS
from privacy.tensor_shapes import size_of, unflattened

if TYPE_CHECKING:
    from privacy.release import Mechanism

_Record = tuple[float, float, int]  # the value of all features but the last, that of the last, and the label
_FAR = 100  # times the clip norm: whoever forgets to clip is seen at once
_UNEVEN = 0.7320508075688772  # of the clip norm: not round in any base, so that no low bit is 0 by chance


@dataclass(frozen=True)
class World:
    """Two neighbours. Each run gets a copy of one of them.

    `centres` is what the releases of both would be without noise, as flat vectors, where that is known: in whole
    steps for a mechanism with `decode_steps`, else as it decodes them.
    `beside_known`: each run shows how the release differs from two releases of `first`, whichever
    neighbour was secret: one by the same mechanism straight after, one by a copy of it made straight
    before. They cost nothing, as the onlooker knows what went in, and they betray noise used twice.
    """

    name: str
    first: Any
    second: Any
    centres: tuple[Any, Any] | None = None
    beside_known: bool = False


def worlds_of(mechanism: Mechanism[Any], kind: str | None = None) -> list[World]:
    """The built-in worlds for `kind` of mechanism, by default for the name that it carries.

    A mechanism of another name may offer its own by a method `neighbouring_worlds`.
    """
    kind = mechanism.name if kind is None else kind
    own = getattr(mechanism, "neighbouring_worlds", None)
    if kind == mechanism.name and own is not None:
        return list(own())
    if kind in _BUILDERS:
        return _BUILDERS[kind](mechanism.terms, mechanism.cost.relation)
    raise InvalidTerms(
        f"there are no built-in worlds for {kind!r}; pass worlds of your own, give the mechanism a method "
        f"neighbouring_worlds, or name one of {', '.join(sorted(_BUILDERS))}; nothing was run"
    )


def worlds_left_out(mechanism: Mechanism[Any], kind: str | None = None) -> tuple[str, ...]:
    """The built-in worlds that cannot be had here, and why."""
    if (mechanism.name if kind is None else kind) != "dp_sgd":
        return ()
    from privacy.auditing.training_worlds import dp_sgd_left_out

    return dp_sgd_left_out()


def beside_known(world: World) -> World:
    """The same two neighbours, each shown beside releases of known data."""
    return replace(world, name=f"{world.name}, beside a known release", centres=None, beside_known=True)


def _label_histogram(terms: dict[str, int | str], relation: NeighbouringRelation) -> list[World]:
    num_labels = int(terms["num_labels"])
    last = num_labels - 1

    def world(name: str, first: list[Any], second: list[Any]) -> World:
        counts = [[labels.count(label) for label in range(num_labels)] for labels in (first, second)]
        return World(name, first, second, (counts[0], counts[1]))

    if relation is NeighbouringRelation.ADD_REMOVE:
        return [
            world("add one", [0, 0, last], [0, 0, 0, last]),
            world("empty or one", [], [0]),
            world("a label that was absent", [0], [0, last]),
            world("an unknown label", [0], [0, last + 1]),
            world("a label that is not a number", [0], [0, math.nan]),
        ]
    return [
        world("replace one", [0, 0, last], [0, last, last]),
        world("the only one", [0], [last]),
        world("by an unknown label", [0, 0], [0, last + 1]),
        world("by a label that is not a number", [0, 0], [0, math.nan]),
    ]


def _feature_histogram(terms: dict[str, int | str], relation: NeighbouringRelation) -> list[World]:
    import numpy as np

    features, num_labels, bins = (int(terms[term]) for term in ("features_per_record", "num_labels", "num_bins"))
    low, high = float(terms["low"]), float(terms["high"])

    # All features of a record fall into one bin, the most that one record can move; or all but one, which shows
    # noise that comes in as many steps as a record has features.
    def data(records: list[_Record]) -> tuple[Any, Any]:
        values = np.array([[*[value] * (features - 1), last] for value, last, _ in records], dtype=np.float64)
        return values.reshape(-1, features), np.array([label for _, _, label in records], dtype=np.int64)

    def table(records: list[_Record]) -> Any:
        counts = np.zeros((num_labels, bins))
        for value, last, label in records:
            if label < num_labels:
                counts[label, -1 if value >= high else 0] += features - 1
                counts[label, -1 if last >= high else 0] += 1
        return counts.ravel()

    def world(name: str, first: list[_Record], second: list[_Record]) -> World:
        return World(name, data(first), data(second), (table(first), table(second)))

    base, last = (low, low, 0), num_labels - 1
    others = {
        "all in the last bin": (high, high, last),
        "not a number": (math.nan, math.nan, last),
        "infinite": (math.inf, math.inf, last),
        "minus infinite": (-math.inf, -math.inf, last),
        "unknown label": (high, high, last + 1),
    }
    if relation is NeighbouringRelation.ADD_REMOVE:
        others["all but one in the last bin"] = (high, low, last)
        added = [world(f"add one, {name}", [base], [base, other]) for name, other in others.items()]
        return [world("empty or one, all in one bin", [], [base]), *added]
    exchanged = world("replace one, which features are where", [base, (low, high, last)], [base, (high, low, last)])
    replaced = [world(f"replace one, {name}", [base, base], [base, other]) for name, other in others.items()]
    return [*replaced, exchanged]


def _randomized_response(terms: dict[str, int | str], relation: NeighbouringRelation) -> list[World]:  # noqa: ARG001
    # Any two choices are neighbours under either relation: the mechanism promises to hide the choice itself.
    last = int(terms["num_choices"]) - 1
    return [World("first or last choice", 0, last), World("out of range", 0, -1), World("far out of range", 0, 10**30)]


def _voted_choice(terms: dict[str, int | str], relation: NeighbouringRelation) -> list[World]:
    last = int(terms["num_choices"]) - 1
    if relation is NeighbouringRelation.ADD_REMOVE:
        return [
            World("nobody or one vote", [], [last]),
            World("one vote, or another beside it", [0], [0, last]),
            World("one vote more for the leader", [0], [0, 0]),
        ]
    return [
        # What is far behind is hardly ever told, and between the other two a lead of two or none costs all of epsilon.
        World("a lead of two or none", [0] * 12 + [last] * 10, [0] * 11 + [last] * 11),
        World("one vote for the first or the last", [0], [last]),
        World("the deciding vote", [0, 0, last], [0, last, last]),
        World("out of range", [0], [-1]),
    ]


def _bounded_scalar(terms: dict[str, int | str], relation: NeighbouringRelation) -> list[World]:  # noqa: ARG001
    # As above: whatever the relation, the whole range is to be hidden.
    low, high = float(terms["low"]), float(terms["high"])
    ends = ([0], [int(terms["steps"])])
    return [
        World("low or high end", low, high, ends),
        World("far outside the range", -1e300, 1e300, ends),
        World("infinite", -math.inf, math.inf, ends),
        World("not a number", math.nan, high, ends),
    ]


def _clipped_update(terms: dict[str, int | str], relation: NeighbouringRelation) -> list[World]:
    shapes = {name: tuple(shape) for name, shape in json.loads(str(terms["shapes"])).items()}
    return [
        replace(world, first=unflattened(world.first, shapes), second=unflattened(world.second, shapes))
        for world in _vectors(size_of(shapes), terms, relation, 1 << int(terms["grid_bits"]))
    ]


def _discrete_gaussian(terms: dict[str, int | str], relation: NeighbouringRelation) -> list[World]:
    return _vectors(int(terms["size"]), terms, relation, DISCRETE_GAUSSIAN_STEPS)


def _vectors(size: int, terms: dict[str, int | str], relation: NeighbouringRelation, bound: int) -> list[World]:
    """Contributions of a whole device, as one vector; `bound` is the clip norm in grid steps."""
    import numpy as np

    if not size:
        raise InvalidTerms("an update without coordinates hides nothing; nothing was run")
    clip_norm = float(Fraction(terms["clip_norm"]))
    zero, even, single = np.zeros(size), np.full(size, clip_norm * size**-0.5), np.zeros(size)
    single[0] = clip_norm
    broken, infinite = even.copy(), even.copy()
    broken[-1], infinite[0] = math.nan, math.inf
    uneven = _UNEVEN * even
    none_or_some = [
        World("nothing or 100 clip norms", zero, _FAR * even, (zero, even)),
        World("nothing or 100 clip norms on one coordinate", zero, _FAR * single, (zero, single)),
        World("nothing or exactly the clip norm", zero, even, (zero, even)),
        World("nothing or an update with all its low bits", zero, uneven, (zero, uneven)),
        World("nothing or 1e300", zero, even / clip_norm * 1e300, (zero, even)),
        World("nothing or not a number", zero, broken),
        World("nothing or infinite", zero, infinite),
    ]
    opposite = [
        World("opposite updates of 100 clip norms", -_FAR * even, _FAR * even, (-even, even)),
        World("opposite on one coordinate", -_FAR * single, _FAR * single, (-single, single)),
        World("opposite of exactly the clip norm", -even, even, (-even, even)),
        World("opposite updates with all their low bits", -uneven, uneven, (-uneven, uneven)),
    ]
    worlds = none_or_some if relation is NeighbouringRelation.ADD_REMOVE else [*opposite, *none_or_some]
    return [_in_steps(world, bound / clip_norm) for world in worlds]


def _in_steps(world: World, steps_per_unit: float) -> World:
    if world.centres is None:
        return world
    first, second = world.centres
    return replace(world, centres=(first * steps_per_unit, second * steps_per_unit))


def _dp_sgd(terms: dict[str, int | str], relation: NeighbouringRelation) -> list[World]:
    from privacy.auditing.training_worlds import dp_sgd_worlds

    return dp_sgd_worlds(terms, relation)


_BUILDERS: dict[str, Callable[[dict[str, int | str], NeighbouringRelation], list[World]]] = {
    "bounded_scalar": _bounded_scalar,
    "clipped_update": _clipped_update,
    "discrete_gaussian": _discrete_gaussian,
    "dp_sgd": _dp_sgd,
    "feature_histogram": _feature_histogram,
    "label_histogram": _label_histogram,
    "randomized_response": _randomized_response,
    "voted_choice": _voted_choice,
}
