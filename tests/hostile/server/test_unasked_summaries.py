"""A device sends summaries that nobody asked for, of any length, as many as it likes: nothing is taken, nobody suffers.

Eight bytes once stopped a federation for good, and one device filled the disk and the memory.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest

from device_sdk.wire.errors import Refused
from device_sdk.wire.messages import CheckIn, ErrorCode, GoodbyeReason, SummaryHeader, Term
from device_sdk.wire.signing import signed
from device_sdk.wire.tensors import blob_of
from privacy.budget import NeighbouringRelation
from privacy.mechanisms import FeatureHistogram, LabelHistogram, RandomizedResponse
from privacy.packing import pack
from privacy.receipts import Receipt
from server_kit.store.protocol import Arrival
from tests.hostile.server.liar import COUNTS, HISTOGRAM, Liar, terms_of
from tests.hostile.server.living import Living, go_on, honest_pair, peak_of
from tests.server_kit.daemon.real_daemon import wait_until

pytestmark = pytest.mark.integration

MEBIBYTE = 1 << 20


@pytest.fixture(scope="module")
def daemon(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Living]:
    """One for all that must leave no trace in it."""
    with Living(tmp_path_factory.mktemp("daemon")) as daemon:
        yield daemon.begun()


@pytest.fixture
def liar(daemon: Living) -> Liar:
    return Liar(daemon.stranger())


OTHERS: dict[str, tuple[dict[str, Any], bytes]] = {
    "shorter than its terms": ({}, COUNTS[:8]),
    "longer than its terms": ({}, bytes(88)),
    "empty of terms": ({"terms": ()}, COUNTS),
    "with a term twice": ({"terms": (*terms_of(HISTOGRAM), Term("epsilon", "1"))}, COUNTS),
    "of more labels than there are": ({"terms": terms_of(LabelHistogram(1000, "1"))}, bytes(8000)),
    "of an epsilon that takes for ever to expand": ({"terms": terms_of(HISTOGRAM, epsilon="1e999999999")}, COUNTS),
    "of an epsilon near nothing": ({"terms": terms_of(LabelHistogram(10, "0.000001"))}, COUNTS),
    "of a range that is none": (
        {"mechanism": "feature_histogram", "terms": terms_of(FeatureHistogram(2, 2, 2, "1"), high="inf")},
        bytes(32),
    ),
    "of billions of bins": (
        {"mechanism": "feature_histogram", "terms": terms_of(FeatureHistogram(10, 2, 2, "1"), num_bins=2**30)},
        bytes(32),
    ),
    "by a mechanism that is none": ({"mechanism": "a_diary", "terms": ()}, b"dear diary"),
    "in answer to nothing": (
        {"mechanism": "randomized_response", "terms": terms_of(RandomizedResponse(3, "100")), "subject": "a" * 32},
        bytes(8),
    ),
}


@pytest.mark.parametrize("other", OTHERS)
def test_only_what_is_asked_for_is_taken(other: str, daemon: Living, liar: Liar) -> None:
    claims, payload = OTHERS[other]
    assert liar.refusal(payload, **claims) in {ErrorCode.NOT_ASKED, ErrorCode.MALFORMED}
    kept = daemon.store.summaries(claims.get("mechanism", HISTOGRAM.name))
    assert liar.device.id not in {each.device for each in kept}
    assert daemon.store.last_receipt(liar.device.ledger.public_key) is None


def test_a_refusal_says_what_is_wanted(daemon: Living, liar: Liar) -> None:
    with pytest.raises(Refused, match="a label_histogram of 10 labels at epsilon 1"):
        liar.share(b"dear diary", mechanism="a_diary", terms=())


def test_counts_that_nobody_has_are_refused_and_leave_a_liar_out(daemon: Living, liar: Liar) -> None:
    for _ in range(3):
        assert liar.refusal(pack([2**62] * 10)) is ErrorCode.MALFORMED
    wait_until(lambda: bool(daemon.store.happenings(kind="ban")), "the ban of a liar")
    assert daemon.store.happenings(kind="ban")[-1].facts["device"] == liar.device.id


def test_rounds_go_on_beside_eight_bytes_that_once_stopped_them(daemon: Living, liar: Liar, tmp_path: Path) -> None:
    liar.refusal(COUNTS[:8])
    before = daemon.living()["coordinator"]
    with honest_pair(daemon, tmp_path), liar.device.channel() as channel, channel.attend(10) as session:
        session.check_in(CheckIn())
        go_on(daemon)
    assert daemon.living()["coordinator"] == before
    assert daemon.faults() == []


TABLE = FeatureHistogram(10, 16, 2, "0.1")
POISON: dict[str, list[tuple[str, dict[str, Any], bytes]]] = {
    "covey": [
        (HISTOGRAM.name, dict(HISTOGRAM.terms), COUNTS[:8]),
        (HISTOGRAM.name, dict(HISTOGRAM.terms), pack([2**63 - 1] * 10)),
        (HISTOGRAM.name, {}, COUNTS),
    ],
    "haccs_features": [
        (TABLE.name, {**TABLE.terms, "low": 10**4000}, bytes(1280)),
        (TABLE.name, dict(TABLE.terms), bytes(8)),
        (TABLE.name, dict(FeatureHistogram(10, 3, 2, "0.1").terms), bytes(240)),
        (TABLE.name, {**FeatureHistogram(10, 2, 2, "0.1").terms, "num_bins": 10**9}, bytes(8)),
    ],
}
"""Rows as an older version has stored them, by the preset that reads them."""


@pytest.mark.parametrize("preset", POISON)
def test_a_federation_that_holds_such_rows_starts_and_serves(preset: str, tmp_path: Path) -> None:
    more = "[privacy]\nhistogram = { epsilon = 0.1 }\n" if preset == "haccs_features" else ""
    with Living(tmp_path, preset, more) as daemon:
        liars = [Liar(daemon.stranger()) for _ in POISON[preset]]
        for liar, row in zip(liars, POISON[preset], strict=True):
            _store(daemon, liar, *row)
        daemon.begun()
        before = daemon.living()["coordinator"]
        with ExitStack() as stack:
            for liar in liars:
                session = stack.enter_context(stack.enter_context(liar.device.channel()).attend(20))
                session.check_in(CheckIn())
                # They need not hold up rounds as well.
                stack.callback(session.close, GoodbyeReason.LEAVING)
            # The founding of cohorts reads their rows.
            wait_until(lambda: bool(_left_out(daemon)), "the reading of the rows")
        with honest_pair(daemon, tmp_path):
            go_on(daemon)
        assert daemon.living()["coordinator"] == before
        assert daemon.faults() == []
        assert _left_out(daemon) <= {liar.device.id for liar in liars}
        daemon.answers_everybody()


def _left_out(daemon: Living) -> set[str]:
    return {str(each["device"]) for each in daemon.events() if "was left out" in str(each.get("event"))}


def _store(daemon: Living, liar: Liar, mechanism: str, terms: dict[str, Any], payload: bytes) -> None:
    line = liar.receipt(payload)
    receipt = Receipt.from_json(line)
    header = SummaryHeader(mechanism, (), "1", blob_of(payload), receipt.head, receipt.sequence, line)
    object.__setattr__(header, "terms", tuple(Term(name, value) for name, value in terms.items()))
    assert daemon.store.accept([Arrival(liar.device.id, header, receipt, None, payload)], 1.0) == [True]


def test_one_device_cannot_fill_the_disk(daemon: Living, liar: Liar) -> None:
    payload = bytes(8 * MEBIBYTE)
    before = _on_disk(daemon)
    for number in range(8):
        assert liar.refusal(payload, subject=f"page {number} of my diary", mechanism="a_diary", terms=()) is (
            ErrorCode.NOT_ASKED
        )
    assert _on_disk(daemon) - before < MEBIBYTE


def test_what_a_device_says_again_and_again_is_kept_within_its_quota(tmp_path: Path) -> None:
    more = "[guards]\nmost_summaries = 4\nsummaries_a_day = 20.0\n"
    with Living(tmp_path, more=more) as daemon:
        liar = Liar(daemon.begun().stranger())
        for number in range(20):
            liar.share(subject=f"month {number}")
        assert liar.refusal(subject="month 20") is ErrorCode.TOO_MANY_CALLS
        kept = [number for number in range(20) if daemon.store.summaries(HISTOGRAM.name, f"month {number}")]
        assert kept == [16, 17, 18, 19]
        assert daemon.faults() == []


def test_memory_does_not_grow_with_what_a_header_declares(daemon: Living, liar: Liar) -> None:
    payload = bytes(64 * MEBIBYTE)
    with peak_of(daemon, "coordinator") as grown:
        assert liar.refusal(payload) is ErrorCode.MALFORMED
        assert liar.refusal(payload, mechanism="a_diary", terms=()) is ErrorCode.NOT_ASKED
    assert grown[0] < 32 * MEBIBYTE


def test_an_honest_histogram_is_taken_under_either_relation(daemon: Living) -> None:
    for relation in NeighbouringRelation:
        mechanism = LabelHistogram(10, "1", relation)
        device = daemon.stranger()
        header = signed(device.summary(COUNTS, mechanism, "1"), device.id, device.signing)
        with device.channel() as channel:
            assert not channel.upload(header, COUNTS, 60).repeated
        assert device.id in {each.device for each in daemon.store.summaries(HISTOGRAM.name)}


def _on_disk(daemon: Living) -> int:
    return sum(path.stat().st_size for path in daemon.directory.rglob("*") if path.is_file())
