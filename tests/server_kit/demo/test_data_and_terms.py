"""The data have the kinds that are told, nothing is tested that was trained, and the promise of ε holds."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from privacy.accounting import BudgetLimits, spend_of
from privacy.budget import PrivacyBudget, PrivacyUnit
from server_kit.config.policy import check_policy
from server_kit.config.server_config import ServerConfig
from server_kit.demo.data import KINDS, Records, deal
from server_kit.demo.errors import DemoFailed
from server_kit.demo.measuring import Examiner, OneModel
from server_kit.demo.terms import EPSILON, Ports, Terms, as_toml, with_setting
from server_kit.models import initial_model
from server_kit.simulation.rotation import rotate

DEVICES = deal(12)


def upright(records, kind):
    """The images as they were before a kind turned them, as a set."""
    images = records.images.reshape(-1, 8, 8)
    return {image.tobytes() for image in rotate(images, -KINDS[kind].degrees)}


def shared(devices):
    """Images that are tested somewhere and trained on somewhere, turned or not."""
    trained = set().union(*(upright(device.train, device.kind) for device in devices))
    return trained & set().union(*(upright(device.test, device.kind) for device in devices))


def test_no_test_image_is_trained_on_by_any_device():
    assert not shared(DEVICES)


def test_a_leak_between_kinds_is_caught():
    one, other = DEVICES[0], DEVICES[1]
    images = rotate(other.test.images.reshape(-1, 8, 8), KINDS[one.kind].degrees - KINDS[other.kind].degrees)
    leaking = type(one)(
        one.name, one.kind, Records(images.reshape(len(images), -1).astype(np.float32), other.test.labels), one.test
    )
    assert shared([leaking, other])


@pytest.mark.parametrize("device", DEVICES, ids=lambda device: device.name)
def test_a_device_holds_mostly_the_digits_of_its_kind(device):
    share = np.isin(device.train.labels, KINDS[device.kind].favourites).mean()
    assert share == pytest.approx(0.6, abs=0.01)
    assert device.train.images.min() >= 0
    assert device.train.images.max() <= 1


def test_the_same_seed_deals_the_same():
    assert all(
        np.array_equal(one.train.images, other.train.images) for one, other in zip(DEVICES, deal(12), strict=True)
    )


def test_records_survive_a_file(tmp_path):
    DEVICES[0].train.save(tmp_path / "records.npz")
    loaded = Records.load(tmp_path / "records.npz")
    assert np.array_equal(loaded.images, DEVICES[0].train.images)
    assert np.array_equal(loaded.labels, DEVICES[0].train.labels)


@settings(max_examples=10)
@given(st.integers(6, 96), st.integers(8, 100))
def test_the_settings_are_valid_and_leave_room_for_all_rounds(devices, rounds):
    config = ServerConfig.of_text(Terms(devices, rounds).settings(Ports(1001, 1002, 1003)))
    allowance = check_policy(config)
    assert allowance.rounds >= rounds
    assert allowance.answers >= 1
    assert config.federation.participants == devices
    assert config.listen.enrolment == "127.0.0.1:1002"


@settings(max_examples=10)
@given(st.integers(8, 100))
def test_the_one_model_costs_no_more_than_the_budget(rounds):
    terms = Terms(24, rounds)
    cost = terms.mechanism_of_one_model({"a": (1,)}).cost
    limits = BudgetLimits.of(PrivacyBudget(EPSILON, 1e-6, PrivacyUnit.RECORD, pure_epsilon=0.0001))
    assert spend_of(cost, limits).renyi_nano * rounds <= limits.renyi_nano


def test_a_setting_that_the_sample_does_not_name_is_refused():
    with pytest.raises(DemoFailed, match="no_such_setting"):
        with_setting("\n[federation]\nname = 'a'\n", "federation", "no_such_setting", 1)


def test_tables_are_written_as_toml():
    assert as_toml({"a": 1.5, "b": {"c": "d"}}) == '{ a = 1.5, b = { c = "d" } }'


def test_the_one_model_learns_under_its_noise():
    model = initial_model("server_kit.models:digits_softmax", 0)
    start = {name: view.numpy() for name, view in model.layout.views(model.weights).items()}
    one = OneModel(DEVICES, start, Terms(12, 20), Examiner(DEVICES))
    for _ in range(6):
        one.train_a_round()
    assert one.rounds[-1].mean() > one.rounds[0].mean() + 0.2
