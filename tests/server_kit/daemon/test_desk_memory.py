"""What a desk remembers to spare itself work never decides: the store does, and in doubt a worker looks."""

from __future__ import annotations

import pytest

from server_kit.daemon.intake_checks import IntakeChecks
from server_kit.daemon.live_desk import Identity, LiveDesk
from server_kit.store.protocol import TaskState
from tests.server_kit.daemon.paper_server import SERVER, PaperServer


@pytest.fixture
def server(tmp_path):
    made = PaperServer(tmp_path)
    yield made
    made.close()


def second_gateway(server):
    """Another desk on the same store, as behind a load balancer."""
    return LiveDesk(
        server.store,
        Identity(SERVER, server.key),
        server.seal,
        server.models,
        IntakeChecks(server.wanted, clock=server.clock),
        wake=lambda: None,
        arrived=lambda _: None,
        clock=server.clock,
    )


def test_an_update_that_another_gateway_has_counted_is_acknowledged_and_not_counted_again(server):
    first, second = server.desk, second_gateway(server)
    device, *others = devices = server.devices(4)
    server.turn()
    for each in devices:
        assert not each.answer().repeated
    server.turn()
    for each in devices:
        each.check_in()
    server.turn()
    server.desk = second
    assert not device.answer().repeated
    server.desk = first  # which still takes the update before for the newest
    assert device.send_again().repeated
    assert not others[0].answer().repeated
    second.close()
    arrived = {task.device for task in server.store.tasks() if task.state is TaskState.ARRIVED}
    assert arrived == {device.id, others[0].id}


def test_an_update_follows_one_that_another_gateway_has_counted(server):
    first, second = server.desk, second_gateway(server)
    devices = server.devices(4)
    for desk in (first, second, first):
        server.turn()
        server.desk = desk
        assert not any(device.answer().repeated for device in devices)
        server.desk = first
        server.turn()
        for device in devices:
            device.check_in()
    second.close()
    assert server.store.cohorts()[0].round == 3


def woken_by(server, device):
    """Whether the worker is woken for this device's answer."""
    device.answer()
    header, _ = device.last_upload
    return server.desk.may_be_due(header)


def test_a_worker_is_woken_by_the_answer_that_may_end_its_round_and_not_before(server):
    devices = server.devices(4)
    server.turn()
    assert [woken_by(server, device) for device in devices] == [False, False, False, True]


def test_a_worker_is_never_woken_too_late_where_devices_were_lost(server):
    lost, *others = server.devices(4)
    server.turn()
    server.desk.give_up(next(task for task in server.desk.out() if task.device == lost.id))
    assert [woken_by(server, device) for device in others] == [False, False, True]


def test_a_desk_that_was_told_nothing_wakes_workers_for_every_answer(server):
    device, *_ = server.devices(4)
    server.turn()
    server.desk.told.out_when_due.clear()
    assert woken_by(server, device)
