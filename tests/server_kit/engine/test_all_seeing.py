"""A server that sees every device, for comparison with published code: what it sees is true."""

from __future__ import annotations

import pytest

from server_kit.errors import InvalidSetting
from server_kit.simulation.device_speeds import HaccsSpeeds
from server_kit.simulation.privacy_terms import PrivacyTerms
from tests.server_kit.engine.worlds import people, small, world

SEEING = {"all_seeing": True}


def known(now):
    return {device: view for device, view in now.state.views.items() if view.loss is not None}


def test_before_a_round_everyone_who_has_checked_in_is_seen():
    with world("fedavg", settings=small(3, **SEEING)) as now:
        now.go_on()
        now.simulation._invite()

        assert known(now).keys() == now.state.views.keys()
        assert len(known(now)) == len(now.population.devices)


def test_losses_are_those_of_the_model_that_a_device_would_be_handed():
    with world("oracle", settings=small(3, **SEEING)) as now:
        for _ in now.events(6):
            pass
        now.simulation._invite()
        records = now.population.device_data("train", now.fleet.round)
        for device, view in known(now).items():
            own = now.federation.model(now.federation.memory["assigned"][device])
            assert view.loss == pytest.approx(float(now.trainer.evaluate(own, records, [device]).losses[0]), rel=1e-5)


def test_latencies_are_those_that_devices_then_take():
    with world("fedavg", people(speeds=HaccsSpeeds()), small(3, **SEEING)) as now:
        now.go_on(3)
        now.simulation._invite()
        for device, expected in now.fleet.expected.items():
            if expected.asked_at_seconds == now.simulation._now:
                took = expected.at_seconds - expected.asked_at_seconds
                assert now.state.views[device].latency_seconds == pytest.approx(took)


def test_without_it_a_server_knows_nothing_of_devices_that_never_took_part():
    with world("haccs", settings=small(1)) as now:
        now.go_on()

        assert 0 < len(known(now)) < len(now.population.devices)


def test_devices_with_a_budget_are_not_seen_through():
    with pytest.raises(InvalidSetting, match="would not tell"):
        small(**SEEING, privacy=PrivacyTerms(epsilon=8))
