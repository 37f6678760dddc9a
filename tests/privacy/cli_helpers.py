"""What the tests of `covey privacy` share: real devices, a real server desk, and the command run in this process."""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

import covey
from privacy.budget import PrivacyBudget
from privacy.keys import LedgerKeys, SigningKey
from privacy.ledger import Ledger
from privacy.mechanisms import ClippedUpdate, LabelHistogram
from privacy.randomness import NoiseSource
from privacy.receipt_desk import MemoryShelf, ReceiptDesk
from privacy.receipts import Receipt, issue_receipt, receipts_to_lines
from privacy.release import Mechanism, Release, Request, perform

BUDGET = PrivacyBudget(epsilon=8, delta=1e-6)
SERVER = "fl.example.com"
HISTOGRAM = LabelHistogram(num_labels=4, epsilon="0.5")
UPDATE = ClippedUpdate({"w": (3,)}, clip_norm=1, noise_multiplier=8)
LABELS = [0, 1, 1]
GRADIENT = {"w": np.ones(3)}


@dataclass(frozen=True)
class Told:
    """How a command ended and what it said."""

    code: int
    out: str
    err: str

    @property
    def document(self) -> dict[str, Any]:
        return json.loads(self.out)


def run(capsys, *words: object) -> Told:
    """`covey privacy ...` as a script would call it."""
    capsys.readouterr()
    code = covey.run(covey.covey, ["privacy", *map(str, words)])
    return Told(code, *capsys.readouterr())


@dataclass
class Server:
    """A server's desk that keeps its receipts in order, as it would export them."""

    name: str = SERVER
    receipts: list[Receipt] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.desk = ReceiptDesk(self.name, SigningKey.generate(), MemoryShelf())

    def receive(self, ledger: Ledger, release: Release) -> None:
        receipt = issue_receipt(ledger, release)
        ledger.keep(self.desk.accept(receipt, release.payload_hash, ledger.device_key).countersignature)
        self.receipts.append(receipt)

    def export(self, path: Path) -> Path:
        path.write_text("".join(receipts_to_lines(self.receipts)), encoding="utf-8")
        return path


def ask(
    ledger: Ledger,
    mechanism: Mechanism[Any],
    data: Any,
    subject: str,
    *,
    server: str = SERVER,
    purpose: str = "training",
) -> Release:
    return perform(ledger, mechanism, data, Request(server, purpose, subject), NoiseSource())


def device(
    state: Path,
    *,
    updates: int = 3,
    histogram: bool = True,
    budget: PrivacyBudget = BUDGET,
    server: Server | None = None,
) -> Path:
    """A closed ledger with its key file: a histogram and some updates, received by `server` if there is one."""
    state.mkdir(parents=True)
    keys = LedgerKeys.create_file(state / "ledger.key")
    update = ClippedUpdate(UPDATE.shapes, 1, 8, budget.relation)
    with Ledger.open(state, keys, budget) as ledger:
        made = []
        if histogram:
            counted = LabelHistogram(4, "0.5", budget.relation)
            made.append(ask(ledger, counted, LABELS, "epoch 1", purpose="clustering"))
        made += [ask(ledger, update, GRADIENT, f"round {number}") for number in range(updates)]
        if server is not None:
            for release in made:
                server.receive(ledger, release)
    return state


def opened(state: Path) -> Ledger:
    """The ledger of `device`, for writing."""
    return Ledger.open(state, LedgerKeys.from_file(state / "ledger.key"))
