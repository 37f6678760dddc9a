"""Units of work on several processes. A unit ends the same whatever the number of processes.

Each process reads the experiment once and takes units until none is left; a finished unit is on disk before it
is reported. A unit that fails, or whose process dies, leaves the others alone. When the caller goes away, by
an interrupt or worse, so do the processes.
"""

from __future__ import annotations

import multiprocessing
import os
import signal
import sys
import time
import traceback
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from multiprocessing.connection import Connection, wait
from multiprocessing.context import SpawnProcess
from pathlib import Path
from typing import Protocol

from privacy.errors import PrivacyError
from server_kit.errors import ServerError
from server_kit.simulation.experiments.environment import commit
from server_kit.simulation.experiments.experiment import Experiment, Unit
from server_kit.simulation.experiments.experiment_file import ExperimentFile
from server_kit.simulation.experiments.results_folder import Finished, ResultsFolder
from server_kit.simulation.records import Point, Run

_THREAD_COUNTS = ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS")

Work = Callable[[Experiment, Unit, Callable[[Point], None]], Run]


@dataclass(frozen=True)
class Failure:
    """Why a unit has no result."""

    unit: Unit
    sentence: str
    details: str = ""
    """The traceback, where it is not ours to say what is wrong."""


class Watcher(Protocol):
    """Is told how far the work is."""

    def started(self, unit: Unit) -> None: ...

    def point(self, unit: Unit, point: Point) -> None: ...

    def finished(self, unit: Unit) -> None: ...

    def failed(self, failure: Failure) -> None: ...


def simulate_unit(experiment: Experiment, unit: Unit, on_point: Callable[[Point], None]) -> Run:
    """The work itself."""
    return experiment.run(unit, on_point)


def run_units(
    file: ExperimentFile,
    units: Sequence[Unit],
    folder: ResultsFolder,
    watcher: Watcher,
    *,
    jobs: int,
    threads: int,
    work: Work = simulate_unit,
) -> list[Failure]:
    """Run all units into the folder, `jobs` at a time; what failed comes back."""
    return _Crew(lambda: _Worker.start(file, folder, threads, work), watcher).run(units, jobs)


class _Crew:
    def __init__(self, start: Callable[[], _Worker], watcher: Watcher) -> None:
        self._start = start
        self._watcher = watcher
        self._busy: dict[Connection, tuple[_Worker, Unit]] = {}
        self._failures: list[Failure] = []

    def run(self, units: Sequence[Unit], jobs: int) -> list[Failure]:
        left = deque(units)
        try:
            for _ in range(min(jobs, len(units))):
                self._give(self._start(), left)
            while self._busy:
                for connection in wait(list(self._busy)):
                    if isinstance(connection, Connection):
                        self._hear(connection, left)
        finally:
            for worker, _ in self._busy.values():
                worker.stop()
        return self._failures

    def _give(self, worker: _Worker, left: deque[Unit]) -> None:
        if not left:
            worker.stop()
            return
        unit = left.popleft()
        worker.connection.send(unit)
        self._busy[worker.connection] = worker, unit
        self._watcher.started(unit)

    def _hear(self, connection: Connection, left: deque[Unit]) -> None:
        worker, unit = self._busy[connection]
        try:
            message = connection.recv()
        except (EOFError, OSError):
            message = Failure(unit, f"its process ended with {worker.ending()}")
            if left:
                worker.stop()
                worker = self._start()
        if isinstance(message, Point):
            self._watcher.point(unit, message)
            return
        if isinstance(message, Failure):
            self._failures.append(message)
            self._watcher.failed(message)
        else:
            self._watcher.finished(unit)
        del self._busy[connection]
        self._give(worker, left)


@dataclass(frozen=True)
class _Worker:
    process: SpawnProcess
    connection: Connection

    @classmethod
    def start(cls, file: ExperimentFile, folder: ResultsFolder, threads: int, work: Work) -> _Worker:
        # Not forked: a process that inherits torch's threads may wait for them for ever.
        context = multiprocessing.get_context("spawn")
        here, there = context.Pipe()
        process = context.Process(target=_serve, args=(there, file, folder, threads, work), daemon=True)
        with _threads_of_children(threads):
            process.start()
        there.close()
        return cls(process, here)

    def stop(self) -> None:
        self.process.terminate()
        self.process.join()
        self.connection.close()

    def ending(self) -> str:
        self.process.join()
        code = self.process.exitcode or 0
        return f"signal {-code}" if code < 0 else f"code {code}"


def _serve(connection: Connection, file: ExperimentFile, folder: ResultsFolder, threads: int, work: Work) -> None:
    """What a process does: units in, points and endings out."""
    import torch

    # Ctrl-C reaches all processes of a terminal; the one in charge decides.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    torch.set_num_threads(threads)
    make_importable(file.folder)
    try:
        experiment = file.read()
        while True:
            unit = connection.recv()
            connection.send(_done(experiment, unit, folder, work, connection))
    except (EOFError, BrokenPipeError):
        return


def _done(
    experiment: Experiment, unit: Unit, folder: ResultsFolder, work: Work, connection: Connection
) -> Failure | None:
    began = time.monotonic()
    try:
        run = work(experiment, unit, connection.send)
        folder.write(experiment, Finished(unit, run, time.monotonic() - began, commit()))
    except BrokenPipeError:
        raise
    except (ServerError, PrivacyError) as error:
        return Failure(unit, str(error))
    except Exception as error:
        return Failure(unit, f"a fault of its own ({type(error).__name__})", traceback.format_exc())
    return None


def make_importable(folder: Path) -> None:
    """Modules beside an experiment file can be named in it; what is installed comes first."""
    if str(folder) not in sys.path:
        sys.path.append(str(folder))


@contextmanager
def _threads_of_children(threads: int) -> Iterator[None]:
    """What numerical libraries read when they are loaded."""
    before = {name: os.environ.get(name) for name in _THREAD_COUNTS}
    os.environ.update(dict.fromkeys(_THREAD_COUNTS, str(threads)))
    try:
        yield
    finally:
        for name, value in before.items():
            if value is None:
                del os.environ[name]
            else:
                os.environ[name] = value
