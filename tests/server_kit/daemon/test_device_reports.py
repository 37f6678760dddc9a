"""Devices are asked how good a model is only where their answers together say something."""

from __future__ import annotations

import pytest

from device_sdk.wire.messages import Blob, Dtype, ModelReference, TensorSpec
from device_sdk.wire.question_terms import mechanism_of
from privacy.budget import NeighbouringRelation
from privacy.randomness import NoiseSource
from server_kit.daemon.device_reports import DeviceReports, fewest_to_ask
from server_kit.store.protocol import SummaryRecord

MODEL = ModelReference(1, Blob(bytes(32), 80), (TensorSpec("w", Dtype.F32, (1,)),))
EPSILON = "1"


class Answering:
    """Devices that all answer the same, noised as on a device; and as much of a store as is asked for answers."""

    def __init__(self, share):
        self.share, self.answers = share, []

    def push(self, device, question):
        mechanism = mechanism_of(question, NeighbouringRelation.REPLACE)
        payload = mechanism.answer(self.share, NoiseSource()).payload
        record = SummaryRecord(device, mechanism.name, mechanism.terms, question.question, payload, 0.0)
        self.answers.append(record)
        return True

    def summaries(self, mechanism, subject, on_unreadable=None):
        return [each for each in self.answers if (each.mechanism, each.subject) == (mechanism, subject)]

    def forget_answers(self, mechanism, subject):
        self.answers = [each for each in self.answers if (each.mechanism, each.subject) != (mechanism, subject)]


def asked(share, num_devices, epsilon=EPSILON):
    devices = Answering(share)
    reports = DeviceReports(devices, devices.push, epsilon, every=1, patience_seconds=1.0)  # type: ignore[arg-type]
    reports.ask("0", 3, MODEL, [f"device-{number}" for number in range(num_devices)])
    return devices, reports.collected("0", 5.0)


@pytest.mark.parametrize("epsilon", ["0.25", "1", "4"])
def test_devices_too_few_to_tell_anything_are_not_asked_to_pay(epsilon):
    devices, told = asked(0.5, fewest_to_ask(epsilon) - 1, epsilon)

    assert devices.answers == []
    assert told == []


def test_answers_that_were_read_are_kept_no_longer():
    devices, told = asked(0.7, fewest_to_ask(EPSILON))

    assert told
    assert devices.answers == []


def test_enough_devices_tell_the_accuracy_within_its_error():
    _, (told,) = asked(0.7, 50 * fewest_to_ask(EPSILON))

    assert told.facts["round"] == 3
    assert told.facts["answers"] == 50 * fewest_to_ask(EPSILON)
    assert abs(told.facts["accuracy"] - 0.7) < 8 * told.facts["error"]
    assert told.facts["error"] < 0.05


@pytest.mark.parametrize("share", [0.0, 1.0])
def test_an_accuracy_is_a_share_whatever_the_noise(share):
    told = [asked(share, fewest_to_ask(EPSILON))[1][0].facts["accuracy"] for _ in range(20)]

    assert all(0 <= accuracy <= 1 for accuracy in told)
    assert share in told  # noise does carry it beyond the end, every other time


def test_as_many_as_are_asked_at_least_halve_the_error_when_four_times_as_many_are():
    assert fewest_to_ask("0.5") == pytest.approx(4 * fewest_to_ask("1"), abs=4)
