"""Enrolment from the device's side: one call, on the server's enrolment port, believing nothing but a fingerprint."""

from __future__ import annotations

import grpc
from cryptography import x509
from cryptography.hazmat.primitives.serialization import Encoding, PublicFormat

from device_sdk.wire.backoff import Backoff
from device_sdk.wire.cancelling import Deadline, Stop
from device_sdk.wire.codec import decode, encode
from device_sdk.wire.connection import enrolment_call, translated
from device_sdk.wire.errors import ConnectionLost, ServerBusy, UntrustedServer
from device_sdk.wire.invitation import Address, Invitation
from device_sdk.wire.messages import EnrolmentReply
from device_sdk.wire.signing import Signer, device_id, enrolment_request, server_name
from device_sdk.wire.trust import check_issued, fetch_authority

_FIRST_PAUSE_SECONDS = 0.2
_LONGEST_PAUSE_SECONDS = 5.0
_MOST_LOST = 3
"""So often a connection may break: a server that is flooded hangs up on some, and asking again costs nothing."""


def enrol(
    invitation: Invitation,
    certificate_request: bytes,
    signing_key: Signer,
    ledger_key: Signer,
    *,
    timeout_seconds: float = 30.0,
    stop: Stop | None = None,
) -> EnrolmentReply:
    """Redeem an invitation. The server must present the authority that the invitation names; nothing else is trusted.

    The reply is checked: the certificate is for the requested key, under that authority. Asking again with the
    same keys after a lost reply is answered again; with other keys, the invitation is used up.
    """
    stop, deadline = stop or Stop(), Deadline(timeout_seconds)
    deadline.check(stop)
    authority = fetch_authority(invitation.address, invitation.fingerprint, timeout_seconds, stop)
    deadline.check(stop)
    request = encode(enrolment_request(invitation.secret, certificate_request, signing_key, ledger_key))
    reply = _reply(invitation.address, authority, request, stop, deadline)
    device = device_id(signing_key.public_key)
    if (reply.authority, reply.server, reply.device) != (authority, server_name(authority), device):
        raise UntrustedServer("the server's reply names another authority, server or device; nothing was kept")
    check_issued(reply.certificate, authority, requested_key(certificate_request), device)
    return reply


def _reply(address: Address, authority: bytes, request: bytes, stop: Stop, deadline: Deadline) -> EnrolmentReply:
    """What the server says. Many are invited at a time, so while it is busy with others we ask again."""
    backoff, lost = Backoff(_FIRST_PAUSE_SECONDS, _LONGEST_PAUSE_SECONDS), 0
    while True:
        try:
            return _asked(address, authority, request, stop, deadline)
        except ConnectionLost as error:
            lost += not isinstance(error, ServerBusy)
            if lost > _MOST_LOST:
                raise
            left = deadline.left_seconds()
            seconds = backoff.failed()
            if left is not None and left <= seconds:
                raise
            stop.wait(seconds)
            deadline.check(stop)


def _asked(address: Address, authority: bytes, request: bytes, stop: Stop, deadline: Deadline) -> EnrolmentReply:
    channel, call = enrolment_call(address, authority, request, deadline.left_seconds())
    try:
        with stop.calling(call.cancel):
            return decode(EnrolmentReply, call.result())
    except grpc.FutureCancelledError as error:
        deadline.check(stop)
        raise ConnectionLost("enrolment broke off; try again with the same keys") from error
    except grpc.RpcError as error:
        raise translated(error, stop, deadline) from error
    finally:
        channel.close()


def requested_key(certificate_request: bytes) -> bytes:
    """The public key (SPKI in DER) that a certificate request (DER) is about."""
    key = x509.load_der_x509_csr(certificate_request).public_key()
    return key.public_bytes(Encoding.DER, PublicFormat.SubjectPublicKeyInfo)
