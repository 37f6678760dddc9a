"""A device with valid keys and no honesty: it enrols as any other, and then signs whatever it likes."""

from __future__ import annotations

import hashlib
import json
import os
from dataclasses import dataclass, field, replace
from typing import Any

from device_sdk.wire.errors import Refused
from device_sdk.wire.messages import ErrorCode, SummaryHeader, Term, UploadAccepted
from device_sdk.wire.signing import signed
from device_sdk.wire.tensors import blob_of
from privacy.keys import SigningKey
from privacy.ledger.entries import head_statement
from privacy.mechanisms.label_histogram import LabelHistogram
from tests.device_sdk.wire.devices import QUICK, TestDevice

HISTOGRAM = LabelHistogram(10, "1")
COUNTS = bytes(80)
"""What a histogram of ten labels is long."""
_NO_PATIENCE = replace(QUICK, most_attempts=1)


@dataclass
class Liar:
    """Its receipts are JSON of its own: no class of ours has a say in what it claims."""

    device: TestDevice = field(default_factory=TestDevice)

    def receipt(self, payload: bytes, **claims: Any) -> bytes:
        """A receipt that its ledger has signed, with these claims instead of the honest ones."""
        self.device.sequence += 1
        ledger, head = self.device.ledger, os.urandom(32)
        name = ledger.public_key.hex()[:32]
        fields = {
            "ledger": name,
            "device_key": ledger.public_key.hex(),
            "server": self.device.server,
            "sequence": self.device.sequence,
            "mechanism": HISTOGRAM.name,
            "unit": "record",
            "relation": "replace",
            "pure": [500_000, 500_000],
            "mu_squared": 0,
            "rho": 0,
            "sampled": [],
            "payload_hash": hashlib.sha256(payload).hexdigest(),
            "request": os.urandom(32).hex(),
            "head": head.hex(),
            "head_signature": ledger.sign(head_statement(name, self.device.sequence, head)).hex(),
            **claims,
        }
        return signed_line(fields, ledger)

    def header(self, payload: bytes, receipt: bytes | None = None, **claims: Any) -> SummaryHeader:
        """A signed header of a summary, with these claims instead of the honest ones."""
        line = self.receipt(payload) if receipt is None else receipt
        body = json.loads(line)
        honest = SummaryHeader(
            mechanism=HISTOGRAM.name,
            terms=terms_of(HISTOGRAM),
            subject="1",
            payload=blob_of(payload),
            ledger_head=bytes.fromhex(body["head"]),
            sequence=body["sequence"],
            receipt=line,
        )
        return signed(replace(honest, **claims), self.device.id, self.device.signing)

    def share(self, payload: bytes = COUNTS, receipt: bytes | None = None, **claims: Any) -> UploadAccepted:
        """Upload a summary; `Refused` if the server does not take it."""
        with self.device.channel(_NO_PATIENCE) as channel:
            return channel.upload(self.header(payload, receipt, **claims), payload, 60)

    def refusal(self, payload: bytes = COUNTS, receipt: bytes | None = None, **claims: Any) -> ErrorCode:
        """Why a summary is refused."""
        try:
            self.share(payload, receipt, **claims)
        except Refused as refusal:
            return refusal.code
        raise AssertionError("the server has taken it")


def signed_line(fields: dict[str, Any], key: SigningKey) -> bytes:
    """A receipt's line in the one spelling that is taken, whatever it says."""
    statement = _canonical({**fields, "tag": "covey-receipt-v1"})
    return _canonical({**fields, "signature": key.sign(statement).hex()})


def terms_of(mechanism: Any, **changed: Any) -> tuple[Term, ...]:
    terms = {**mechanism.terms, **changed}
    return tuple(Term(name, value) for name, value in sorted(terms.items()))


def _canonical(fields: dict[str, Any]) -> bytes:
    return json.dumps(fields, sort_keys=True, separators=(",", ":")).encode()
