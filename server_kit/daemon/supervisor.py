"""The supervisor: starts coordinator, workers and observer, and starts again whoever dies or hangs. It keeps nothing.

It holds one end of a pipe; when it is gone, however it went, its children notice and end. So there is never a daemon
without a supervisor, and `covey server run` goes on where the last one was. A child that gives no sign of life is
killed; its lease has a number, so whatever it had under way is refused when its successor has begun.
"""

from __future__ import annotations

import logging
import os
import signal
import subprocess
import time
from contextlib import closing, suppress
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from server_kit import event_log
from server_kit.config import check_policy
from server_kit.daemon.child import (
    WRONG_SETTINGS,
    Signals,
    child_environment,
    command_of,
    not_before_heeded,
    read_again,
    worker_name,
)
from server_kit.daemon.heartbeat import Heartbeat, Ticks
from server_kit.errors import StoreError
from server_kit.metrics import Meter
from server_kit.store.bell import Bell

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable
    from types import FrameType

    from server_kit.daemon.federation_home import Home
    from server_kit.store.protocol import Store

log = logging.getLogger("covey.server")

NAME = "supervisor"
GRACE_SECONDS = 8.0
"""For children to stop in good order; the daemon itself has ten."""
_TICK_SECONDS = 0.5
_STEADY_SECONDS = 10.0
_LONGEST_PAUSE_SECONDS = 30.0


@dataclass
class Managed:
    """One child, and how often it has failed lately."""

    name: str
    module: str
    arguments: tuple[str, ...] = ()
    process: subprocess.Popen[bytes] | None = None
    heartbeat: Heartbeat | None = None
    started_at: float = 0.0
    starts: int = 0
    failures: int = 0

    @property
    def pause_seconds(self) -> float:
        """Before the next start: none after the first failure, longer after each that follows soon."""
        return 0.0 if self.failures < 2 else min(_LONGEST_PAUSE_SECONDS, 0.25 * 2**self.failures)

    @property
    def may_start(self) -> bool:
        return self.process is None and time.monotonic() >= self.started_at + self.pause_seconds


