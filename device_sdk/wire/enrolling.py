"""Enrolment from the device's side: one call, on the server's enrolment port, believing nothing but a fingerprint."""

from __future__ import annotations

import grpc
from cryptography import x509
from cryptography.hazmat.primitives.serialization import Encoding, PublicFormat

from device_sdk.wire.cancelling import Deadline, Stop
from device_sdk.wire.codec import decode, encode
from device_sdk.wire.connection import enrolment_call, translated
from device_sdk.wire.errors import ConnectionLost, UntrustedServer
from device_sdk.wire.invitation import Invitation
from device_sdk.wire.messages import EnrolmentReply
from device_sdk.wire.signing import Signer, device_id, enrolment_request, server_name
from device_sdk.wire.trust import check_issued, fetch_authority


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
    request = enrolment_request(invitation.secret, certificate_request, signing_key, ledger_key)
    channel, call = enrolment_call(invitation.address, authority, encode(request), deadline.left_seconds())
    try:
        with stop.calling(call.cancel):
            reply = decode(EnrolmentReply, call.result())
    except grpc.FutureCancelledError as error:
        deadline.check(stop)
        raise ConnectionLost("enrolment broke off; try again with the same keys") from error
    except grpc.RpcError as error:
        raise translated(error, stop, deadline) from error
    finally:
        channel.close()
    device = device_id(signing_key.public_key)
    if (reply.authority, reply.server, reply.device) != (authority, server_name(authority), device):
        raise UntrustedServer("the server's reply names another authority, server or device; nothing was kept")
    check_issued(reply.certificate, authority, requested_key(certificate_request), device)
    return reply


def requested_key(certificate_request: bytes) -> bytes:
    """The public key (SPKI in DER) that a certificate request (DER) is about."""
    key = x509.load_der_x509_csr(certificate_request).public_key()
    return key.public_bytes(Encoding.DER, PublicFormat.SubjectPublicKeyInfo)
