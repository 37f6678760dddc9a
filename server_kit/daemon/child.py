"""A child process of the daemon: how it is started, how it is told to stop, and how it finds out by itself."""

from __future__ import annotations

import argparse
import gc
import logging
import os
import signal
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

from server_kit import event_log
from server_kit.config.reloading import reloadable
from server_kit.daemon.federation_home import Home
from server_kit.daemon.heartbeat import beat_into
from server_kit.daemon.lifeline import end_with
from server_kit.errors import (
    CheckpointTooNew,
    HomeError,
    InvalidSetting,
    NoCheckpoint,
    ServerError,
    StoreKeyRefused,
    StoreTooNew,
)
from server_kit.steady_clock import difference_seconds, share, steady_seconds
from server_kit.store.bell import Bell

if TYPE_CHECKING:
    from types import FrameType

    from server_kit.config.reloading import Reload

log = logging.getLogger("covey.server")

WRONG_SETTINGS = 78
"""Exit code: starting again will not help before someone has changed something."""
_FOR_PEOPLE = (CheckpointTooNew, HomeError, InvalidSetting, NoCheckpoint, StoreKeyRefused, StoreTooNew)
LONGEST_WAIT_SECONDS = 2.0
"""After which every process looks whether there is something to do, though nobody has rung."""


_HEEDED_LATER = (signal.SIGHUP, signal.SIGUSR1, signal.SIGUSR2)


@dataclass
class Signals:
    """What the supervisor, or a person, has asked for."""

    stop: threading.Event = field(default_factory=threading.Event)
    reload: threading.Event = field(default_factory=threading.Event)

    def heed(self) -> None:
        """Listen to SIGTERM, SIGINT and SIGHUP; in the main thread."""
        for number in (signal.SIGTERM, signal.SIGINT):
            signal.signal(number, self._stop)
        signal.signal(signal.SIGHUP, self._reload)

    def _stop(self, _: int, __: FrameType | None) -> None:
        self.stop.set()

    def _reload(self, _: int, __: FrameType | None) -> None:
        self.reload.set()


@contextmanager
def not_before_heeded() -> Iterator[None]:
    """What is started here gets these signals once it listens to them; while it imports, they would end it."""
    before = signal.pthread_sigmask(signal.SIG_BLOCK, _HEEDED_LATER)
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


@dataclass(frozen=True)
class Child:
    """What every child process has."""

    home: Home
    name: str
    bell: Bell
    signals: Signals

    def work(self, step: Callable[[], None], next_look_seconds: Callable[[], float]) -> None:
        """Do `step` whenever the bell rings or its time has come, until told to stop."""
        # Hundreds of thousands of objects of the libraries stay as they are: garbage is looked for among the others.
        gc.collect()
        gc.freeze()
        while not self.signals.stop.is_set():
            step()
            wait = min(next_look_seconds() - steady_seconds(), LONGEST_WAIT_SECONDS)
            if wait > 0:
                self.bell.wait(wait)


def run_child(name: str, run: Callable[[Child], None], arguments: list[str]) -> int:
    """Be a child process named `name`; `arguments` are the federation's directory and the supervisor's two pipes."""
    parser = argparse.ArgumentParser(description="Started by the supervisor; not for people.")
    parser.add_argument("directory", type=Path)
    parser.add_argument("--lifeline", type=int)
    parser.add_argument("--heartbeat", type=int)
    parser.add_argument("--clock", type=float)
    given = parser.parse_args(arguments)
    if given.clock is not None:
        share(given.clock)
    signals = Signals()
    signals.heed()
    if given.lifeline is not None:
        end_with(given.lifeline)
    if given.heartbeat is not None:
        beat_into(given.heartbeat)
    try:
        home = Home.open(given.directory)
        event_log.set_up(home.config.log, name)
        event_log.change_level_on_signals(home.config.log)
        signal.pthread_sigmask(signal.SIG_UNBLOCK, _HEEDED_LATER)
        with Bell(home.directory, name) as bell:
            run(Child(home, name, bell, signals))
    except ServerError as error:
        log.error("%s", error, extra={"child": name})  # noqa: TRY400
        return WRONG_SETTINGS if isinstance(error, _FOR_PEOPLE) else 1
    except Exception:
        # To the log, in its form: what goes to the terminal may be seen by nobody.
        log.exception("this process cannot go on", extra={"child": name})
        return 1
    return 0


def read_again(home: Home) -> Reload | None:
    """What the settings' file has for a running process; None, and the log says why, if it makes no sense."""
    try:
        result = reloadable(home.config, home.read_settings())
    except ServerError as error:
        log.error("settings were not read again", extra={"reason": error})  # noqa: TRY400
        return None
    event_log.set_level(result.config.log.level)
    return result


def worker_name(cohort: str) -> str:
    """Of a cohort's worker: its process, its bell, its lease."""
    return f"worker-{cohort}"


def command_of(module: str, directory: Path, lifeline: int, heartbeat: int, *more: str) -> list[str]:
    """How the supervisor starts a child."""
    shared = ["--lifeline", str(lifeline), "--heartbeat", str(heartbeat), "--clock", repr(difference_seconds())]
    return [sys.executable, "-m", module, *more, str(directory), *shared]


def child_environment() -> dict[str, str]:
    """Children share the machine's cores: each works with one thread unless the operator says otherwise.

    gRPC tells why it refused a handshake at this level only, and reads it when it is imported (`handshakes`).
    """
    return {"OMP_NUM_THREADS": "1", "GRPC_VERBOSITY": "INFO", **os.environ}
