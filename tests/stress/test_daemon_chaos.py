"""The daemon under fire for as long as it takes: processes, wires, the disk, and devices with real ledgers."""

from __future__ import annotations

import json
import os
import subprocess
import threading
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path

import numpy as np
import pytest

from device_sdk.config import KeySettings, KeyStoreKind
from device_sdk.device import Device
from privacy import PrivacyBudget
from privacy.ledger.entries import Released, Reserved
from tests.device_sdk.runtime.federation import entries_of
from tests.server_kit.daemon.chaos import VICTIMS, Chaos, survived
from tests.server_kit.daemon.cutting_proxy import CuttingProxy
from tests.server_kit.daemon.fault_world import WORLDS
from tests.server_kit.daemon.real_daemon import RealDaemon, wait_until
from tests.server_kit.daemon.test_fault_simulation import lived

pytestmark = pytest.mark.stress


@pytest.mark.parametrize("seed", range(4))
def test_two_hundred_hits_in_all_lose_nothing_and_double_nothing(tmp_path, seed):
    with survived(tmp_path, hits=50, seed=seed) as chaos:
        assert sum(chaos.hits.values()) == 50
        assert set(chaos.hits) == set(VICTIMS)


@pytest.mark.parametrize("name", WORLDS)
def test_no_update_is_lost_or_doubled_on_a_hundred_seeds(tmp_path, name):
    for seed in range(1000, 1100):
        lived(tmp_path, name, seed, deeds=200)


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    """A file system of its own with room for little."""
    disk = tmp_path / "disk"
    disk.mkdir()
    mounted = subprocess.run(["mount", "-t", "tmpfs", "-o", "size=48m", "tmpfs", str(disk)], check=False)
    if mounted.returncode:
        pytest.skip("a small disk cannot be mounted here, so what a daemon does on a full one is NOT tested")
    yield disk
    subprocess.run(["umount", "--lazy", str(disk)], check=True)


def test_a_full_disk_loses_nothing_and_the_daemon_goes_on_when_there_is_room(tmp_path, small_disk):
    daemon = RealDaemon(small_disk / "federation", tmp_path / "log")
    with daemon, CuttingProxy(daemon.ports[0]) as proxy:
        chaos = Chaos(daemon, proxy, seed=0)
        daemon.run()
        chaos.fleet.begin(4)
        chaos.go_on(by=8)
        for _ in range(3):
            fill(small_disk / "ballast")
            wait_for_more(partial(complaints, daemon), "complaints")
            (small_disk / "ballast").unlink()
            chaos.go_on(by=4)
        chaos.settle()
        chaos.check()


def complaints(daemon: RealDaemon) -> int:
    return daemon.said().count('"level": "error"')


def wait_for_more(count: Callable[[], int], what: str) -> None:
    before = count()
    wait_until(lambda: count() > before, f"more {what}")


def fill(ballast: Path) -> None:
    """Leave no room at all."""
    with ballast.open("wb", buffering=0) as file:
        for size in (1 << 20, 1 << 12, 1):
            try:
                while file.write(b"x" * size) == size:
                    pass
            except OSError:
                continue


BUDGET = PrivacyBudget(epsilon=50, delta=1e-6)
ROUNDS = 6


def test_ledgers_of_devices_and_receipts_of_the_server_agree_after_kills(tmp_path):
    with RealDaemon(tmp_path / "federation", tmp_path / "log", noise="8") as daemon:
        daemon.run()
        wait_until(daemon.is_open, "an open gateway")
        done: list[int] = []
        threads = [
            threading.Thread(target=take_part, args=(daemon, tmp_path / str(number), done)) for number in range(2)
        ]
        for thread in threads:
            thread.start()
        for victim in ("coordinator_process", "worker_process") * 2:
            wait_for_more(partial(len, done), "rounds")
            daemon.kill(victim)
        for thread in threads:
            thread.join(600)
        counted: dict[str, list[str]] = {}
        for receipt in daemon.store.receipts():
            counted.setdefault(receipt.ledger, []).append(receipt.payload_hash)
        released = [ledger_of(tmp_path / str(number) / "state") for number in range(2)]
        assert sorted(released) == sorted(counted.values())
        assert len(done) == 2 * ROUNDS


def take_part(daemon: RealDaemon, home: Path, done: list[int]) -> None:
    """A device of the SDK, with a ledger, that trains nothing."""
    home.mkdir()
    keys = KeySettings(KeyStoreKind.FILE, home / "device.key")
    invited = json.loads(daemon.covey("invite", "--json").stdout)["invitations"][0]
    address = f"localhost:{daemon.ports[1]}"
    with Device.open(home / "state", server=address, budget=BUDGET, keys=keys) as device:
        device.enrol(invited)
        for task in device.tasks(rounds=ROUNDS, timeout_seconds=600):
            task.submit({name: np.zeros_like(part) for name, part in task.weights.items()})
            done.append(os.getpid())


def ledger_of(state: Path) -> list[str]:
    """What a device has released, all of it paid for."""
    events = entries_of(state)
    released = [event.payload_hash for event in events if isinstance(event, Released)]
    assert len(released) == sum(isinstance(event, Reserved) for event in events)
    return released
