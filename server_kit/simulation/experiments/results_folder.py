"""The folder of an experiment's results: finished units are there for good, so a run can go on where it stopped.

    OUT/units/NAME-seed-0.json      one finished unit, with the settings it was run with
    OUT/results.json, table.txt     what they say together
    OUT/plots/*.png, *.svg

A unit's file is written aside and renamed: it is there whole or not at all.
"""

from __future__ import annotations

import fcntl
import hashlib
import json
import os
import re
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from server_kit.errors import ServerError
from server_kit.simulation.experiments.experiment import Experiment, Unit
from server_kit.simulation.experiments.run_json import from_json, to_json
from server_kit.simulation.records import Run

FORMAT = "covey-simulate-unit-1"


class ResultsRefused(ServerError):
    """A results folder that cannot be used as it is; nothing in it was changed."""


@dataclass(frozen=True)
class Finished:
    """A unit that was run to its end."""

    unit: Unit
    run: Run
    wall_seconds: float
    commit: str | None


@dataclass(frozen=True)
class ResultsFolder:
    """Where the results of one experiment lie."""

    path: Path

    @contextmanager
    def held(self) -> Iterator[None]:
        """While this process writes here, no other may."""
        self._make()
        with (self.path / ".lock").open("w") as lock:
            try:
                fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError as error:
                raise ResultsRefused(
                    f"another covey simulate is writing to {self.path}; wait for it or choose another --out; "
                    "nothing was run"
                ) from error
            yield

    def unit_file(self, unit: Unit) -> Path:
        plain = re.sub(r"[^\w.+-]", "_", unit.contender)
        # Two names may look the same once they are file names.
        mark = "" if plain == unit.contender else f"-{hashlib.sha256(unit.contender.encode()).hexdigest()[:6]}"
        return self.path / "units" / f"{plain}{mark}-seed-{unit.seed}.json"

    def clear(self) -> None:
        """Forget all finished units."""
        for file in (self.path / "units").glob("*-seed-*.json"):
            file.unlink()

    def write(self, experiment: Experiment, finished: Finished) -> None:
        """Keep a finished unit."""
        document = {
            "format": FORMAT,
            "contender": finished.unit.contender,
            "seed": finished.unit.seed,
            "terms": to_json(experiment.terms(finished.unit)),
            "commit": finished.commit,
            "wall_seconds": finished.wall_seconds,
            "run": to_json(finished.run),
        }
        write_whole(self.unit_file(finished.unit), json.dumps(document, allow_nan=False, separators=(",", ":")))

    def read(self, experiment: Experiment) -> dict[Unit, Finished]:
        """The units of this experiment that are finished; raises where one was run with other settings."""
        found = {}
        for unit in experiment.units:
            if self.unit_file(unit).is_file():
                found[unit] = self._read(experiment, unit)
        return found

    def _read(self, experiment: Experiment, unit: Unit) -> Finished:
        file = self.unit_file(unit)
        try:
            document = json.loads(file.read_bytes())
            then, now = document["terms"], to_json(experiment.terms(unit))
            run = from_json(Run, document["run"]) if then == now else None
            wall, commit = float(document["wall_seconds"]), document["commit"]
        except (KeyError, TypeError, ValueError, AttributeError) as error:
            raise ResultsRefused(
                f"{file} is not a unit that covey simulate wrote ({type(error).__name__}); "
                "delete it or begin again with --fresh; nothing was run"
            ) from error
        if run is None:
            raise ResultsRefused(
                f"{self.path} holds results of other settings ({', '.join(_changed(then, now))} changed since {unit} "
                "was run); choose another --out, or begin again with --fresh; nothing was run"
            )
        return Finished(unit, run, wall, commit)

    def _make(self) -> None:
        if self.path.is_dir() and any(self.path.iterdir()) and not (self.path / "units").is_dir():
            raise ResultsRefused(f"{self.path} holds other files; choose another --out; nothing was run")
        (self.path / "units").mkdir(parents=True, exist_ok=True)


def write_whole(path: Path, content: str | bytes) -> None:
    """Write aside, make it durable, then rename."""
    path.parent.mkdir(parents=True, exist_ok=True)
    aside = path.with_name(f".{path.name}.{os.getpid()}")
    with aside.open("wb") as stream:
        stream.write(content.encode() if isinstance(content, str) else content)
        stream.flush()
        os.fsync(stream.fileno())
    aside.replace(path)


def _changed(then: Mapping[str, Any], now: Mapping[str, Any], above: str = "") -> list[str]:
    """The settings that differ, by their full names."""
    names = []
    for name in sorted({*then, *now}):
        before, after = then.get(name), now.get(name)
        if isinstance(before, dict) and isinstance(after, dict):
            names += _changed(before, after, f"{above}{name}.")
        elif before != after:
            names.append(f"{above}{name}")
    return names
