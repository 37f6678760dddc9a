"""One cohort for all, for ever."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from server_kit.interfaces import Look, Wants

if TYPE_CHECKING:
    import numpy as np

    from server_kit.interfaces import DeviceId, Federated, Memory, Seen, Split


@dataclass(frozen=True)
class Never:
    """Looks at nothing and changes nothing; other formations build on its silence."""

    @property
    def wants(self) -> Wants:
        return Wants()

    def begin(self, federation: Federated, rng: np.random.Generator) -> Split | None:
        del federation, rng
        return None

    def welcome(self, newcomers: Sequence[DeviceId], federation: Federated, rng: np.random.Generator) -> None:
        del newcomers, federation, rng

    def look(self, seen: Seen, memory: Memory, federation: Federated, rng: np.random.Generator) -> Look:
        del seen, memory, federation, rng
        return Look()
