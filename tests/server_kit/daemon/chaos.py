"""A daemon at work while its processes, its devices and its wires are killed and cut; and what must be true afterwards.

Some devices are threads that keep their outbox in memory, and each of their updates is one step in a coordinate of its
own. Others are processes of the SDK with vault, journal and ledger on disk; their updates are noise that is put aside
before it is sent. So the sum of all that was counted is known to the last step.
"""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path
from random import Random

import numpy as np
from numpy.typing import NDArray

from server_kit.store.protocol import FoldState, TaskState
from tests.server_kit.daemon.cutting_proxy import CuttingProxy
from tests.server_kit.daemon.mortal_device import MortalDevice
from tests.server_kit.daemon.real_daemon import COORDINATES, RealDaemon, free_ports, wait_until
from tests.server_kit.daemon.scripted_fleet import Fleet

VICTIMS = {
    "worker_process": 4,
    "coordinator_process": 4,
    "server_kit.observer": 1,
    "supervisor": 2,
    "group": 1,
    "wires": 2,
    "device": 6,
}
DEVICES = 6
MORTAL_DEVICES = 2
DEADLINE_SECONDS = 30.0
"""A device that is killed is back before; were it late, it would decline, and be left alone for a minute."""
_LONGEST_AIM_SECONDS = 0.3


class Chaos:
    """One federation under fire."""

    def __init__(
        self, daemon: RealDaemon, proxy: CuttingProxy, seed: int, mortals: Sequence[MortalDevice] = ()
    ) -> None:
        self.daemon, self.proxy, self.chance, self.mortals = daemon, proxy, Random(seed), mortals
        self.fleet = Fleet(daemon, proxy.address)
        self.hits: Counter[str] = Counter()

    def run(self, hits: int) -> None:
        self.daemon.run()
        self.fleet.begin(DEVICES)
        self.go_on(by=2)
        for device in self.mortals:
            device.enrol()
            device.start()
        # Everyone's turn comes once, and then whoever it meets.
        first = self.chance.sample(list(VICTIMS), len(VICTIMS))
        while sum(self.hits.values()) < hits:
            victim = first[-1] if first else self.chance.choices(list(VICTIMS), list(VICTIMS.values()))[0]
            if self.strike(victim):
                self.hits[victim] += 1
                first = first[:-1]
            # Sometimes at once again, sometimes after a while.
            self.go_on(by=self.chance.choice([0, 0, 1, 5]))
        self.go_on(by=5)
        self.settle()

    def strike(self, victim: str) -> bool:
        match victim:
            case "wires":
                self.proxy.cut()
                return True
            case "group":
                self.daemon.kill_group()
                self.daemon.run()
                return True
            case "supervisor":
                # Its children end by themselves; the new one does not wait for that.
                assert self.daemon.process is not None
                self.daemon.process.kill()
                self.daemon.wait()
                self.daemon.run()
                return True
            case "device":
                self.strike_device()
                return True
            case _:
                return self.daemon.kill(victim)

    def strike_device(self) -> None:
        device = self.chance.choice(self.mortals)
        time.sleep(self.chance.uniform(0, _LONGEST_AIM_SECONDS))
        device.kill()
        device.start()

    def go_on(self, by: int) -> None:
        """Devices are thanked for so many more updates, without help."""
        goal = len(self.fleet.thanked) + by
        wait_until(lambda: len(self.fleet.thanked) >= goal or bool(self.fleet.failures), f"{by} more updates")
        assert not self.fleet.failures, self.fleet.failures

    def settle(self) -> None:
        """Devices bring what they have begun to an end, and workers fold what has arrived."""
        for device in self.mortals:
            device.kill()
            device.end()
        self.fleet.end()
        store = self.daemon.store
        wait_until(lambda: not store.tasks(None, TaskState.ARRIVED), "the folding of what has arrived")
        wait_until(lambda: not store.folds(FoldState.DONE), "the digestion of the last step")

    def check(self) -> None:
        """Every thanked update was counted once or is late, and nothing else was counted; all ledgers agree."""
        theirs = {device.home: device.receipts() for device in self.mortals}
        for device in self.mortals:
            device.check_ledger(theirs[device.home])
        known = [header.receipt for header in self.fleet.thanked.values()]
        known += [receipt.to_json() for receipts in theirs.values() for receipt in receipts]
        assert sorted(receipt.to_json() for receipt in self.daemon.store.receipts()) == sorted(known)
        self.check_sum(self.daemon.folded())

    def check_sum(self, model: NDArray[np.float64]) -> None:
        """Each update that was folded is in the model once."""
        total = np.zeros(COORDINATES)
        for place, header in self.fleet.thanked.items():
            total[place] += self.was_folded(header.task)
        for device in self.mortals:
            for task, numbers in device.sent().items():
                total += numbers * self.was_folded(task)
        assert np.array_equal(model, total), "an update was lost or counted twice"

    def was_folded(self, name: str) -> bool:
        task = self.daemon.store.task(name)
        assert task is not None, "a task is gone"
        assert task.state in (TaskState.FOLDED, TaskState.LATE), f"a thanked update is {task.state}"
        return task.state is TaskState.FOLDED


@contextmanager
def survived(directory: Path, hits: int, seed: int) -> Iterator[Chaos]:
    """Chaos after so many hits, checked; its daemon still runs."""
    ports = free_ports(3)
    with ExitStack() as stack:
        proxy = stack.enter_context(CuttingProxy(ports[0]))
        daemon = RealDaemon(
            directory / "federation",
            directory / "log",
            deadline_seconds=DEADLINE_SECONDS,
            ports=ports,
            public_gateway=proxy.address,
        )
        stack.enter_context(daemon)
        homes = [directory / f"device-{number}" for number in range(MORTAL_DEVICES)]
        mortals = [stack.enter_context(MortalDevice(daemon, home)) for home in homes]
        chaos = Chaos(daemon, proxy, seed, mortals)
        chaos.run(hits)
        chaos.check()
        yield chaos
