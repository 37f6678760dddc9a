"""A server's receipts, read line by line: what can be believed, and what cannot, each with its line.

A line counts only if the device it names signed it. One bad line does not spoil the others.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from privacy.errors import ReceiptRefused
from privacy.receipts import Receipt
from privacy.reporting.findings import Finding, FindingKind

if TYPE_CHECKING:
    from pathlib import Path

    from privacy.reporting.terminal import Advance

_MOST_BYTES = 1 << 20  # a receipt has about a thousand; a file that is not ours may have no line ends


@dataclass(frozen=True)
class ReceiptsFile:
    """What a server says it received."""

    name: str
    receipts: tuple[Receipt, ...]
    """Each once, in the order of the file."""
    findings: tuple[Finding, ...]

    @property
    def servers(self) -> frozenset[str]:
        return frozenset(receipt.server for receipt in self.receipts)


def read_receipts(path: Path, advance: Advance) -> ReceiptsFile:
    """The receipts in a file of JSON lines; `ReceiptRefused` never, an `OSError` if it cannot be read."""
    receipts: dict[Receipt, None] = {}
    findings: list[Finding] = []
    size, done = path.stat().st_size, 0
    with path.open("rb") as file:
        for number, line in enumerate(iter(lambda: file.readline(_MOST_BYTES), b""), start=1):
            done += len(line)
            advance(done, size)
            if not line.strip():
                continue
            try:
                receipt = Receipt.from_json(line.strip())
                receipt.check_device(receipt.device_key)
            except ReceiptRefused as error:
                findings.append(Finding(FindingKind.BAD_RECEIPT, f"{path.name}:{number}", str(error)))
            else:
                receipts[receipt] = None
    if not receipts and not findings:
        findings.append(
            Finding(FindingKind.BAD_RECEIPT, path.name, "the file holds no receipt; nothing was reconciled")
        )
    return ReceiptsFile(path.name, tuple(receipts), tuple(findings))
