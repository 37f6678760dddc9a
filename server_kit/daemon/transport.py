"""The server's TLS and gRPC settings: TLS 1.3 or nothing, bounded messages, quick handshakes."""

from __future__ import annotations

import resource
from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import grpc

from device_sdk.wire.errors import Refused
from device_sdk.wire.messages import ErrorCode
from device_sdk.wire.services import KEEPALIVE_PATIENCE, MESSAGE_LIMITS

if TYPE_CHECKING:
    from server_kit.daemon.authority import Authority, ServerCertificate

_HANDSHAKE_SECONDS = 10
_KEEPALIVE_SECONDS = 60
_LEAST_BETWEEN_PINGS_SECONDS = 5
_CALLS_PER_CONNECTION = 16
_OF_DESCRIPTORS = 0.8
"""The share of the descriptors that this process may have which connections may take: files need some too."""


@dataclass(frozen=True)
class ConnectionTerms:
    """How many connections a port takes, and for how long each may stand."""

    most: int
    idle_seconds: float
    """Without a call."""
    age_seconds: float
    grace_seconds: float
    """For what is under way on a connection that has come of age."""

    def in_all(self) -> int:
        """As many as the settings say, and no more than the system has descriptors for."""
        soft, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
        return self.most if soft == resource.RLIM_INFINITY else min(self.most, int(soft * _OF_DESCRIPTORS))


def server_options(terms: ConnectionTerms) -> list[tuple[str, int]]:
    """gRPC's own limits, so that a stranger can neither stall nor flood a port."""
    return [
        *MESSAGE_LIMITS,
        ("grpc.max_allowed_incoming_connections", terms.in_all()),
        ("grpc.max_connection_idle_ms", int(terms.idle_seconds * 1000)),
        ("grpc.max_connection_age_ms", int(terms.age_seconds * 1000)),
        ("grpc.max_connection_age_grace_ms", int(terms.grace_seconds * 1000)),
        # Two servers on one port would share its connections without a word.
        ("grpc.so_reuseport", 0),
        ("grpc.server_handshake_timeout_ms", _HANDSHAKE_SECONDS * 1000),
        ("grpc.max_concurrent_streams", _CALLS_PER_CONNECTION),
        ("grpc.keepalive_time_ms", _KEEPALIVE_SECONDS * 1000),
        *KEEPALIVE_PATIENCE,
        ("grpc.keepalive_permit_without_calls", 1),
        ("grpc.http2.min_ping_interval_without_data_ms", _LEAST_BETWEEN_PINGS_SECONDS * 1000),
    ]


class ShownCertificate:
    """The certificate that a server shows. It can be replaced while the server runs; open connections keep theirs."""

    def __init__(self, certificate: ServerCertificate, devices_of: Authority | None = None) -> None:
        self._roots = None if devices_of is None else devices_of.certificate_pem
        self._next: Any = None
        self.credentials = grpc.dynamic_ssl_server_credentials(
            self._configured(certificate), self._fetch, require_client_authentication=devices_of is not None
        )
        """For gRPC; with `devices_of`, only peers that this authority vouches for come in."""

    def replace(self, certificate: ServerCertificate) -> None:
        """Show another certificate from the next handshake on."""
        self._next = self._configured(certificate)

    def _configured(self, certificate: ServerCertificate) -> Any:
        pairs = [(certificate.private_key, certificate.certificate)]
        return grpc.ssl_server_certificate_configuration(pairs, self._roots)

    def _fetch(self) -> Any:
        """gRPC asks at every handshake; None is "as before"."""
        fetched, self._next = self._next, None
        return fetched


def check_tls(context: Any) -> Mapping[str, list[bytes]]:
    """What gRPC knows of the caller. Raises `Refused` unless it came over TLS 1.3; gRPC itself would take 1.2."""
    known: Mapping[str, list[bytes]] = context.auth_context()
    versions = known.get("ssl_tls_version", [])
    if versions != [b"TLSv1.3"]:
        spoken = versions[0].decode("ascii", "replace") if versions else "no TLS"
        raise Refused(ErrorCode.TLS_TOO_OLD, f"this server speaks TLS 1.3 only and the caller {spoken}; update it")
    return known
