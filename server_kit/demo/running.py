"""The demo from an empty folder to its results: everything is started, watched, measured and stopped again."""

from __future__ import annotations

import json
import socket
import sys
import time
from contextlib import ExitStack, suppress
from dataclasses import astuple, dataclass
from typing import TYPE_CHECKING, Protocol

from server_kit.commands.inviting import invite
from server_kit.commands.opened import Opened
from server_kit.daemon.federation_home import Home
from server_kit.demo.data import deal
from server_kit.demo.errors import DemoFailed
from server_kit.demo.measuring import Examiner, OneModel
from server_kit.demo.processes import Interrupts, Processes
from server_kit.demo.progress import Progress
from server_kit.demo.terms import DELTA, EPSILON, HISTOGRAM_EPSILON, MODEL, PURE_EPSILON, Ports, Terms
from server_kit.models import initial_model

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

    from server_kit.demo.data import DeviceRecords
    from server_kit.demo.progress import Glance

SERVER = "server"
_LOOK_SECONDS = 0.5
_START_SECONDS = 120.0
_STILL_SECONDS = 180.0
"""Without a new model for so long, something is wrong."""


@dataclass(frozen=True)
class Folder:
    """Where the demo leaves everything."""

    path: Path

    @property
    def federation(self) -> Path:
        return self.path / "federation"

    @property
    def devices(self) -> Path:
        """One folder for each device, its ledger in it; beside it its key and its name at the server."""
        return self.path / "devices"

    @property
    def records(self) -> Path:
        return self.path / "records"

    @property
    def logs(self) -> Path:
        return self.path / "logs"

    @property
    def report(self) -> Path:
        return self.path / "report.html"

    @property
    def results(self) -> Path:
        """The same as numbers, for programs."""
        return self.path / "results.json"

    def make(self) -> None:
        for folder in (self.devices, self.records, self.logs):
            folder.mkdir(parents=True)
            folder.chmod(0o700)


@dataclass(frozen=True, eq=False)
class Results:
    """What the demo came to."""

    terms: Terms
    devices: Sequence[DeviceRecords]
    progress: Progress
    one_model: OneModel
    last: Glance


class Watch(Protocol):
    """Shows what happens."""

    began_at: float

    def doing(self, what: str) -> None:
        """Before there is anything to see."""

    def seen(self, glance: Glance, progress: Progress, one_model: OneModel) -> None:
        """At every look."""


class Demo:
    """One run, from start to end."""

    def __init__(self, terms: Terms, folder: Folder, watch: Watch) -> None:
        self._terms, self._folder, self._watch = terms, folder, watch
        self._devices = deal(terms.devices, terms.kinds)

    def run(self) -> Results:
        """Until the last round; whatever ends it, nothing is left running."""
        self._folder.make()
        with Interrupts() as interrupts, Processes(interrupts, self._folder.logs) as processes, ExitStack() as stack:
            self._watch.doing("making a federation: authority, keys, settings, database")
            ports = free_ports()
            self._start_devices(processes)
            home = Home.create(self._folder.federation, self._terms.settings(ports))
            store = home.open_store()
            stack.callback(store.close)
            federation = Opened(home, store)
            self._watch.doing("starting the server")
            check_free(ports)
            processes.start(SERVER, [sys.executable, "-m", "covey", "server", "run", str(home.directory)], tied=True)
            self._await_server(processes, ports)
            self._invite(federation, processes)
            return self._watched(federation, processes)

    def _start_devices(self, processes: Processes) -> None:
        """They load their code while the server is made; each waits to be told where to enrol."""
        for device in self._devices:
            records = self._folder.records / f"{device.name}.npz"
            device.train.save(records)
            command = [sys.executable, "-m", "server_kit.demo.device_process", str(records)]
            processes.start(device.name, [*command, str(self._folder.devices / device.name)], tied=True)

    def _invite(self, federation: Opened, processes: Processes) -> None:
        self._watch.doing("inviting devices")
        invited = invite(federation, len(self._devices), days=1)
        for device, invitation in zip(self._devices, invited.invitations, strict=True):
            asked = {
                "server": invited.server,
                "invitation": invitation,
                "epsilon": EPSILON,
                "delta": DELTA,
                "pure_epsilon": PURE_EPSILON,
                "histogram_epsilon": HISTOGRAM_EPSILON,
            }
            pipe = processes.started[device.name].stdin
            if pipe is not None:
                with suppress(BrokenPipeError):  # it has ended, which the next look finds
                    pipe.write(json.dumps(asked).encode() + b"\n")
                    pipe.flush()

    def _await_server(self, processes: Processes, ports: Ports) -> None:
        until = time.monotonic() + _START_SECONDS
        while time.monotonic() < until:
            if SERVER in processes.ended():
                raise DemoFailed(f"the server ended at once; {processes.log(SERVER)} says why; everything was stopped")
            with socket.socket() as knocking:
                if knocking.connect_ex(("127.0.0.1", ports.enrolment)) == 0:
                    return
            time.sleep(0.1)
        raise DemoFailed(
            f"the server did not listen within {_START_SECONDS:.0f} seconds; its log is {processes.log(SERVER)}; "
            "everything was stopped"
        )

    def _watched(self, federation: Opened, processes: Processes) -> Results:
        model = initial_model(MODEL, federation.home.config.federation.seed)
        start = {name: view.numpy() for name, view in model.layout.views(model.weights).items()}
        examiner = Examiner(self._devices)
        one_model = OneModel(self._devices, start, self._terms, examiner)
        states = [self._folder.devices / device.name for device in self._devices]
        progress = Progress(federation, model.layout, examiner, states, self._watch.began_at)
        moved_at, before = time.monotonic(), -1
        while True:
            self._check(processes, moved_at)
            glance = progress.look()
            if len(progress.points) > before:
                moved_at, before = time.monotonic(), len(progress.points)
            self._watch.seen(glance, progress, one_model)
            if glance.leaves and glance.round >= self._terms.rounds:
                break
            if len(one_model.rounds) <= self._terms.rounds:
                one_model.train_a_round()
            else:
                time.sleep(_LOOK_SECONDS)
        self._watch.doing("stopping, and drawing the report")
        while len(one_model.rounds) <= self._terms.rounds:
            one_model.train_a_round()
        progress.note_spend(glance.round)
        return Results(self._terms, self._devices, progress, one_model, progress.look())

    def _check(self, processes: Processes, moved_at: float) -> None:
        ended = processes.ended()
        if ended:
            raise DemoFailed(
                f"{ended[0]} ended before the demo did; {processes.log(ended[0])} says why; everything was stopped"
            )
        if time.monotonic() - moved_at > _STILL_SECONDS:
            raise DemoFailed(
                f"nothing has happened for {_STILL_SECONDS:.0f} seconds; {processes.log(SERVER)} may say why; "
                "everything was stopped"
            )


def free_ports() -> Ports:
    """Three ports that nobody listens on now."""
    with socket.socket() as one, socket.socket() as two, socket.socket() as three:
        sockets = (one, two, three)
        for each in sockets:
            each.bind(("127.0.0.1", 0))
        return Ports(*(each.getsockname()[1] for each in sockets))


def check_free(ports: Ports) -> None:
    """Another program may have been faster than the server, and would answer in its place."""
    for port in astuple(ports):
        with socket.socket() as tried:
            # As servers do: a port that somebody has just left is free.
            tried.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            try:
                tried.bind(("127.0.0.1", port))
            except OSError as error:
                raise DemoFailed(
                    f"port {port} of this machine is taken by another program; run covey demo again, which chooses "
                    "other ports; everything was stopped"
                ) from error
