"""The privacy of one device at work, on real parts, in well under a minute.

    python examples/privacy_demo.py [--out DIR]

A device with a small budget releases a histogram and model updates until its ledger declines. A server countersigns
what it receives. Somebody alters a copy of the ledger and is found out; a mechanism that lies about its noise is
found out too. What is shown with a dollar sign is what you would type; the files stay for you to look at.
"""

from __future__ import annotations

import argparse
import contextlib
import os
import shlex
import shutil
import sqlite3
import sys
import textwrap
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np

import covey
from privacy import (
    BudgetExhausted,
    ClippedUpdate,
    LabelHistogram,
    Ledger,
    LedgerKeys,
    NoiseSource,
    PrivacyBudget,
    Receipt,
    Release,
    Request,
    perform,
)
from privacy.keys import SigningKey
from privacy.receipt_desk import MemoryShelf, ReceiptDesk
from privacy.receipts import issue_receipt, receipts_to_lines

SERVER = "fl.example.com"
LABELS, FEATURES = 5, 8
BUDGET = PrivacyBudget(epsilon=4, delta=1e-6)
MARKER = ".made-by-covey-demo"
EXAMPLES = Path(__file__).parent


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the demo; 0 if everything went as it should, 1 if a command did not end as promised."""
    parser = argparse.ArgumentParser(description="The privacy of one device at work.")
    parser.add_argument("--out", type=Path, default=Path("demo-output"), help="where to leave the files")
    parser.add_argument("--trials", type=int, default=2_000, help="runs of each audit for either neighbour")
    options = parser.parse_args(arguments)
    if not prepare(options.out):
        print(f"{options.out} holds something that this demo did not make; name another folder with --out.")
        return covey.ExitCode.USED_WRONGLY
    demo = Demo(options.out, options.trials)
    for step in (demo.release, demo.exhaust, demo.tamper, demo.audit, demo.report):
        step()
    demo.sum_up()
    return covey.ExitCode.FOUND_WRONG if demo.surprises else covey.ExitCode.DONE


@dataclass
class Records:
    """What the device holds, made up: labels, most of them alike, and features that go with them."""

    labels: np.ndarray
    features: np.ndarray

    @classmethod
    def made_up(cls) -> Records:
        # A seed is fine for data; noise never has one.
        rng = np.random.default_rng(7)
        labels = rng.choice(LABELS, size=400, p=[0.62, 0.2, 0.1, 0.08, 0.0])
        features = rng.normal(size=(400, FEATURES)) + np.eye(LABELS, FEATURES)[labels]
        return cls(labels, features)

    def update(self, weights: np.ndarray) -> np.ndarray:
        """One step of softmax regression."""
        scores = np.exp(self.features @ weights)
        errors = np.eye(LABELS)[self.labels] - scores / scores.sum(axis=1, keepdims=True)
        step: np.ndarray = self.features.T @ errors / len(self.labels)
        return step


@dataclass
class Demo:
    """The story, step by step; every step leaves files that the next one uses."""

    out: Path
    trials: int
    records: Records = field(default_factory=Records.made_up)
    receipts: list[Receipt] = field(default_factory=list)
    lines: list[tuple[str, str]] = field(default_factory=list)
    surprises: list[str] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.device, self.tampered = self.out / "device", self.out / "tampered"
        self.noise = NoiseSource()
        self.desk = ReceiptDesk(SERVER, SigningKey.generate(), MemoryShelf())
        self.device.mkdir()
        self.keys = LedgerKeys.create_file(self.device / "ledger.key")

    def release(self) -> None:
        title("1  A device releases a histogram, and a retry costs nothing")
        tell(
            f"It holds {len(self.records.labels)} records, and its ledger allows ε={BUDGET.epsilon:g} at "
            f"δ={BUDGET.delta:g} in its life. It tells a server how often each label occurs, with noise, for ε=0.5:"
        )
        histogram = LabelHistogram(num_labels=LABELS, epsilon=0.5)
        request = Request(SERVER, "clustering", "epoch 1")
        labels = self.records.labels.tolist()
        with self.ledger() as ledger:
            first = perform(ledger, histogram, labels, request, self.noise)
            self.send(ledger, first)
            entries = ledger.status().sequence
            again = perform(ledger, histogram, labels, request, self.noise)
            free = ledger.status().sequence == entries
        show_counts("on the device", np.bincount(self.records.labels, minlength=LABELS).tolist())
        show_counts("what left it", histogram.decode(first.payload))
        same = again.payload == first.payload
        tell(
            f"The acknowledgement is lost, so it sends again: the same bytes ({'yes' if same else 'NO'}), "
            f"nothing more booked ({'yes' if free else 'NO'}). Fresh noise would have let the server average it away."
        )
        self.note("a retry", "the same bytes, for nothing", expected=same and free)

    def exhaust(self) -> None:
        title("2  It trains and sends updates until its ledger declines")
        weights = np.zeros((FEATURES, LABELS))
        update = ClippedUpdate({"weights": weights.shape}, clip_norm="0.5", noise_multiplier=8)
        declined, number = "", 0
        with self.ledger() as ledger:
            while not declined:
                number += 1
                request = Request(SERVER, "training", f"round {number}")
                try:
                    noised = perform(ledger, update, {"weights": self.records.update(weights)}, request, self.noise)
                except BudgetExhausted as error:
                    declined = str(error)
                else:
                    self.send(ledger, noised)
                    weights += update.decode(noised.payload)["weights"]
                    print(f"  round {number}: {len(noised.payload)} bytes left, booked as entry {noised.sequence - 1}")
        print(f"  round {number}: declined")
        tell(f'"{declined}"')
        (self.out / "receipts.jsonl").write_text("".join(receipts_to_lines(self.receipts)), encoding="utf-8")
        tell(f"The server has countersigned {len(self.receipts)} receipts; they are in {self.out / 'receipts.jsonl'}.")
        self.command("privacy", "status", str(self.device))
        self.note("the budget", f"round {number} was declined before anything left", expected=number > 1)

    def tamper(self) -> None:
        title("3  Somebody makes a copy of the ledger look cheaper")
        shutil.copytree(self.device, self.tampered)
        halve_the_first_spend(self.tampered / "ledger.db")
        tell("In the copy the histogram now seems to have cost half of what it did.")
        intact = self.command("privacy", "verify", str(self.device))
        broken = self.command("privacy", "verify", str(self.tampered))
        self.note("the ledger", "intact; the altered copy was caught", expected=(intact, broken) == (0, 1))

    def audit(self) -> None:
        title("4  Does a mechanism hide what it claims? Two stand before the auditor")
        dishonest = shown(EXAMPLES / "dishonest_mechanisms.py") + ":half_the_noise"
        # So sure that no honest mechanism is ever accused in a demo.
        trials = ("--trials", str(self.trials), "--confidence", "0.999999")
        tell("Both claim ε=1. One of them adds half the noise that this takes.")
        honest = self.command("privacy", "audit", "--mechanism", "label_histogram", *trials)
        caught = self.command("privacy", "audit", "--mechanism", dishonest, *trials)
        self.note("the auditor", "caught the liar; of the other it saw no more", expected=(honest, caught) == (0, 1))

    def report(self) -> None:
        title("5  The privacy officer's report")
        receipts, page = self.out / "receipts.jsonl", self.out / "report.html"
        states = (str(self.device), str(self.tampered))
        code = self.command("privacy", "report", *states, "--receipts", str(receipts), "-o", str(page))
        self.note("the report", f"{page}: one device, one altered copy", expected=code == 1 and page.is_file())

    def sum_up(self) -> None:
        title("What you saw")
        for name, words in self.lines:
            print(f"  {name:<13}{words}")
        for surprise in self.surprises:
            print(f"  NOT AS IT SHOULD BE: {surprise}")
        title("Try it on these files")
        key = self.device / "ledger.key"
        broken = ("--start-over", "--reason", "just a demo", "--key-file", str(key))
        print(shell_line("  ", program(), "privacy", "explain", str(self.device)))
        print(shell_line("  ", program(), "privacy", "verify", str(self.device), "--recompute"))
        print(shell_line("  ", program(), "privacy", "verify", str(self.tampered), *broken))
        print(f"\n  And open {self.out / 'report.html'} in a browser.")

    @contextlib.contextmanager
    def ledger(self) -> Iterator[Ledger]:
        with Ledger.open(self.device, self.keys, BUDGET) as ledger:
            yield ledger

    def send(self, ledger: Ledger, release: Release) -> None:
        """What the wire will do: the bytes with their receipt out, the server's countersignature back."""
        receipt = issue_receipt(ledger, release)
        accepted = self.desk.accept(receipt, release.payload_hash, ledger.device_key)
        ledger.keep(accepted.countersignature)
        self.receipts.append(receipt)

    def command(self, *words: str) -> int:
        """Run `covey` in this process and show it as on a terminal; its exit code."""
        print("\n" + shell_line("$ ", "covey", *words))
        # Both streams into one, so that a log of this demo reads like the terminal.
        with contextlib.redirect_stderr(sys.stdout):
            code = covey.run(covey.covey, words)
        print(f"[exit code {int(code)}]", flush=True)
        return code

    def note(self, name: str, words: str, *, expected: bool) -> None:
        self.lines.append((name, words))
        if not expected:
            self.surprises.append(name)


