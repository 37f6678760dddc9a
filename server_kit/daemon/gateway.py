"""The gateway: where enrolled devices come in, over mutual TLS 1.3, and nobody else does.

Every call is checked anew: the certificate, the register, the TLS version. A device has one stream, over which
its tasks are pushed the moment they exist; models and releases travel in calls of their own. A slow, silent or
flooding device is cut off by itself; the others do not notice.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Coroutine
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from datetime import timedelta
from typing import TYPE_CHECKING, Any

import grpc

from device_sdk.wire.codec import decode, encode
from device_sdk.wire.messages import GoodbyeReason, Question, RenewalReply, RenewalRequest
from device_sdk.wire.question_terms import understood_since
from device_sdk.wire.services import FEDERATION
from server_kit.daemon.attending import Attending
from server_kit.daemon.authority import DEVICE_LIFETIME
from server_kit.daemon.calls import Calls, Listening, blocking
from server_kit.daemon.connections import ConnectionLimits, Connections, keep_few
from server_kit.daemon.doorkeeper import Doorkeeper, Identity, identity_of, revoked
from server_kit.daemon.enclosures import Enclosures
from server_kit.daemon.refusals import REFUSALS, log, reason_of, refuse
from server_kit.daemon.streams import is_last
from server_kit.daemon.transfers import Transfers
from server_kit.daemon.transport import ConnectionTerms, ShownCertificate, server_options

if TYPE_CHECKING:
    from device_sdk.wire.messages import DeviceId, ServerMessage
    from server_kit.daemon.authority import Authority, ServerCertificate
    from server_kit.daemon.desk import Desk, Prompt
    from server_kit.daemon.event_loop import EventLoop
    from server_kit.daemon.register import EnrolledDevice, Register
    from server_kit.daemon.spool import Spool

_CLOSING_SECONDS = 10.0
_IDLE_SECONDS = 300.0
_AGE_SECONDS, _GRACE_SECONDS = 24 * 3600.0, 600.0
Handler = Callable[["EnrolledDevice", Listening], Coroutine[Any, Any, bytes | None]]


@dataclass(frozen=True)
class GatewaySettings:
    """How patient and how generous a gateway is."""

    most_upload_bytes: int = 1 << 30
    most_calls_per_device: int = 6
    most_connections_per_device: int = 4
    """A device has one, and for a while another with its next certificate."""
    most_connections_per_address: int = 4096
    """Many devices may share an address, and each has proved who it is."""
    most_connections: int = 16384
    messages_at_once: int = 500
    messages_a_second: float = 100.0
    """What a device may say on its stream: far more than the fastest rounds need."""
    silence_seconds: float = 120.0
    """A transfer in which no piece moves, or a call without its first message, for so long is cut."""
    sweep_seconds: float = 5.0
    """How often open calls are checked against the register: a revocation by another process shows here."""
    keep_unfinished_seconds: float = 24 * 3600.0
    certificate_lifetime: timedelta = DEVICE_LIFETIME
    desk_threads: int = 32
    """How many devices the desk hears at once; most of them wait for a disk, all for the same write."""


class Gateway:
    """Serves a desk to devices. Its methods may be called from any thread but the event loop's.

    `on_refusal` hears of every refusal, by reason and device, on the event loop.
    """

    def __init__(
        self,
        desk: Desk,
        register: Register,
        authority: Authority,
        spool: Spool,
        loop: EventLoop,
        *,
        settings: GatewaySettings | None = None,
        prompt: Prompt | None = None,
        on_refusal: Callable[[str, DeviceId | None], None] = lambda _, __: None,
    ) -> None:
        self._settings = settings = settings or GatewaySettings()
        self._on_refusal = on_refusal
        self._authority, self._spool, self._loop = authority, spool, loop
        self._doorkeeper = Doorkeeper(register)
        self._calls: Calls[Identity] = Calls(settings.most_calls_per_device, lambda identity: identity.device)
        self._terms = ConnectionTerms(settings.most_connections, _IDLE_SECONDS, _AGE_SECONDS, _GRACE_SECONDS)
        self._connections = Connections(
            ConnectionLimits(
                settings.most_connections_per_address,
                self._terms.in_all(),
                of_device=settings.most_connections_per_device,
                young_seconds=settings.silence_seconds,
            )
        )
        self._pool = ThreadPoolExecutor(settings.desk_threads, thread_name_prefix="covey-desk")
        self._enclosures = Enclosures(desk)
        self._attending = Attending(
            desk,
            self._enclosures,
            self._pool,
            settings.silence_seconds,
            settings.messages_at_once,
            settings.messages_a_second,
            prompt,
        )
        self._transfers = Transfers(
            desk, spool, self._pool, settings.silence_seconds, settings.most_upload_bytes, prompt
        )
        self._server: Any = None
        self._shown: ShownCertificate | None = None
        self._keepers: list[asyncio.Task[None]] = []

    def start(self, address: str, certificate: ServerCertificate) -> int:
        """Listen on host:port (port 0: any); returns the port."""
        return self._loop.run(self._start(address, certificate))

    def show(self, certificate: ServerCertificate) -> None:
        """Show another certificate from the next handshake on; nobody is disconnected."""
        if self._shown is not None:
            self._shown.replace(certificate)

    def push(self, device: DeviceId, message: ServerMessage) -> bool:
        """Send a message over a device's stream; False if it has none, or its version would not understand.

        Then the message is the caller's again.

        True means "on its way". What is under way when a connection breaks is lost; at its next check-in the
        device is given it again.
        """
        stream = self._attending.streams.find(device)
        if stream is None or self._loop.loop.is_closed():
            return False
        if isinstance(message, Question) and stream.version < understood_since(message):
            return False
        body = self._enclosures.encoded(device, message)
        self._loop.soon(stream.put_encoded, body, is_last(message))
        return True

    def connected(self) -> set[DeviceId]:
        """The devices with an open stream."""
        return self._attending.streams.devices()

    def revoke(self, device: DeviceId) -> None:
        """End everything a revoked device has under way. The register must say so first, or it comes back in."""

        async def cut_off() -> None:
            self._calls.cut_off_peer(device, revoked())

        self._loop.run(cut_off())

    def close(self, grace_seconds: float = 1.0) -> None:
        """Say goodbye on all streams, let transfers end for a while, stop."""
        if self._server is not None:
            self._loop.run(self._stop(grace_seconds))
        self._pool.shutdown()

    async def _start(self, address: str, certificate: ServerCertificate) -> int:
        self._shown = ShownCertificate(certificate, self._authority)
        self._server = grpc.aio.server(options=server_options(self._terms))
        # All as if many messages could come: gRPC would not tell us of a call with one before that one is here.
        handlers = {
            "Attend": grpc.stream_stream_rpc_method_handler(self._guarded(self._attend)),
            "Download": grpc.stream_stream_rpc_method_handler(self._guarded(self._download)),
            "Upload": grpc.stream_stream_rpc_method_handler(self._guarded(self._upload)),
            "Fetch": grpc.stream_unary_rpc_method_handler(self._guarded(self._fetch)),
            "Deliver": grpc.stream_unary_rpc_method_handler(self._guarded(self._deliver)),
            "Renew": grpc.stream_unary_rpc_method_handler(self._guarded(self._renew)),
        }
        self._server.add_generic_rpc_handlers((grpc.method_handlers_generic_handler(FEDERATION, handlers),))
        port: int = self._server.add_secure_port(address, self._shown.credentials)
        await self._server.start()
        self._keepers = [
            asyncio.create_task(self._sweep()),
            asyncio.create_task(keep_few(self._connections, "gateway", port, self._pool)),
        ]
        return port

    async def _stop(self, grace_seconds: float) -> None:
        for keeper in self._keepers:
            keeper.cancel()
        self._attending.streams.say_goodbye(GoodbyeReason.CLOSING)
        await self._server.stop(grace_seconds)
        # What a call does at its end may still need the desk.
        await self._calls.over(_CLOSING_SECONDS)

    def _guarded(self, handle: Handler) -> Callable[[Any, Any], Awaitable[bytes | None]]:
        """A handler that only enrolled devices reach, and whose failures become refusals."""

        async def call(_: Any, context: Any) -> bytes | None:
            device = None
            try:
                identity = identity_of(context)
                device = identity.device
                # A look-up takes less time than handing it to a thread would.
                enrolled = self._doorkeeper.admit(identity)
                listening = Listening(context, self._calls, self._settings.silence_seconds)
                with self._connections.calling(context.peer(), device):
                    return await self._calls.run(identity, handle(enrolled, listening))
            except Exception as error:
                if isinstance(error, REFUSALS):
                    self._on_refusal(reason_of(error), device)
                await refuse(context, error, device)

        return call

    async def _attend(self, enrolled: EnrolledDevice, context: Listening) -> None:
        await self._attending.attend(enrolled.device, context)

    async def _download(self, enrolled: EnrolledDevice, context: Listening) -> None:
        await self._transfers.download(enrolled.device, await context.only_message(), context)

    async def _upload(self, enrolled: EnrolledDevice, context: Listening) -> None:
        await self._transfers.upload(enrolled, context)

    async def _fetch(self, enrolled: EnrolledDevice, context: Listening) -> bytes:
        return await self._transfers.fetch(enrolled.device, await context.only_message())

    async def _deliver(self, enrolled: EnrolledDevice, context: Listening) -> bytes:
        return await self._transfers.deliver(enrolled, await context.only_message())

    async def _renew(self, enrolled: EnrolledDevice, context: Listening) -> bytes:
        asked = decode(RenewalRequest, await context.only_message()).certificate_request
        issue, lifetime = self._authority.issue_device, self._settings.certificate_lifetime
        certificate = await blocking(self._pool, issue, asked, enrolled.device, lifetime)
        log.info("renewed a certificate", extra={"device": enrolled.device})
        return encode(RenewalReply(certificate))

    async def _sweep(self) -> None:
        while True:
            try:
                await self._sweep_once()
            except Exception:
                log.exception("failed to check who may still be connected; trying again")
            await asyncio.sleep(self._settings.sweep_seconds)

    async def _sweep_once(self) -> None:
        await blocking(self._pool, self._spool.forget, self._settings.keep_unfinished_seconds)
        unwelcome = await blocking(self._pool, self._doorkeeper.no_longer_welcome, self._calls.callers())
        for identity, refusal in unwelcome.items():
            self._calls.cut_off(identity, refusal)
