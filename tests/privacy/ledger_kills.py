"""Lives and deaths of a device: start it, kill it at a point or at a random moment, look at what is left."""

from __future__ import annotations

import os
import random
import signal
import time
from pathlib import Path

from privacy.keys import LedgerKeys
from tests.mortal import ForkingProcess
from tests.privacy.ledger_child import Outbox, violations


class Nursery(ForkingProcess):
    """Starts devices, one at a time. They are forked, so that a life costs milliseconds."""

    def __init__(self) -> None:
        super().__init__("tests.privacy.ledger_child")

    def start(self, home: Path, how: str, fault: str, count: int) -> int:
        """Begin a life; returns its process id."""
        assert self._process.stdin is not None
        self._process.stdin.write(f"{home}\t{how}\t{fault}\t{count}\n")
        self._process.stdin.flush()
        return self._next_number()

    def end(self) -> int:
        """How the life ended (-9: killed)."""
        return self._next_number()

    def _next_number(self) -> int:
        assert self._process.stdout is not None
        return int(self._process.stdout.readline())


class Device:
    """The same device through all its lives."""

    def __init__(self, nursery: Nursery, home: Path) -> None:
        home.mkdir(exist_ok=True)
        self._nursery, self._home = nursery, home
        self._keys = LedgerKeys.create_file(home / "keys")
        self.outbox = Outbox(home / "sent")

    def live(self, how: str, fault: str = "", count: int = 0) -> int:
        """One life; returns how it ended (-9: killed)."""
        self._nursery.start(self._home, how, fault, count)
        return self._nursery.end()

    def live_and_be_killed(self, how: str, moments: random.Random) -> int:
        """One life that ends at a random moment: one in four while it begins, the others once it releases."""
        size = self._num_sent_bytes()
        process = self._nursery.start(self._home, how, "", 0)
        if moments.random() < 0.75:
            deadline = time.monotonic() + 30
            while self._num_sent_bytes() == size and time.monotonic() < deadline:
                time.sleep(0.0005)
        time.sleep(moments.uniform(0, 0.01))
        os.kill(process, signal.SIGKILL)
        return self._nursery.end()

    def violations(self) -> list[str]:
        return violations(self._home / "state", self._keys, self.outbox)

    def _num_sent_bytes(self) -> int:
        return self.outbox.path.stat().st_size if self.outbox.path.exists() else 0
