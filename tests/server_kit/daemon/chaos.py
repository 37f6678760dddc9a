"""A daemon at work while its processes are killed and its wires are cut; and what must be true afterwards."""

from __future__ import annotations

from collections import Counter
from pathlib import Path
from random import Random

from server_kit.store.protocol import FoldState, TaskState
from tests.server_kit.daemon.cutting_proxy import CuttingProxy
from tests.server_kit.daemon.real_daemon import RealDaemon, wait_until
from tests.server_kit.daemon.scripted_fleet import Fleet

VICTIMS = {
    "worker_process": 4,
    "coordinator_process": 4,
    "server_kit.observer": 1,
    "supervisor": 2,
    "group": 1,
    "wires": 2,
}
DEVICES = 6


class Chaos:
    """One federation under fire."""

    def __init__(self, daemon: RealDaemon, proxy: CuttingProxy, seed: int) -> None:
        self.daemon, self.proxy, self.chance = daemon, proxy, Random(seed)
        self.fleet = Fleet(daemon, proxy.address)
        self.hits: Counter[str] = Counter()

    def run(self, hits: int) -> None:
        self.daemon.run()
        self.fleet.begin(DEVICES)
        self.go_on(by=2)
        while sum(self.hits.values()) < hits:
            victim = self.chance.choices(list(VICTIMS), list(VICTIMS.values()))[0]
            if self.strike(victim):
                self.hits[victim] += 1
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
            case _:
                return self.daemon.kill(victim)

    def go_on(self, by: int) -> None:
        """Devices are thanked for so many more updates, without help."""
        goal = len(self.fleet.thanked) + by
        wait_until(lambda: len(self.fleet.thanked) >= goal or bool(self.fleet.failures), f"{by} more updates")
        assert not self.fleet.failures, self.fleet.failures

    def settle(self) -> None:
        """Devices bring what they have begun to an end, and workers fold what has arrived."""
        self.fleet.end()
        store = self.daemon.store
        wait_until(lambda: not store.tasks(None, TaskState.ARRIVED), "the folding of what has arrived")
        wait_until(lambda: not store.folds(FoldState.DONE), "the digestion of the last step")

    def check(self) -> None:
        """Every thanked update was counted once or is late, and nothing else was counted."""
        store, thanked = self.daemon.store, self.fleet.thanked
        states = {place: store.task(header.task) for place, header in thanked.items()}
        ends = {place: task.state for place, task in states.items() if task is not None}
        assert len(ends) == len(thanked), "a task is gone"
        assert set(ends.values()) <= {TaskState.FOLDED, TaskState.LATE}
        expected = {place: 1.0 for place, state in ends.items() if state is TaskState.FOLDED}
        assert self.daemon.folded() == expected
        receipts = sorted(receipt.to_json() for receipt in store.receipts())
        assert receipts == sorted(header.receipt for header in thanked.values())


def survived(directory: Path, hits: int, seed: int) -> Chaos:
    """Chaos after so many hits, checked."""
    daemon = RealDaemon(directory / "federation", directory / "log")
    with daemon, CuttingProxy(daemon.ports[0]) as proxy:
        chaos = Chaos(daemon, proxy, seed)
        chaos.run(hits)
        chaos.check()
        return chaos
