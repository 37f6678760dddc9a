"""A device of the SDK as chaos sees it: a process that is killed and started again, and what its ledger must say."""

from __future__ import annotations

import hashlib
import json
import signal
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import IO, TYPE_CHECKING, Self

import numpy as np
from numpy.typing import NDArray

from privacy import Ledger
from privacy.ledger.entries import Released, Reserved
from privacy.packing import unpack_array
from tests.server_kit.daemon.real_daemon import COORDINATES, PATIENCE_SECONDS, ROOT, RealDaemon
from tests.server_kit.daemon.sdk_device import DIES, OPEN, opened, sent_to

if TYPE_CHECKING:
    from privacy.receipts import Receipt

_MANY = 10**6


@dataclass
class MortalDevice:
    """One home on disk, and the process that lives in it now. Use it as a context manager."""

    daemon: RealDaemon
    home: Path
    process: subprocess.Popen[str] | None = None
    _errors: IO[bytes] | None = field(default=None, repr=False)

    @property
    def server(self) -> str:
        return f"localhost:{self.daemon.ports[1]}"

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        if self.process is not None:
            self.process.kill()
            self._bury()

    def enrol(self) -> None:
        """With an invitation; the daemon runs."""
        sent_to(self.home).mkdir(parents=True)
        invited = json.loads(self.daemon.covey("invite", "--json").stdout)["invitations"][0]
        with opened(self.home, self.server) as device:
            device.enrol(invited, timeout_seconds=PATIENCE_SECONDS)

    def start(self, rounds: int = _MANY, way: str = "") -> None:
        program = [sys.executable, "-m", "tests.server_kit.daemon.sdk_device"]
        self._errors = (self.home / "errors").open("ab")
        self.process = subprocess.Popen(
            [*program, str(self.home), self.server, str(rounds), way],
            cwd=ROOT,
            stdout=subprocess.PIPE,
            stderr=self._errors,
            text=True,
        )

    def kill(self) -> None:
        """kill -9, once it takes part: that it can be killed while it imports is no news."""
        assert self.process is not None
        assert self.process.stdout is not None
        assert self.process.stdout.readline() == f"{OPEN}\n", self._said()
        self.process.kill()
        assert self._bury() == -signal.SIGKILL, self._said()

    def die_before_sending(self) -> None:
        """A life that ends with a release on disk of which nobody else knows."""
        self.start(way=DIES)
        assert self._bury() == -signal.SIGKILL, self._said()

    def end(self, rounds: int = 2, way: str = "") -> None:
        """A last life, in which all that was begun is brought to its end.

        Of two acknowledgements one may be for an update that was counted before, and not noted; the other is new.
        """
        self.start(rounds, way)
        assert self._bury() == 0, self._said()

    def _bury(self) -> int:
        assert self.process is not None
        assert self._errors is not None
        self.process.communicate(timeout=PATIENCE_SECONDS)
        self._errors.close()
        code, self.process = self.process.returncode, None
        return code

    def _said(self) -> str:
        return (self.home / "errors").read_text()

    # What must be true

    def receipts(self) -> list[Receipt]:
        """What the server has of this ledger, in its order."""
        with Ledger.read(self.home / "state") as ledger:
            shown = [bytes.fromhex(excerpt.device_key) for excerpt in ledger.excerpts.values()]
        return [receipt for key in shown for receipt in self.daemon.store.receipts_of(key)]

    def sent(self) -> dict[str, NDArray[np.int64]]:
        """By task, the numbers that went out, which were the same however often they did."""
        found: dict[str, NDArray[np.int64]] = {}
        for path in sent_to(self.home).iterdir():
            task, _, payload_hash = path.name.partition(" ")
            if not payload_hash:
                continue  # a draft that was never sent
            content = path.read_bytes()
            assert hashlib.sha256(content).hexdigest() == payload_hash
            assert task not in found, "other bytes for the same task"
            found[task] = unpack_array(content, COORDINATES, len(content) // COORDINATES)
        return found

    def check_ledger(self, receipts: Sequence[Receipt]) -> None:
        """The ledger verifies; what it released is what the server has receipts for; all of it was paid for, once."""
        with Ledger.read(self.home / "state") as ledger:
            ledger.verify()
            entries = list(ledger.entries())
        paid = {entry.sequence: entry.event for entry in entries if isinstance(entry.event, Reserved)}
        released = [entry.event for entry in entries if isinstance(entry.event, Released)]
        requests = [event.request for event in paid.values()]
        assert len(set(requests)) == len(requests), "a task was paid for twice"
        answered = [event.reserve for event in released]
        assert len(set(answered)) == len(answered), "a spend was answered twice"
        assert set(answered) <= set(paid), "a release was not paid for"
        hashes = [event.payload_hash for event in released]
        assert len(set(hashes)) == len(hashes), "the same noise went out twice"
        assert hashes == [receipt.payload_hash for receipt in receipts], "ledger and receipts disagree"
        with opened(self.home, self.server) as device:
            assert set(device.status().rounds) <= {"uploaded"}, "something was not brought to its end"
