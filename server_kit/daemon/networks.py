"""Where a caller comes from, as far as limits are concerned: an IPv4 address, or the /64 that an IPv6 host owns."""

from __future__ import annotations

import ipaddress
from urllib.parse import unquote

ELSEWHERE = "elsewhere"
"""Callers without an address, such as those of a Unix socket, count as one."""
_PREFIX = 64


def network_of(host: str) -> str:
    """The network that a host's address counts for. Whoever has one IPv6 address has 2^64 of them."""
    try:
        address = ipaddress.ip_address(host.partition("%")[0])
    except ValueError:
        return ELSEWHERE
    if isinstance(address, ipaddress.IPv4Address):
        return str(address)
    if address.ipv4_mapped is not None:
        return str(address.ipv4_mapped)
    return str(ipaddress.ip_network((address, _PREFIX), strict=False))


def network_of_peer(peer: str) -> str:
    """The network of a peer as gRPC writes it: `ipv4:192.0.2.1:40000`, `ipv6:%5B2001:db8::1%5D:40000`."""
    return network_of(unquote(peer).partition(":")[2].rpartition(":")[0].strip("[]"))


def port_of_peer(peer: str) -> int:
    """The port at the other end, 0 if there is none."""
    port = peer.rpartition(":")[2]
    return int(port) if port.isdecimal() else 0