@dataclass
class Supervisor:
    """Runs one federation's daemon."""

    home: Home
    store: Store
    meter: Meter = field(default_factory=lambda: Meter(NAME))
    signals: Signals = field(default_factory=Signals)
    children: dict[str, Managed] = field(default_factory=dict)
    exit_code: int = 0
    _ticks: Ticks = field(default_factory=Ticks)

    def run(self) -> int:
        """Until a signal says stop; then 0, or 1 if the settings make no sense."""
        self.signals.heed()
        for number in (signal.SIGUSR1, signal.SIGUSR2):
            signal.signal(number, self._pass_on)
        self._lifeline = os.pipe()
        for name in ("coordinator", "observer"):
            module = "server_kit.observer" if name == "observer" else "server_kit.daemon.coordinator_process"
            self.children[name] = Managed(name, module)
        try:
            with Bell(self.home.directory, NAME) as bell, self.meter.publishing(self.home.run):
                while not self.signals.stop.is_set():
                    self._tick()
                    bell.wait(_TICK_SECONDS)
        finally:
            self._stop()
        return self.exit_code

    def _tick(self) -> None:
        self.meter.beat()
        self._kill_the_hung()
        self._bury()
        self._match_workers()
        for child in self.children.values():
            if child.may_start and not self.signals.stop.is_set():
                self._start(child)
        if self.signals.reload.is_set():
            self.signals.reload.clear()
            read_again(self.home)
            self._signal_all(signal.SIGHUP)

    def _match_workers(self) -> None:
        """One worker for each cohort that trains."""
        try:
            wanted = {worker_name(record.cohort): record.cohort for record in self.store.cohorts()}
        except StoreError as error:
            log.warning("the store cannot be read; workers stay as they are", extra={"reason": error})
            return
        for name, cohort in wanted.items():
            if name not in self.children:
                self.children[name] = Managed(name, "server_kit.daemon.worker_process", (cohort,))
        for name in [name for name, child in self.children.items() if child.arguments and name not in wanted]:
            # It notices by itself that its cohort trains no more.
            if self.children[name].process is None:
                del self.children[name]

    def _start(self, child: Managed) -> None:
        reading, _ = self._lifeline
        child.heartbeat = heartbeat = Heartbeat()
        command = command_of(child.module, self.home.directory, reading, heartbeat.writing, *child.arguments)
        with not_before_heeded():
            pipes = (reading, heartbeat.writing)
            child.process = subprocess.Popen(command, pass_fds=pipes, env=child_environment())
        heartbeat.handed_over()
        child.started_at = time.monotonic()
        child.starts += 1
        log.info("started a process", extra={"child": child.name, "pid": child.process.pid})

    def _kill_the_hung(self) -> None:
        """Stopped or stuck, a child would hold its lease and its port for ever."""
        passed_seconds, patience_seconds = self._ticks.passed_seconds(), self.home.config.supervisor.hung_seconds
        for child in self.children.values():
            if child.process is None or child.heartbeat is None or child.process.poll() is not None:
                continue
            child.heartbeat.look(passed_seconds)
            if child.heartbeat.has_stopped(patience_seconds):
                silent = round(child.heartbeat.silent_seconds)
                fields = {"child": child.name, "pid": child.process.pid, "seconds": silent}
                log.error("a process hangs and is killed", extra=fields)
                # Not SIGTERM: one that is stopped would never hear it.
                child.process.kill()

    def _bury(self) -> None:
        """Note who has died, and plan their return."""
        for child in list(self.children.values()):
            if child.process is None or (code := child.process.poll()) is None:
                continue
            child.process = None
            if child.heartbeat is not None:
                child.heartbeat.close()
                child.heartbeat = None
            if time.monotonic() - child.started_at > _STEADY_SECONDS:
                child.failures = 0
            if code == 0:
                continue
            child.failures += 1
            self.meter.count("covey_restarts_total", process=child.name.partition("-")[0])
            # Later on an observer is tried again: a federation trains without its dashboard too.
            is_needed = child.name == "coordinator" or (child.name == "observer" and child.starts == 1)
            if code == WRONG_SETTINGS and is_needed and child.failures == 1:
                # Its own log line has said why.
                self.exit_code = 1
                self.signals.stop.set()
                return
            log.warning("a process ended and is started again", extra={"child": child.name, "code": code})

    def _stop(self) -> None:
        """Ask everyone to stop; whoever has not after a while, or at a second signal, is killed."""
        self.signals.stop.clear()
        self._signal_all(signal.SIGTERM)
        until = time.monotonic() + GRACE_SECONDS
        while self._alive() and time.monotonic() < until and not self.signals.stop.is_set():
            time.sleep(0.02)
        for child in self.children.values():
            if child.process in self._alive():
                log.warning("a process has not stopped in time and is killed", extra={"child": child.name})
        self._signal_all(signal.SIGKILL)
        for process in self._alive():
            process.wait()
        for descriptor in self._lifeline:
            os.close(descriptor)
        log.info("stopped")

    def _pass_on(self, number: int, _: FrameType | None) -> None:
        """The level of the log is everyone's."""
        event_log.set_level("debug" if number == signal.SIGUSR1 else self.home.config.log.level)
        self._signal_all(signal.Signals(number))

    def _alive(self) -> list[subprocess.Popen[bytes]]:
        found: Iterable[subprocess.Popen[bytes] | None] = (child.process for child in self.children.values())
        return [process for process in found if process is not None and process.poll() is None]

    def _signal_all(self, number: signal.Signals) -> None:
        for process in self._alive():
            with suppress(ProcessLookupError):
                process.send_signal(number)


def run(home: Home, announce: Callable[[], None] = lambda: None) -> int:
    """Be the daemon of this federation, in the foreground; `announce` is called when nothing speaks against it."""
    event_log.set_up(home.config.log, NAME)
    check_policy(home.config)
    with home.running(), closing(home.open_store()) as store:
        announce()
        return Supervisor(home, store).run()
