"""A mechanism of one's own, and the attempt to convict it: does it leak more than it books?

    python examples/audit_a_mechanism.py

`HowManyAreLong` tells how many texts are long. `Careless` is the same with one fault that a reader may well miss. The
audit plays both against data that differ in one text, and finds which of the two is honest.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar

from privacy import NeighbouringRelation, NoiseSource, PrivacyUnit
from privacy.auditing import World, audit
from privacy.budget import PrivacyCost
from privacy.exact import exact_epsilon
from privacy.packing import pack, unpack
from privacy.release import Answer, Guarantee

TRIALS = 4000


@dataclass(frozen=True)
class HowManyAreLong:
    """The number of texts longer than `length`, ε-DP for one text."""

    length: int
    epsilon: str
    relation: NeighbouringRelation = NeighbouringRelation.REPLACE
    name: ClassVar[str] = "how_many_are_long"

    @property
    def terms(self) -> dict[str, int | str]:
        return {"length": self.length, "epsilon": self.epsilon, "relation": self.relation.value}

    @property
    def cost(self) -> PrivacyCost:
        return PrivacyCost.pure(exact_epsilon(self.epsilon), PrivacyUnit.RECORD, self.relation)

    @property
    def guarantee(self) -> Guarantee:
        return Guarantee("L1 1: a text is counted or not", "discrete Laplace of scale 1/ε", "Ghosh et al. 2012")

    def check(self, data: Sequence[str]) -> None:
        """Any list will do."""

    def answer(self, data: Sequence[str], noise: NoiseSource) -> Answer:
        drawn = noise.discrete_laplace(1 / exact_epsilon(self.epsilon))  # before the data are read
        return Answer(pack([self.count(data) + drawn]), noise.seeded)

    def count(self, data: Sequence[str]) -> int:
        return sum(len(text) > self.length for text in data)

    def decode(self, payload: bytes) -> int:
        return int(unpack(payload, 1)[0])


class Careless(HowManyAreLong):
    """Counts how often a text is longer, in units of `length`: one text can change that by more than one."""

    name: ClassVar[str] = "careless"

    def count(self, data: Sequence[str]) -> int:
        return sum(len(text) // self.length for text in data)


def convicted(mechanism: HowManyAreLong) -> bool:
    """Print what the audit found; whether it leaks more than it books."""
    texts = ["short", "brief"]
    worlds = [World("one text is long or not", [*texts, "a rather long text"], [*texts, "note"])]
    report = audit(mechanism, worlds, trials=TRIALS)
    found = report.lower_bound > report.claimed_epsilon
    print(f"{mechanism.name}: books ε={report.claimed_epsilon:g}, leaks at least {report.lower_bound:.2f}", end="")
    print(": convicted" if found else ": no objection")
    return found


if __name__ == "__main__":
    honest, careless = convicted(HowManyAreLong(5, "0.5")), convicted(Careless(5, "0.5"))
    sys.exit(0 if careless and not honest else 1)
