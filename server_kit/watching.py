"""Looking at updates as they pass by: rows for those who search for structure, as short as they may be."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch

from server_kit.clustering import CountSketch
from server_kit.interfaces import Seen

if TYPE_CHECKING:
    from server_kit.interfaces import CohortId, DeviceId, Update, Wants


class Watch:
    """Keeps what a formation wants of each update of one step."""

    def __init__(self, wants: Wants, seed: int) -> None:
        self._wants = wants
        self._sketch = None if wants.sketch is None else CountSketch(seed % 2**64, wants.sketch)
        self._devices: list[DeviceId] = []
        self._versions: list[int] = []
        self._rows: list[torch.Tensor] = []
        self._halves: list[tuple[torch.Tensor, torch.Tensor]] = []

    @property
    def is_on(self) -> bool:
        return self._wants.updates

    def see(self, update: Update) -> None:
        """Take note of one update; nothing of it is kept but a row."""
        self._devices.append(update.device)
        self._versions.append(update.base_version)
        self._rows.append(self._short(update.delta))
        if self._wants.halves and update.halves is not None:
            self._halves.append((self._short(update.halves[0]), self._short(update.halves[1])))

    def seen(self, cohort: CohortId, round_number: int, mixing_rate: float | None) -> Seen:
        """Everything that was noted."""
        complete = bool(self._halves) and len(self._halves) == len(self._rows)
        return Seen(
            cohort,
            round_number,
            tuple(self._devices),
            tuple(self._versions),
            torch.stack(self._rows) if self._rows else torch.empty(0, 0),
            (
                (torch.stack([one for one, _ in self._halves]), torch.stack([other for _, other in self._halves]))
                if complete
                else None
            ),
            mixing_rate=mixing_rate,
        )

    def _short(self, vector: torch.Tensor) -> torch.Tensor:
        return vector.clone() if self._sketch is None else self._sketch.of(vector[None])[0]
