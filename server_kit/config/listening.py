"""[listen]: where the server listens, and under which names devices reach it."""

from __future__ import annotations

import ipaddress
import re
from dataclasses import dataclass

from device_sdk.wire.errors import InvalidInvitation
from device_sdk.wire.invitation import Address
from server_kit.config.checking import require

_HOST = re.compile(r"(?=.{1,253}$)[A-Za-z0-9](?:[A-Za-z0-9.-]*[A-Za-z0-9])?", re.ASCII)
_ANYWHERE = ("0.0.0.0", "::", "[::]")  # noqa: S104 - compared with, not bound to


@dataclass(frozen=True)
class Listen:
    """[listen]: the three doors. Only the first two are meant for other machines."""

    enrolment: str = "127.0.0.1:8444"
    gateway: str = "127.0.0.1:8443"
    status: str = "127.0.0.1:8480"
    """Health, metrics and dashboard. All but health ask for a token, over plain HTTP."""
    hosts: tuple[str, ...] = ("localhost", "127.0.0.1")
    """Names and addresses for the server's certificate; the first one is what invitations say."""
    public_enrolment: str | None = None
    """host:port in invitations, where it differs: behind a balancer or a translated address."""
    public_gateway: str | None = None

    def __post_init__(self) -> None:
        for name in ("enrolment", "gateway", "status", "public_enrolment", "public_gateway"):
            if (text := getattr(self, name)) is not None:
                _address(text, name)
        require(bool(self.hosts), "hosts must name the server at least once")
        for host in self.hosts:
            require(_is_host(host), f"hosts must be names or addresses without a port, got {host!r}")
        doors = [self.enrolment, self.gateway, self.status]
        require(len(set(doors)) == len(doors), "enrolment, gateway and status must listen on ports of their own")

    @property
    def enrolment_address(self) -> Address:
        """What invitations say."""
        return self._public(self.public_enrolment, self.enrolment)

    @property
    def gateway_address(self) -> Address:
        """Where enrolled devices go."""
        return self._public(self.public_gateway, self.gateway)

    @property
    def status_address(self) -> Address:
        return _address(self.status, "status")

    @property
    def status_is_local(self) -> bool:
        """Whether only this machine reaches the status port."""
        host = self.status_address.host
        return host == "localhost" or (_is_ip(host) and ipaddress.ip_address(host).is_loopback)

    @property
    def dashboard(self) -> str:
        """Where the dashboard is, for a browser."""
        address = self.status_address
        host = self.hosts[0] if address.host in _ANYWHERE else address.host
        return f"http://{f'[{host}]' if ':' in host else host}:{address.port}/"

    def _public(self, given: str | None, listening: str) -> Address:
        if given is not None:
            return Address.from_text(given)
        return Address(self.hosts[0], Address.from_text(listening).port)


def _address(text: str, name: str) -> Address:
    try:
        return Address.from_text(text)
    except InvalidInvitation:
        require(condition=False, sentence=f"{name} must be host:port, got {text!r}")
        raise


def _is_host(text: str) -> bool:
    return _is_ip(text) or _HOST.fullmatch(text) is not None


def _is_ip(text: str) -> bool:
    try:
        ipaddress.ip_address(text)
    except ValueError:
        return False
    return True
