"""Devices for tests: keys, certificates, and releases with honest receipts, without a ledger on disk."""

from __future__ import annotations

import hashlib
import os
from dataclasses import dataclass, field, replace
from datetime import datetime, timedelta
from typing import Any

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec

from device_sdk.wire.cancelling import Stop
from device_sdk.wire.channel import Channel, ChannelSettings, Credentials, enrol
from device_sdk.wire.messages import DeviceId, GridEncoding, SummaryHeader, Term, UpdateHeader
from device_sdk.wire.signing import device_id, signed
from device_sdk.wire.tensors import blob_of
from privacy.budget import NeighbouringRelation, PrivacyCost, PrivacyUnit
from privacy.keys import SigningKey
from privacy.ledger.entries import head_statement
from privacy.mechanisms.label_histogram import LabelHistogram
from privacy.receipts import Receipt
from server_kit.daemon.authority import Authority
from server_kit.daemon.register import EnrolledDevice

QUICK = ChannelSettings(first_backoff_seconds=0.02, most_backoff_seconds=0.2, connect_seconds=5.0, silence_seconds=5.0)
COST = PrivacyCost.gaussian(1, PrivacyUnit.DEVICE, NeighbouringRelation.REPLACE)
HISTOGRAM = LabelHistogram(10, "1/2")


class TlsKey:
    """A P-256 key and the request for its certificate."""

    def __init__(self) -> None:
        self._key = ec.generate_private_key(ec.SECP256R1())

    @property
    def pem(self) -> bytes:
        return self._key.private_bytes(
            serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
        )

    def request(self, name: str = "ignored") -> bytes:
        subject = x509.Name([x509.NameAttribute(x509.NameOID.COMMON_NAME, name)])
        builder = x509.CertificateSigningRequestBuilder().subject_name(subject)
        names = x509.SubjectAlternativeName([x509.DNSName("localhost")])
        csr = builder.add_extension(names, critical=False).sign(self._key, hashes.SHA256())
        return csr.public_bytes(serialization.Encoding.DER)


@dataclass
class TestDevice:
    """All that a device has; `credentials` once it is enrolled."""

    __test__ = False

    tls: TlsKey = field(default_factory=TlsKey)
    signing: SigningKey = field(default_factory=SigningKey.generate)
    ledger: SigningKey = field(default_factory=SigningKey.generate)
    sequence: int = 0
    credentials: Credentials | None = None
    gateway: str = ""
    server: str = ""

    @property
    def id(self) -> DeviceId:
        return device_id(self.signing.public_key)

    def enrol_at(self, server: Any) -> TestDevice:
        """By invitation, over the wire."""
        reply = enrol(server.invitation(), self.tls.request(), self.signing, self.ledger)
        self.credentials = Credentials(reply.certificate, self.tls.pem, reply.authority)
        self.gateway, self.server = reply.gateway, reply.server
        return self

    def known_to(self, server: Any, **certificate: Any) -> TestDevice:
        """As if it had enrolled before."""
        server.register.add(EnrolledDevice(self.id, self.signing.public_key, self.ledger.public_key))
        self.credentials = self.certified_by(server.authority, **certificate)
        self.gateway, self.server = str(server.address), server.authority.server
        return self

    def certified_by(
        self, authority: Authority, now: datetime | None = None, lifetime: timedelta = timedelta(days=1)
    ) -> Credentials:
        certificate = authority.issue_device(self.tls.request(), self.id, lifetime, now)
        return Credentials(certificate, self.tls.pem, authority.certificate)

    def channel(self, settings: ChannelSettings = QUICK, stop: Stop | None = None) -> Channel:
        assert self.credentials is not None
        return Channel(self.gateway, self.credentials, settings, stop)

    def update(self, payload: bytes, task: str = "t-1", mechanism: Any = None) -> UpdateHeader:
        """A signed header for an update of these bytes, and its receipt, for what the mechanism costs."""
        receipt = self.receipt_of(payload, mechanism)
        header = UpdateHeader(
            task=task,
            cohort="0",
            round=1,
            model_sha256=hashlib.sha256(b"model").digest(),
            payload=blob_of(payload),
            encoding=GridEncoding(len(payload), 1),
            ledger_head=receipt.head,
            sequence=receipt.sequence,
            receipt=receipt.to_json(),
        )
        return signed(header, self.id, self.signing)

    def summary(self, payload: bytes, mechanism: Any = HISTOGRAM, subject: str = "epoch 1") -> SummaryHeader:
        """A signed header for what this mechanism has made, and its receipt."""
        receipt = self.receipt_of(payload, mechanism)
        header = SummaryHeader(
            mechanism=mechanism.name,
            terms=tuple(Term(name, value) for name, value in sorted(mechanism.terms.items())),
            subject=subject,
            payload=blob_of(payload),
            ledger_head=receipt.head,
            sequence=receipt.sequence,
            receipt=receipt.to_json(),
        )
        return signed(header, self.id, self.signing)

    def receipt_of(self, payload: bytes, mechanism: Any) -> Receipt:
        return self.receipt(payload) if mechanism is None else self.receipt(payload, mechanism.cost, mechanism.name)

    def receipt(self, payload: bytes, cost: PrivacyCost = COST, mechanism: str = "clipped_update") -> Receipt:
        self.sequence += 1
        head = os.urandom(32)
        unsigned = Receipt(
            ledger=self.ledger.public_key.hex()[:32],
            device_key=self.ledger.public_key,
            server=self.server,
            sequence=self.sequence,
            mechanism=mechanism,
            cost=cost,
            payload_hash=hashlib.sha256(payload).hexdigest(),
            request=hashlib.sha256(f"request {self.sequence}".encode()).hexdigest(),
            head=head,
            head_signature=self.ledger.sign(head_statement(self.ledger.public_key.hex()[:32], self.sequence, head)),
        )
        return replace(unsigned, signature=self.ledger.sign(unsigned.statement))