def prepare(out: Path) -> bool:
    """An empty folder for the demo; what an earlier one left is replaced, what somebody else left is not."""
    if out.exists() and any(out.iterdir()):
        if not (out / MARKER).is_file():
            return False
        shutil.rmtree(out)
    out.mkdir(parents=True, exist_ok=True)
    (out / MARKER).touch()
    (out / ".gitignore").write_text("*\n", encoding="utf-8")
    return True


def halve_the_first_spend(ledger: Path) -> None:
    """What whoever owns the disk could do: the histogram's two parts of ε=0.25 become halves of that."""
    with contextlib.closing(sqlite3.connect(ledger)) as database:
        ((body,),) = database.execute("SELECT body FROM entry WHERE seq = 1").fetchall()
        database.execute("UPDATE entry SET body = ? WHERE seq = 1", (body.replace(b"250000", b"125000"),))
        database.commit()


def title(words: str) -> None:
    print(f"\n{words}\n{'=' * len(words)}", flush=True)


def tell(words: str) -> None:
    print(textwrap.fill(words, 78, break_on_hyphens=False))


def shell_line(prompt: str, *words: str) -> str:
    """A command as one can copy it, continued where it is too long for a line."""
    lines = [prompt]
    for word in map(shlex.quote, words):
        if len(lines[-1]) + len(word) > 76:
            lines.append("     ")
        lines[-1] += word if lines[-1] == prompt else f" {word}"
    return " \\\n".join(lines)


def show_counts(name: str, counts: Sequence[int]) -> None:
    print(f"  {name:<15}" + "".join(f"{count:>7}" for count in counts))


def shown(path: Path) -> str:
    """A path as short as a person would type it."""
    relative = os.path.relpath(path)
    return relative if not relative.startswith("..") else str(path)


def program() -> str:
    """`covey` as it can be called here."""
    return "covey" if shutil.which("covey") else shown(Path(sys.executable).parent / "covey")


if __name__ == "__main__":
    sys.exit(main())
