"""What a federation takes beside updates follows from its settings, and honest devices keep within it."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from device_sdk.wire.errors import Refused
from device_sdk.wire.messages import ChoiceBy, ErrorCode, QuestionKind, SummaryHeader
from device_sdk.wire.summary_terms import payload_bytes
from privacy.budget import NeighbouringRelation
from privacy.mechanisms import BoundedScalar, FeatureHistogram, LabelHistogram, RandomizedResponse, VotedChoice
from server_kit.config import ServerConfig
from server_kit.daemon.intake_checks import IntakeChecks
from server_kit.daemon.planning import wanted_of
from server_kit.daemon.questions import Asked
from server_kit.daemon.wanted import WantedSummaries
from server_kit.federation_state import Plan
from server_kit.layout import Layout
from server_kit.local_task import LocalTask
from tests.device_sdk.wire.devices import TestDevice
from tests.server_kit.daemon.test_device_reports import MODEL

LAYOUT = Layout((("dense1.weight", (3, 6)), ("dense1.bias", (3,))))
NAME = "ab" * 16


def wanted(settings: str = "", layout: Layout = LAYOUT) -> WantedSummaries:
    config = ServerConfig.of_text(settings)
    strategy = config.federation.strategy(config.privacy.level)
    return wanted_of(config, Plan(strategy, LocalTask(0.1, steps=2), layout, 4, lambda _: None))  # type: ignore[arg-type, return-value]


def header(mechanism: Any, subject: str = "1") -> SummaryHeader:
    return TestDevice(server="covey:test").summary(bytes(payload_bytes(mechanism)), mechanism, subject)


def takes(wanted: WantedSummaries, mechanism: Any, subject: str = "1") -> bool:
    try:
        return bool(wanted.mechanism_of(header(mechanism, subject), None) == mechanism)
    except Refused as refusal:
        if refusal.code is not ErrorCode.NOT_ASKED:
            raise
        return False


DEVICE = "[privacy]\nlevel = 'device'\n"
NAMED = "[privacy]\nhistogram = { labels = 10, epsilon = '1' }\n"


@pytest.mark.parametrize("settings", ["", DEVICE, "[federation]\npreset = 'fedavg'\n"])
def test_the_histograms_of_the_readme_and_the_examples_are_taken_where_none_is_named(settings):
    for labels in (10, 3):
        assert takes(wanted(settings), LabelHistogram(labels, "0.5"))
    assert takes(wanted(settings), FeatureHistogram(3, 8, 6, "0.5"))
    assert takes(wanted(settings), FeatureHistogram(3, 8, 6, "0.5", low=-1, high=255))


def test_where_one_is_named_no_other_is_taken():
    for relation in NeighbouringRelation:
        assert takes(wanted(NAMED), LabelHistogram(10, "1", relation))
    assert not takes(wanted(NAMED), LabelHistogram(10, "0.5"))
    assert not takes(wanted(NAMED), LabelHistogram(3, "1"))
    assert not takes(wanted(NAMED), FeatureHistogram(10, 8, 6, "1"))


def test_only_the_one_that_the_preset_reckons_with_is_used():
    assert wanted().uses(LabelHistogram(10, "1"))
    assert not wanted().uses(LabelHistogram(10, "0.5"))
    assert not wanted().uses(None)
    assert not wanted(DEVICE).uses(LabelHistogram(10, "1"))  # which looks for no cohorts


def test_there_are_no_more_labels_than_a_model_tells_apart():
    assert not takes(wanted(), LabelHistogram(11, "1"))
    wide = Layout((("head", (100, 6)),))
    assert takes(wanted(layout=wide), LabelHistogram(100, "1"))
    assert not takes(wanted(layout=wide), LabelHistogram(101, "1"))


def test_an_answer_is_told_as_the_settings_say():
    assert takes(wanted(), VotedChoice(4, "0.25"), NAME)
    assert takes(wanted(), BoundedScalar(0, 8, "0.25"), NAME)
    for other in (
        VotedChoice(4, "8"),
        VotedChoice(65, "0.25"),
        RandomizedResponse(4, "0.25"),
        BoundedScalar(0, 9, "1"),
    ):
        assert not takes(wanted(), other, NAME)
    assert not takes(wanted(), VotedChoice(4, "0.25"), "not a question")
    assert not takes(wanted("[federation]\npreset = 'fedavg'\n"), VotedChoice(4, "0.25"), NAME)


def test_an_open_question_is_answered_as_it_was_asked():
    device = TestDevice(server="covey:test")
    checks = IntakeChecks(wanted(), summaries_a_day=1)
    asked = Asked(QuestionKind.BEST_MODEL, (MODEL, MODEL), "0.25", choice_by=ChoiceBy.VOTES)
    checks.asking(asked.to(device.id, 1.0))
    right, wrong = (device.summary(bytes(8), VotedChoice(n, "0.25"), asked.name) for n in (2, 3))
    assert checks.mechanism_of(device.id, right) == VotedChoice(2, "0.25")
    with pytest.raises(Refused, match="does not ask for this summary"):
        checks.mechanism_of(device.id, wrong)


def test_answers_to_questions_are_not_counted_against_the_day():
    device, now = TestDevice(server="covey:test"), [0.0]
    checks = IntakeChecks(wanted(), summaries_a_day=2, clock=lambda: now[0])
    for number in range(10):
        asked = Asked(QuestionKind.BEST_MODEL, (MODEL, MODEL), "0.25", occasion=str(number), choice_by=ChoiceBy.VOTES)
        checks.asking(asked.to(device.id, 1.0))
        answer = device.summary(bytes(8), VotedChoice(2, "0.25"), asked.name)
        checks.mechanism_of(device.id, answer)
        checks.kept(device.id, answer)
    for number in range(2):
        shared = device.summary(bytes(80), LabelHistogram(10, "1"), str(number))
        checks.mechanism_of(device.id, shared)
        checks.kept(device.id, shared)
    with pytest.raises(Refused) as refused:
        checks.mechanism_of(device.id, device.summary(bytes(80), LabelHistogram(10, "1"), "2"))
    assert refused.value.code is ErrorCode.TOO_MANY_CALLS
    now[0] += refused.value.retry_after_seconds
    checks.mechanism_of(device.id, device.summary(bytes(80), LabelHistogram(10, "1"), "2"))


def test_a_summary_that_is_longer_than_is_kept_is_refused_before_it_comes():
    small = replace(wanted(), most_bytes=64)
    with pytest.raises(Refused, match="has 64 bytes") as refused:
        small.mechanism_of(header(LabelHistogram(10, "1")), None)
    assert refused.value.code is ErrorCode.MALFORMED
