"""The enrolment desk: the one place that talks to strangers, on a port of its own.

A stranger shows an invitation, a certificate request and two keys, and proves to hold all three keys. It leaves
with a certificate or with the reason why not. What it asks to be called is ignored: its name is the hash of its
signing key.

A stranger gets little: few seconds for its message, few calls and connections for its address, few wrong invitations.
Whoever says nothing makes way for whoever does, so honest newcomers get in from the same address too.
"""

from __future__ import annotations

import asyncio
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from datetime import timedelta
from typing import TYPE_CHECKING, Any, NoReturn

import grpc

from device_sdk.wire.codec import decode, encode
from device_sdk.wire.errors import Refused
from device_sdk.wire.messages import EnrolmentReply, EnrolmentRequest, ErrorCode
from device_sdk.wire.services import ENROLMENT
from device_sdk.wire.signing import check_enrolment, device_id
from server_kit.daemon.authority import DEVICE_LIFETIME
from server_kit.daemon.calls import Calls, Listening, blocking
from server_kit.daemon.connections import ConnectionLimits, Connections, keep_few
from server_kit.daemon.networks import network_of_peer
from server_kit.daemon.refusals import REFUSALS, log, reason_of, refuse
from server_kit.daemon.register import EnrolledDevice, Register
from server_kit.daemon.transport import ConnectionTerms, ShownCertificate, check_tls, server_options
from server_kit.daemon.wrong_invitations import WRONG_INVITATION, WrongInvitations, too_many_wrong

if TYPE_CHECKING:
    from collections.abc import Callable

    from device_sdk.wire.invitation import Address
    from server_kit.daemon.authority import Authority, ServerCertificate
    from server_kit.daemon.event_loop import EventLoop
    from server_kit.daemon.invitations import Invitations

_AGE_SECONDS, _GRACE_SECONDS = 60.0, 10.0
_HELD_SECONDS = 1.0
"""For so long whoever guesses too often waits for the answer."""


@dataclass(frozen=True)
class EnrolmentSettings:
    """What a stranger may take."""

    message_seconds: float = 10.0
    """For the message of a call; and for the first call of a connection."""
    calls_per_address: int = 16
    most_calls: int = 256
    connections_per_address: int = 64
    most_connections: int = 1024
    wrong_invitations_a_minute: float = 20.0
    """From one address, and ten times as many from all together."""


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
        device = device_id(request.signing_key)
        # First what costs us least: whoever guesses makes us look once, and neither check nor sign anything.
        self.invitations.check(request.invitation_secret, device)
        check_enrolment(request)
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

    def __init__(
        self,
        desk: EnrolmentDesk,
        loop: EventLoop,
        settings: EnrolmentSettings | None = None,
        on_refusal: Callable[[str, None], None] = lambda _, __: None,
    ) -> None:
        self._desk, self._loop, self._on_refusal = desk, loop, on_refusal
        self._settings = settings = settings or EnrolmentSettings()
        self._pool = ThreadPoolExecutor(max_workers=4, thread_name_prefix="covey-enrolment")
        self._calls: Calls[str] = Calls(settings.calls_per_address, str, settings.most_calls)
        self._terms = ConnectionTerms(settings.most_connections, settings.message_seconds, _AGE_SECONDS, _GRACE_SECONDS)
        self._connections = Connections(
            ConnectionLimits(
                settings.connections_per_address, self._terms.in_all(), young_seconds=settings.message_seconds
            )
        )
        self.wrong_invitations = WrongInvitations(settings.wrong_invitations_a_minute)
        self._keeper: asyncio.Task[None] | None = None
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
            self._loop.run(self._stop(grace_seconds))
        self._pool.shutdown()

    async def _start(self, address: str, certificate: ServerCertificate) -> int:
        self._server = grpc.aio.server(options=server_options(self._terms))
        # As if many messages could come: gRPC would not tell us of a call before its message is here.
        handlers = {"Enrol": grpc.stream_unary_rpc_method_handler(self._enrol)}
        self._server.add_generic_rpc_handlers((grpc.method_handlers_generic_handler(ENROLMENT, handlers),))
        self._shown = ShownCertificate(certificate)
        port: int = self._server.add_secure_port(address, self._shown.credentials)
        await self._server.start()
        self._keeper = asyncio.create_task(keep_few(self._connections, "enrolment", port, self._pool))
        return port

    async def _stop(self, grace_seconds: float) -> None:
        if self._keeper is not None:
            self._keeper.cancel()
        await self._server.stop(grace_seconds)
        await self._calls.over(grace_seconds)

    async def _enrol(self, _: Any, context: Any) -> bytes:
        network = network_of_peer(context.peer())
        try:
            reply = await self._calls.run(network, self._answer(network, context))
        except Refused as refusal:
            if refusal.code is ErrorCode.TOO_MANY_CALLS:
                self._on_refusal(reason_of(refusal), None)
                await _say_busy(context, refusal)
            await self._refuse(context, refusal)
        except Exception as error:
            await self._refuse(context, error)
        log.info("enrolled a device", extra={"device": reply.device})
        return encode(reply)

    async def _answer(self, network: str, context: Any) -> EnrolmentReply:
        body = await Listening(context, self._calls, self._settings.message_seconds).only_message()
        with self._connections.calling(context.peer()):
            check_tls(context)
            request = decode(EnrolmentRequest, body)
            try:
                return await blocking(self._pool, self._desk.enrol, request)
            except Refused as refusal:
                if refusal.code not in WRONG_INVITATION or self.wrong_invitations.may_be_told(network):
                    raise
        # If others want its place, they get it.
        self._calls.hear(heard=False)
        await asyncio.sleep(_HELD_SECONDS)
        raise too_many_wrong()

    async def _refuse(self, context: Any, error: Exception) -> NoReturn:
        if isinstance(error, REFUSALS):
            self._on_refusal(reason_of(error), None)
        await refuse(context, error, None)


async def _say_busy(context: Any, refusal: Refused) -> NoReturn:
    """End a call without a line in the log: there may be thousands. Devices of every version try again on this code."""
    await context.abort(grpc.StatusCode.RESOURCE_EXHAUSTED, str(refusal))
    raise AssertionError("abort does not return")
