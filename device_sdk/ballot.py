"""The votes of a device's records for models, taken model after model. Devices and simulations count alike."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import numpy as np

if TYPE_CHECKING:
    from numpy.typing import NDArray


@dataclass
class Ballot:
    """Each record votes for the model with the least loss on it; of those that do equally well, for the first.

    A loss that is no number is the worst, so a record votes for the first model if it has no other loss.
    """

    records: int
    _least: NDArray[np.float64] = field(init=False)
    _votes: NDArray[np.int64] = field(init=False)

    def __post_init__(self) -> None:
        self._least = np.full(self.records, np.inf)
        self._votes = np.zeros(self.records, dtype=np.int64)

    def cast(self, choice: int, losses: NDArray[np.floating[Any]]) -> None:
        """What a model, which is the choice of this number, loses on each record; the first model comes first."""
        # A comparison with what is no number is false.
        better = losses < self._least
        self._votes[better] = choice
        self._least[better] = losses[better]

    @property
    def votes(self) -> list[int]:
        """A choice for each record. Private as they stand."""
        votes: list[int] = self._votes.tolist()
        return votes
