"""Running a mechanism the way a device does, many times, and keeping what an onlooker would see.

Before each run a fair coin chooses one of two neighbours; the mechanism checks and answers through the
code that runs on devices, with fresh noise. An error is something seen, like any message: it ends the
run, never the audit.
"""

from __future__ import annotations

import copy
import warnings
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from privacy.auditing.observations import Observations, Seen, numbers_of
from privacy.randomness import NoiseSource, SeededSource

if TYPE_CHECKING:
    from privacy.auditing.worlds import World
    from privacy.release import Mechanism

Progress = Callable[[int, int], None]
"""Called now and then with the runs made and the runs planned."""

_MOST_NUMBERS = 4_000_000  # held at once
_RUNS_A_REPORT = 250


class Runs:
    """Runs of one mechanism; noise and coins are the operating system's unless `seed` makes them repeatable."""

    def __init__(
        self,
        mechanism: Mechanism[Any],
        planned: int,
        seed: int | str | None = None,
        progress: Progress | None = None,
    ) -> None:
        self._mechanism = mechanism
        # Whole steps where there are any: turned into floats they lose the low bits that an onlooker has.
        decode = getattr(mechanism, "decode", None)
        self._decode: Callable[[bytes], Any] | None = getattr(mechanism, "decode_steps", decode)
        self._noise, self._coins = noise_sources(seed)
        self._progress = progress
        self._made = 0
        self._planned = planned
        self.last_error: Exception | None = None
        self.can_copy = _copied(mechanism) is not None

    def observe(self, world: World, runs: int, columns: int | None = None) -> Observations:
        """At most `runs` runs, each in a world chosen by coin; fewer where releases are too long to hold so many."""
        coins: list[int] = []
        seen: list[Seen] = []
        held = 0
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # an onlooker does not see them
            while len(seen) < runs and held < _MOST_NUMBERS:
                coins.append(self._coins.below(2))
                seen.append(self._run(world, second=bool(coins[-1])))
                held += 0 if seen[-1].values is None else len(seen[-1].values)
                self._count_run()
        return Observations.of(coins, seen, columns)

    def _run(self, world: World, *, second: bool) -> Seen:
        secret = copy.deepcopy(world.second if second else world.first)
        if not world.beside_known:
            return self._see(self._mechanism, secret)
        # The copy is made first: it then holds whatever state the mechanism's noise comes from.
        twin = _copied(self._mechanism) if self.can_copy else None
        secret_seen = self._see(self._mechanism, secret)
        known = [self._see(each, copy.deepcopy(world.first)) for each in (self._mechanism, twin) if each is not None]
        return _beside(secret_seen, known)

    def _see(self, mechanism: Mechanism[Any], data: Any) -> Seen:
        try:
            mechanism.check(data)
            payload = mechanism.answer(data, self._noise).payload
            return Seen(numbers_of(payload, self._decode), len(payload))
        except Exception as error:  # whatever it raises is what the onlooker sees
            self.last_error = error
            return Seen(None, 0, failed=True)

    def _count_run(self) -> None:
        self._made += 1
        if self._progress is not None and self._made % _RUNS_A_REPORT == 0:
            self._progress(self._made, max(self._planned, self._made))


def noise_sources(seed: int | str | None) -> tuple[NoiseSource, NoiseSource]:
    """Noise for the mechanism and coins for the auditor, independent of each other."""
    if seed is None:
        return NoiseSource(), NoiseSource()
    return NoiseSource(SeededSource(f"audit {seed}: noise")), NoiseSource(SeededSource(f"audit {seed}: coins"))


def _copied(mechanism: Mechanism[Any]) -> Mechanism[Any] | None:
    try:
        return copy.deepcopy(mechanism)
    except Exception:  # some hold what cannot be copied; the report says that this attack was left out
        return None


def _beside(secret: Seen, known: list[Seen]) -> Seen:
    """How the secret release differs from the known ones."""
    import numpy as np

    if secret.values is None:
        return secret
    columns = []
    for release in known:
        if release.values is not None and len(release.values) == len(secret.values):
            are_whole = secret.values.dtype.kind in "iu" and release.values.dtype.kind in "iu"
            number = np.int64 if are_whole else np.float64
            columns.append(secret.values.astype(number) - release.values.astype(number))
        else:
            columns.append(np.full(len(secret.values), np.nan))
    return Seen(np.concatenate(columns), secret.length_bytes)
