"""How much of the house one synchronous round walks through: files, functions and rooms, in a daemon with two devices.

    python -m benchmarks.house.trace_round [--json]

Everything runs as it does elsewhere: `covey server run`, two device processes, mutual TLS on loopback. Every process
notes which functions of ours it calls in one round. A visit is a change of file along the first calls of functions:
what a reader turns to who follows the path once. This is a count, not a timing.
"""

from __future__ import annotations

import argparse
import json
import os
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

from server_kit import Server
from tests.server_kit.daemon.real_daemon import free_ports

ROOT = Path(__file__).resolve().parents[2]
TRACER = Path(__file__).with_name("tracer")
DEVICES, BEFORE = 2, 2
PATIENCE_SECONDS = 60.0
ASKING = ("Federation.invite", "Gateway.push")
"""From where a federation chooses devices to where a task is on its way to one."""

SETTINGS = """
[federation]
preset = "fedavg"
model = "server_kit.models:digits_softmax"
participants = 2

[privacy]
level = "device"

[policy]
epsilon = 1000000.0

[evaluation]
every = 0

[listen]
enrolment = "127.0.0.1:{ports[0]}"
gateway = "127.0.0.1:{ports[1]}"
status = "127.0.0.1:{ports[2]}"
"""

DEVICE = """
import sys
import time
from pathlib import Path
import numpy as np
from device_sdk import Device, PrivacyBudget

folder, state, server, invitation = Path(sys.argv[1]), *sys.argv[2:]
budget, keys = PrivacyBudget(epsilon=1_000_000, delta=1e-6), {"store": "file", "file": state + ".key"}
device = Device.open(state, server=server, budget=budget, keys=keys)
device.enrol(invitation)
for task in device.tasks():
    (folder / (Path(state).name + ".round")).write_text(str(task.round))
    while not (folder / f"go.{task.round}").exists():
        time.sleep(0.005)
    task.submit({name: np.zeros_like(weights) for name, weights in task.weights.items()})
    if (folder / "end").exists():
        break
"""


@dataclass(frozen=True)
class Walk:
    """What one round walked through."""

    files: int
    functions: int
    rooms: int
    calls: int
    visits_to_ask_one_device: int
    files_by_process: dict[str, int]


@dataclass(frozen=True)
class Call:
    """A call of one of our functions."""

    at: int
    thread: int
    file: str
    function: str


def main() -> None:
    """Trace a round and print what it came to."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--json", action="store_true")
    parser.add_argument("--files", action="store_true", help="also name every file")
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        calls = traced(Path(folder))
    walk = walked(calls)
    if arguments.json:
        print(json.dumps(asdict(walk), indent=2))
    else:
        print("\n".join(f"{name}: {value}" for name, value in asdict(walk).items()))
    if arguments.files:
        print("\n".join(sorted({call.file for each in calls.values() for call in each})))


def traced(folder: Path) -> dict[str, list[Call]]:
    """The calls of each process in one round."""
    switch = folder / "on"
    switch.write_bytes(b"\0")
    environment = {
        **os.environ,
        "COVEY_TRACE": str(folder),
        "COVEY_TRACE_ROOT": str(ROOT),
        "PYTHONPATH": f"{TRACER}{os.pathsep}{ROOT}",
    }
    server = Server.create(folder / "federation", SETTINGS.format(ports=free_ports(3)))
    daemon = [sys.executable, "-m", "covey", "server", "run", str(server.home.directory)]
    processes = [subprocess.Popen(daemon, env=environment, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)]
    try:
        enrolment = server.home.config.listen.enrolment
        _until(lambda: _listens(enrolment), "the server's start")
        for number, invitation in enumerate(server.invite(DEVICES)):
            words = [
                str(folder),
                str(folder / f"device-{number}"),
                str(server.config.listen.enrolment_address),
                invitation,
            ]
            processes.append(subprocess.Popen([sys.executable, "-c", DEVICE, *words], env=environment))
        _let_rounds_pass(folder, switch)
    finally:
        for process in reversed(processes):
            process.terminate()
        for process in processes:
            process.wait(30)
    names = {str(process.pid): f"device {number}" for number, process in enumerate(processes[1:])}
    return {names.get(path.stem, path.stem): _read(path) for path in sorted(folder.glob("*.calls"))}


def _let_rounds_pass(folder: Path, switch: Path) -> None:
    """Some rounds untraced; then one, from the answers of the last of them to the next task."""
    rounds = [folder / f"device-{number}.round" for number in range(DEVICES)]

    def all_in(number: int) -> bool:
        return all(path.exists() and path.read_text() == str(number) for path in rounds)

    for number in range(BEFORE):
        _until(lambda number=number: all_in(number), f"round {number}")  # type: ignore[misc]
        if number == BEFORE - 1:
            _turn(switch, b"\1")
        (folder / f"go.{number}").touch()
    _until(lambda: all_in(BEFORE), f"round {BEFORE}")
    _turn(switch, b"\0")
    (folder / "end").touch()
    (folder / f"go.{BEFORE}").touch()
    time.sleep(1.0)


def _turn(switch: Path, byte: bytes) -> None:
    """In place: others have the file mapped, and a file that is shorter for a moment would kill them."""
    with switch.open("r+b") as file:
        file.write(byte)


def _listens(address: str) -> bool:
    host, _, port = address.rpartition(":")
    try:
        with socket.create_connection((host, int(port)), timeout=1):
            return True
    except OSError:
        return False


def _until(condition: Callable[[], bool], what: str) -> None:
    end = time.monotonic() + PATIENCE_SECONDS
    while not condition():
        if time.monotonic() > end:
            raise TimeoutError(f"{what} did not come within {PATIENCE_SECONDS:g} s")
        time.sleep(0.01)


def _read(path: Path) -> list[Call]:
    words = (line.split(maxsplit=3) for line in path.read_text().splitlines())
    return [Call(int(at), int(thread), file, function) for at, thread, file, function in words]


def walked(calls: dict[str, list[Call]]) -> Walk:
    """The figures; of the two devices, which do the same, one counts."""
    counted = {name: each for name, each in calls.items() if name != "device 1"}
    everything = [call for each in counted.values() for call in each]
    return Walk(
        files=len({call.file for call in everything}),
        functions=len({(call.file, call.function) for call in everything}),
        rooms=len({call.file.rpartition("/")[0] for call in everything}),
        calls=len(everything),
        visits_to_ask_one_device=max(map(visits, counted.values()), default=0),
        files_by_process={name: len({call.file for call in each}) for name, each in counted.items()},
    )


def visits(calls: Sequence[Call]) -> int:
    """Changes of file along the first calls of functions, from choosing devices to the first task on its way."""
    first, last = ASKING
    start = next((index for index, call in enumerate(calls) if call.function == first), None)
    if start is None:
        return 0
    thread = calls[start].thread
    seen: set[tuple[str, str]] = set()
    files: list[str] = []
    for call in (call for call in calls[start:] if call.thread == thread):
        if (call.file, call.function) not in seen:
            seen.add((call.file, call.function))
            files += [] if files and files[-1] == call.file else [call.file]
        if call.function == last:
            break
    return len(files)


if __name__ == "__main__":
    main()
