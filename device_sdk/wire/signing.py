"""What a device signs for the server to believe it, each kind of statement under a tag of its own.

A release's signature binds its bytes to the task, the model it started from and the place in the ledger; with a
number that only grows, it can be neither altered nor passed on as another's nor sent a second time as news.
"""

from __future__ import annotations

import hashlib
from dataclasses import replace
from typing import TYPE_CHECKING, Protocol, TypeVar

from cryptography.exceptions import InvalidSignature

from device_sdk.wire.errors import SignatureInvalid
from device_sdk.wire.messages import EnrolmentRequest, ReleaseHeader, SummaryHeader, UpdateHeader
from privacy.canonical import canonical
from privacy.keys import check_signature

if TYPE_CHECKING:
    from device_sdk.wire.messages import DeviceId

Header = TypeVar("Header", UpdateHeader, SummaryHeader)

_ENROLMENT_TAG = "covey-enrolment-v1"
_UPDATE_TAG = "covey-update-v1"
_SUMMARY_TAG = "covey-summary-v1"


class Signer(Protocol):
    """A key that signs; `privacy.keys.SigningKey` is one."""

    @property
    def public_key(self) -> bytes:
        """32 bytes, Ed25519."""

    def sign(self, statement: bytes) -> bytes:
        """64 bytes."""


def device_id(signing_key: bytes) -> DeviceId:
    """Who the holder of this key is: one key, one device."""
    return hashlib.sha256(signing_key).hexdigest()[:32]


def server_name(authority: bytes) -> str:
    """What ledgers and receipts call the server whose authority has this certificate (DER)."""
    return f"covey-{hashlib.sha256(authority).hexdigest()[:32]}"


def enrolment_statement(
    invitation_secret: bytes, certificate_request: bytes, signing_key: bytes, ledger_key: bytes
) -> bytes:
    """What both keys sign to prove that the device has them; the secret stands in it as a hash."""
    return canonical(
        {
            "tag": _ENROLMENT_TAG,
            "invitation": hashlib.sha256(invitation_secret).hexdigest(),
            "certificate_request": hashlib.sha256(certificate_request).hexdigest(),
            "signing_key": signing_key.hex(),
            "ledger_key": ledger_key.hex(),
        }
    )


def enrolment_request(
    invitation_secret: bytes, certificate_request: bytes, signing_key: Signer, ledger_key: Signer
) -> EnrolmentRequest:
    """A request to be let in, with the proofs that both keys are the device's own."""
    keys = (signing_key.public_key, ledger_key.public_key)
    statement = enrolment_statement(invitation_secret, certificate_request, *keys)
    proofs = (signing_key.sign(statement), ledger_key.sign(statement))
    return EnrolmentRequest(invitation_secret, certificate_request, *keys, *proofs)


def check_enrolment(request: EnrolmentRequest) -> None:
    """Raise `SignatureInvalid` unless the device holds both keys that it names."""
    statement = enrolment_statement(
        request.invitation_secret, request.certificate_request, request.signing_key, request.ledger_key
    )
    _check(request.signing_key, statement, request.signing_proof, "the signing key of this request is not its sender's")
    _check(request.ledger_key, statement, request.ledger_proof, "the ledger key of this request is not its sender's")


def release_statement(header: ReleaseHeader, device: DeviceId) -> bytes:
    """What the device signs of an update or a summary: all of its header, and who it is from."""
    fields = {
        "device": device,
        "payload": header.payload.sha256.hex(),
        "size_bytes": header.payload.size_bytes,
        "ledger_head": header.ledger_head.hex(),
        "sequence": header.sequence,
        "receipt": hashlib.sha256(header.receipt).hexdigest(),
    }
    return canonical({**fields, **_particulars(header)})


def signed(header: Header, device: DeviceId, key: Signer) -> Header:
    """The header with the device's signature."""
    return replace(header, signature=key.sign(release_statement(header, device)))


def check_release(header: ReleaseHeader, device: DeviceId, signing_key: bytes) -> None:
    """Raise `SignatureInvalid` unless `device`, under its enrolled key, signed this header."""
    statement = release_statement(header, device)
    _check(signing_key, statement, header.signature, "this release is not signed by the device that sent it")


def _particulars(header: ReleaseHeader) -> dict[str, object]:
    if isinstance(header, UpdateHeader):
        return {
            "tag": _UPDATE_TAG,
            "task": header.task,
            "cohort": header.cohort,
            "round": header.round,
            "model": header.model_sha256.hex(),
            "encoding": [header.encoding.count, header.encoding.width_bytes],
        }
    return {
        "tag": _SUMMARY_TAG,
        "mechanism": header.mechanism,
        # A list of pairs and not an object: JSON would keep one of two terms with the same name.
        "terms": [[term.name, term.value] for term in header.terms],
        "subject": header.subject,
    }


def _check(key: bytes, statement: bytes, signature: bytes, complaint: str) -> None:
    try:
        check_signature(key, statement, signature)
    except InvalidSignature as error:
        raise SignatureInvalid(f"{complaint}; nothing was counted") from error
