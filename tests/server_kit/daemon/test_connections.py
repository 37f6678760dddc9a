"""Which connections are hung up: the idle before the busy, the old before the young, each network for itself."""

from __future__ import annotations

import socket

import pytest

from server_kit.daemon.connections import ConnectionLimits, Connections, Held, hang_up, held_to
from server_kit.daemon.networks import network_of, network_of_peer, port_of_peer


def held(network: str, *ports: int) -> list[Held]:
    return [Held(port, port, (network, port)) for port in ports]


def ports(connections: Connections, stand: list[Held]) -> list[int]:
    return sorted(each.end[1] for each in connections.excess(stand))


@pytest.mark.parametrize(
    ("host", "network"),
    [
        ("192.0.2.7", "192.0.2.7"),
        ("::ffff:192.0.2.7", "192.0.2.7"),
        ("2001:db8:1:2:3:4:5:6", "2001:db8:1:2::/64"),
        ("fe80::1%eth0", "fe80::/64"),
        ("localhost", "elsewhere"),
        ("", "elsewhere"),
    ],
)
def test_an_ipv6_host_counts_as_its_network_of_64_bits(host, network):
    assert network_of(host) == network


def test_a_peer_is_read_as_grpc_writes_it():
    assert (network_of_peer("ipv4:192.0.2.7:40000"), port_of_peer("ipv4:192.0.2.7:40000")) == ("192.0.2.7", 40000)
    assert network_of_peer("ipv6:%5B2001:db8::1%5D:40000") == "2001:db8::/64"
    assert port_of_peer("ipv6:%5B2001:db8::1%5D:40000") == 40000
    assert (network_of_peer("unix:/run/x"), port_of_peer("unix:/run/x")) == ("elsewhere", 0)


def test_within_the_limits_nobody_is_hung_up():
    connections = Connections(ConnectionLimits(of_network=3, in_all=100))
    assert ports(connections, held("a", 1, 2, 3) + held("b", 4, 5, 6)) == []


def test_of_a_network_the_oldest_idle_ones_go():
    connections = Connections(ConnectionLimits(of_network=2, in_all=100))
    assert ports(connections, held("a", 1, 2)) == []
    with connections.calling("ipv4:192.0.2.1:1"):
        assert ports(connections, held("a", 1, 2, 3, 4)) == [1, 2], "another network's call protects nobody"


def test_a_connection_with_a_call_goes_last():
    connections = Connections(ConnectionLimits(of_network=2, in_all=100))
    with connections.calling("ipv4:192.0.2.1:1", "device"):
        assert ports(connections, held("192.0.2.1", 1, 2, 3, 4)) == [2, 3]
    assert ports(connections, held("192.0.2.1", 1, 2, 3, 4)) == [1, 2]


def test_many_that_come_in_the_same_moment_have_time():
    now = [0.0]
    connections = Connections(ConnectionLimits(of_network=2, in_all=100, young_seconds=10), clock=lambda: now[0])
    assert ports(connections, held("a", *range(1, 9))) == []
    now[0] = 5.0
    assert ports(connections, held("a", *range(1, 12))) == []
    now[0] = 10.0
    assert ports(connections, held("a", *range(1, 12))) == [1, 2, 3, 4, 5, 6, 7, 8]


def test_where_the_port_is_nearly_full_the_young_make_way_too():
    connections = Connections(ConnectionLimits(of_network=2, in_all=10, young_seconds=10), clock=lambda: 0.0)
    assert ports(connections, held("a", *range(1, 13))) == [1, 2, 3]


def test_of_a_device_the_newest_stay():
    connections = Connections(ConnectionLimits(of_network=100, in_all=100, of_device=2))
    stand: list[Held] = []
    for port in (5, 4, 3, 2):
        stand += held("192.0.2.1", port)
        with connections.calling(f"ipv4:192.0.2.1:{port}", "device"):
            doomed = ports(connections, stand)
    assert doomed == [4, 5]


def test_where_all_are_too_many_the_largest_network_makes_way():
    connections = Connections(ConnectionLimits(of_network=100, in_all=10))
    assert ports(connections, held("a", *range(1, 9)) + held("b", 20, 21, 22)) == [1, 2]


def test_what_is_gone_is_forgotten():
    connections = Connections(ConnectionLimits(of_network=1, in_all=100, of_device=1))
    with connections.calling("ipv4:192.0.2.1:1", "device"):
        connections.excess(held("192.0.2.1", 1))
    connections.excess([])
    assert (connections._since, connections._devices, connections._calls) == ({}, {}, {})


def test_sockets_of_a_port_are_found_and_hung_up():
    with socket.create_server(("127.0.0.1", 0)) as listener:
        port = listener.getsockname()[1]
        with socket.create_connection(("127.0.0.1", port)) as far, listener.accept()[0] as near:
            known: dict = {}
            (found,) = held_to(port, known)
            assert found.end == ("127.0.0.1", far.getsockname()[1])
            assert held_to(port, known) == [found]
            assert hang_up([found]) == 1
            far.settimeout(5)
            assert far.recv(1) == b""
            assert near.fileno() == found.descriptor, "it is shut down, and still its owner's to close"


def test_a_number_that_is_another_files_by_now_is_left_alone():
    ours, theirs = socket.socketpair()
    with ours, theirs:
        assert hang_up([Held(ours.fileno(), -1, ("a", 1))]) == 0
        theirs.sendall(b"x")
        assert ours.recv(1) == b"x"
