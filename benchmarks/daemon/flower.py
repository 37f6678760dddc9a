"""A round without training: our daemon, and Flower's SuperLink with SuperNodes over TLS, in one run on one machine.

    python -m benchmarks.daemon.flower [--devices 10] [--rounds 10] [--json]

Both train softmax regression's 7850 weights by FedAvg with all devices in every round, over TLS, with a database on
disk. Flower's TLS knows the server only; it has neither ledgers nor receipts, and its clients lie in processes that it
starts as it likes. Its environment is made once, under the user's cache folder.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import statistics
import subprocess
import tempfile
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from itertools import pairwise
from pathlib import Path
from typing import Any

from benchmarks.daemon import rounds as ours
from benchmarks.daemon.federation import NUM_WEIGHTS, free_ports, heed_signals
from benchmarks.speed import environments
from server_kit.daemon.authority import Authority

PATIENCE_SECONDS = 600.0
_NODES_SECONDS = 60.0
_APP = """
[project]
name = "idle"
version = "1.0.0"
license = "Apache-2.0"
dependencies = []
[tool.flwr.app]
publisher = "covey"
[tool.flwr.app.components]
serverapp = "idle.apps:server"
clientapp = "idle.apps:client"
[tool.flwr.app.config]
devices = {devices}
rounds = {rounds}
weights = {weights}
out = "{out}"
"""
_CONNECTION = """
[superlink]
default = "bench"
[superlink.bench]
address = "127.0.0.1:{port}"
root-certificates = "{authority}"
"""


class Deployment:
    """One SuperLink and its SuperNodes in a folder, until it is left."""

    def __init__(self, folder: Path, programs: Path, stack: ExitStack) -> None:
        self._folder, self._programs, self._stack = folder, programs, stack
        authority = Authority.create()
        shown = authority.issue_server(("localhost", "127.0.0.1"))
        for name, content in (
            ("ca.pem", authority.certificate_pem),
            ("server.pem", shown.certificate),
            ("server.key", shown.private_key),
        ):
            (folder / name).write_bytes(content)
        self._environment = {
            **environments.surroundings(),
            "FLWR_HOME": str(folder / "home"),
            "PATH": f"{programs}{os.pathsep}{os.environ['PATH']}",
        }

    def start(self, devices: int) -> None:
        """The server first, then its nodes."""
        port, *node_ports = free_ports(1 + devices)
        self._write("home/config.toml", _CONNECTION.format(port=port, authority=self._folder / "ca.pem"))
        at = ("--host", "127.0.0.1", "--port")
        link = ("flower-superlink", "--database", "state.db", "--disable-runtime-dependency-installation")
        self._stack.enter_context(self._running("link", *link, *at, str(port)))
        node = ("flower-supernode", "--root-certificates", "ca.pem", "--superlink", f"127.0.0.1:{port}")
        for number, own_port in enumerate(node_ports):
            self._stack.enter_context(self._running(f"node-{number}", *node, *at, str(own_port)))

    def run(self, devices: int, rounds: int) -> list[float]:
        """When each round of the app had ended; the first time is its start."""
        out = self._folder / "ended.json"
        self._write("app/pyproject.toml", _APP.format(devices=devices, rounds=rounds, weights=NUM_WEIGHTS, out=out))
        self._write("app/idle/__init__.py", "")
        shutil.copy(Path(__file__).with_name("flower_app.py"), self._folder / "app/idle/apps.py")
        self._submit()
        until = time.monotonic() + PATIENCE_SECONDS
        while not out.exists():
            if time.monotonic() > until:
                raise SystemExit(f"Flower's rounds did not end:\n{(self._folder / 'link.log').read_text()[-4000:]}")
            time.sleep(0.2)
        times: list[float] = json.loads(out.read_text())
        return times

    def _submit(self) -> None:
        """Hand in the app, as soon as the server listens."""
        until = time.monotonic() + _NODES_SECONDS
        command = [str(self._programs / "flwr"), "run", "app", "bench"]
        while True:
            told = subprocess.run(
                command, cwd=self._folder, env=self._environment, capture_output=True, text=True, check=False
            )
            if told.returncode == 0:
                return
            if time.monotonic() > until:
                raise SystemExit(f"Flower did not take the app:\n{told.stdout}{told.stderr}")
            time.sleep(1.0)

    def _write(self, name: str, text: str) -> None:
        path = self._folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)

    @contextmanager
    def _running(self, name: str, program: str, *arguments: str) -> Iterator[None]:
        tls = ("--ssl-ca-certfile", "ca.pem", "--ssl-certfile", "server.pem", "--ssl-keyfile", "server.key")
        command = [str(self._programs / program), *arguments, *tls]
        with (self._folder / f"{name}.log").open("wb") as log:
            # A session of its own: it starts further processes, which end with it.
            process = subprocess.Popen(
                command, cwd=self._folder, env=self._environment, stdout=log, stderr=log, start_new_session=True
            )
        try:
            yield
        finally:
            os.killpg(process.pid, 9)
            process.wait()


def measure(devices: int, rounds: int, folder: Path) -> dict[str, Any]:
    """Flower's deployment, from its start to its last round."""
    with tempfile.TemporaryDirectory() as name, ExitStack() as stack:
        deployment = Deployment(Path(name), environments.programs("flower", folder), stack)
        deployment.start(devices)
        times = deployment.run(devices, rounds + 1)
    # The first round also waits for nodes and starts their apps.
    turns = [1000 * (later - earlier) for earlier, later in pairwise(times)][1:]
    return {"rounds": len(turns), "median_ms": statistics.median(turns), "all_ms": turns}


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.daemon.flower", description=__doc__.splitlines()[0])
    parser.add_argument("--devices", type=int, default=10)
    parser.add_argument("--rounds", type=int, default=10)
    parser.add_argument("--json", action="store_true", help="print the measurements as JSON")
    parser.add_argument("--environments", type=Path, default=environments.default_folder(), help="where Flower lives")
    options = parser.parse_args()
    heed_signals()
    rows = {
        "covey": ours.measure(options.devices, options.rounds, fleets=1),
        "flower": measure(options.devices, options.rounds, options.environments),
    }
    ratio = rows["flower"]["median_ms"] / rows["covey"]["median_ms"]
    if options.json:
        print(json.dumps({**rows, "faster_by": ratio}))
        return
    for name, row in rows.items():
        print(f"{name:8}{row['rounds']:4} rounds of {options.devices} devices, median {row['median_ms']:8.0f} ms")
    print(f"covey is faster by {ratio:.0f}")


if __name__ == "__main__":
    main()
