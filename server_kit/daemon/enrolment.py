"""The enrolment desk: the one place that talks to strangers, on a port of its own.

A stranger shows an invitation, a certificate request and two keys, and proves to hold all three keys. It leaves
with a certificate or with the reason why not. What it asks to be called is ignored: its name is the hash of its
signing key.
"""

from __future__ import annotations

import asyncio
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from datetime import timedelta
from typing import TYPE_CHECKING, Any

import grpc

from device_sdk.wire.codec import decode, encode
from device_sdk.wire.errors import Refused
from device_sdk.wire.messages import EnrolmentReply, EnrolmentRequest, ErrorCode
from device_sdk.wire.services import ENROLMENT
from device_sdk.wire.signing import check_enrolment, device_id
from server_kit.daemon.authority import DEVICE_LIFETIME
from server_kit.daemon.refusals import log, refuse
from server_kit.daemon.register import EnrolledDevice, Register
from server_kit.daemon.transport import ShownCertificate, check_tls, server_options

if TYPE_CHECKING:
    from device_sdk.wire.invitation import Address
    from server_kit.daemon.authority import Authority, ServerCertificate
    from server_kit.daemon.event_loop import EventLoop
    from server_kit.daemon.invitations import Invitations

_MOST_AT_ONCE = 32


@dataclass(frozen=True)
class EnrolmentDesk:
    """Decides who is let in. Blocks on the stores; safe to use from several threads."""

    authority: Authority
    invitations: Invitations
    register: Register
    server_key: bytes
    """The public key that signs countersignatures."""
    gateway: Address
    """Where enrolled devices go from here."""
    lifetime: timedelta = DEVICE_LIFETIME

    def enrol(self, request: EnrolmentRequest) -> EnrolmentReply:
        """Let a device in, or raise `Refused`. The invitation is used up last, so a faulty request costs nothing."""
        check_enrolment(request)
        device = device_id(request.signing_key)
        known = self.register.find(device)
        if known is not None and known.revoked:
            raise Refused(ErrorCode.REVOKED, "this device was revoked; it cannot enrol again with the same key")
        certificate = self.authority.issue_device(request.certificate_request, device, self.lifetime)
        self.invitations.redeem(request.invitation_secret, device)
        kept = self.register.add(EnrolledDevice(device, request.signing_key, request.ledger_key))
        if kept.ledger_key != request.ledger_key:
            raise Refused(
                ErrorCode.OTHER_LEDGER,
                "this device enrolled with another ledger before; begin as a new device; nobody was enrolled",
            )
        return EnrolmentReply(
            device=device,
            server=self.authority.server,
            server_key=self.server_key,
            gateway=str(self.gateway),
            certificate=certificate,
            authority=self.authority.certificate,
        )


class EnrolmentServer:
    """Serves an `EnrolmentDesk` over TLS that authenticates the server."""

    def __init__(self, desk: EnrolmentDesk, loop: EventLoop) -> None:
        self._desk, self._loop = desk, loop
        self._pool = ThreadPoolExecutor(max_workers=4, thread_name_prefix="covey-enrolment")
        self._server: Any = None
        self._shown: ShownCertificate | None = None

    def start(self, address: str, certificate: ServerCertificate) -> int:
        """Listen on host:port (port 0: any); returns the port."""
        return self._loop.run(self._start(address, certificate))

    def show(self, certificate: ServerCertificate) -> None:
        """Show another certificate from the next handshake on."""
        if self._shown is not None:
            self._shown.replace(certificate)

    def close(self, grace_seconds: float = 1.0) -> None:
        """Refuse newcomers and let calls under way end."""
        if self._server is not None:
            self._loop.run(self._server.stop(grace_seconds))
        self._pool.shutdown()

    async def _start(self, address: str, certificate: ServerCertificate) -> int:
        self._server = grpc.aio.server(options=server_options(), maximum_concurrent_rpcs=_MOST_AT_ONCE)
        handlers = {"Enrol": grpc.unary_unary_rpc_method_handler(self._enrol)}
        self._server.add_generic_rpc_handlers((grpc.method_handlers_generic_handler(ENROLMENT, handlers),))
        self._shown = ShownCertificate(certificate)
        port: int = self._server.add_secure_port(address, self._shown.credentials)
        await self._server.start()
        return port

    async def _enrol(self, body: bytes, context: Any) -> bytes:
        try:
            check_tls(context)
            request = decode(EnrolmentRequest, body)
            reply = await asyncio.get_running_loop().run_in_executor(self._pool, self._desk.enrol, request)
        except Exception as error:
            await refuse(context, error, None)
        log.info("enrolled a device", extra={"device": reply.device})
        return encode(reply)
