"""A device signs receipts whose cost nobody can reckon with. They are refused; those of earlier days hurt nobody.

A noise multiplier of 1e400 once made metrics, pages and `covey server status` fail for good.
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from device_sdk.wire.messages import ErrorCode, SummaryHeader
from device_sdk.wire.tensors import blob_of
from privacy.errors import ReceiptRefused
from privacy.ledger.terms import take_cost
from privacy.receipts import Receipt
from server_kit.privacy_spend import spend_spread
from server_kit.store.protocol import Arrival
from tests.hostile.server.liar import COUNTS, HISTOGRAM, Liar, terms_of
from tests.hostile.server.living import Living, go_on, honest_pair
from tests.server_kit.daemon.real_daemon import wait_until
from tests.server_kit.store.deliveries import receipt as plain_receipt

HUGE = 10**400
ABSURD: dict[str, dict[str, Any]] = {
    "of endless noise": {"pure": [], "sampled": [1, 2, HUGE, 1, 1]},
    "of next to no noise": {"pure": [], "sampled": [1, 2, 1, HUGE, 1]},
    "of a rate beyond one": {"pure": [], "sampled": [HUGE, 1, 1, 1, 1]},
    "of steps without end": {"pure": [], "sampled": [1, 2, 1, 1, HUGE]},
    "of a mu of thousands of digits": {"pure": [], "mu_squared": 10**4000},
    "of hundreds of odd parts": {"pure": [10**9 + 977 * number * number for number in range(500)]},
    "of nothing": {"pure": []},
    "below zero": {"pure": [-1]},
    "divided by zero": {"pure": [], "sampled": [1, 0, 1, 1, 1]},
    "of no unit": {"unit": "galaxy"},
    "of a list within a list": {"pure": [[1]]},
    "of half of what it costs": {"pure": [250_000, 250_000]},
    "of another unit": {"unit": "device"},
    "of another relation": {"relation": "add_remove"},
    "of another mechanism": {"mechanism": "clipped_update"},
    "of a mechanism that steers terminals": {"mechanism": "\x1b]0;owned\x07<img src=x onerror=alert(1)>"},
    "of a request that is none": {"request": "<script>"},
    "of a ledger that is none": {"ledger": "\x1b[2J" * 500},
}
OF_OLD = {name: ABSURD[name] for name in list(ABSURD)[:6]}
"""Such as an older version has stored."""


@pytest.fixture(scope="module")
def daemon(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Living]:
    with Living(tmp_path_factory.mktemp("daemon")) as daemon:
        yield daemon.begun()


@pytest.mark.integration
@pytest.mark.parametrize("claim", ABSURD)
def test_a_receipt_is_refused_unless_it_books_what_its_release_costs(claim: str, daemon: Living) -> None:
    liar = Liar(daemon.stranger())
    line = liar.receipt(COUNTS, **ABSURD[claim])
    assert liar.refusal(COUNTS, line) in {ErrorCode.RECEIPT_REFUSED, ErrorCode.MALFORMED}
    assert daemon.store.last_receipt(liar.device.ledger.public_key) is None
    assert daemon.faults() == []


@pytest.mark.integration
def test_a_device_cannot_count_under_two_relations(daemon: Living) -> None:
    liar = Liar(daemon.stranger())
    liar.share(subject="1")
    other = liar.receipt(COUNTS, relation="add_remove", pure=[1_000_000])
    claims = {"subject": "2", "terms": terms_of(HISTOGRAM, relation="add_remove")}
    assert liar.refusal(COUNTS, other, **claims) is ErrorCode.RECEIPT_REFUSED


@pytest.mark.integration
def test_a_federation_that_holds_such_receipts_starts_and_answers_everybody(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with Living(tmp_path, "fedavg") as daemon:
        liars = [Liar(daemon.stranger()) for _ in OF_OLD]
        with monkeypatch.context() as older:
            older.setattr("privacy.receipts.take_cost", lambda fields, most: take_cost(fields))
            older.setattr("privacy.budget.SampledGaussian.__post_init__", lambda self: None)
            for liar, claims in zip(liars, OF_OLD.values(), strict=True):
                _store(daemon, liar, claims)
        daemon.begun()
        before = daemon.living()["coordinator"]
        with honest_pair(daemon, tmp_path):
            for liar in liars:
                assert liar.refusal(COUNTS) is ErrorCode.RECEIPT_REFUSED
            go_on(daemon)
        daemon.answers_everybody()
        shown = daemon.covey("status").stdout
        assert daemon.covey("receipts", "-o", str(tmp_path / "receipts.jsonl")).returncode == 0
        wait_until(lambda: daemon.store.refusals().get("unreadable receipt", 0) >= len(liars), "the count of liars")
        assert daemon.living()["coordinator"] == before
        assert daemon.faults() == []
        assert any(liar.device.id in shown for liar in liars)


def _store(daemon: Living, liar: Liar, claims: dict[str, Any]) -> None:
    line = liar.receipt(COUNTS, **claims)
    receipt = Receipt.from_json(line)
    header = SummaryHeader(HISTOGRAM.name, (), "1", blob_of(COUNTS), receipt.head, receipt.sequence, line)
    assert daemon.store.accept([Arrival(liar.device.id, header, receipt, None, COUNTS)], 1.0) == [True]


def _receipts_of_one_device(costs: list[dict[str, Any]]) -> list[Receipt]:
    liar = Liar()
    liar.device.server = "covey:test"
    return [Receipt.from_json(liar.receipt(COUNTS, **claims)) for claims in costs]


EDGES: dict[str, list[dict[str, Any]]] = {
    "the largest that is read": [{"pure": [10**50], "mu_squared": 10**50, "rho": 10**50}],
    "the least noise that is read": [{"pure": [], "sampled": [1, 1, 1, 10**50, 10**50]}],
    "the most noise that is read": [{"pure": [], "sampled": [1, 10**50, 10**50, 1, 1]}],
    "two relations": [{"relation": "add_remove"}, {"relation": "replace"}],
    "hundreds of kinds": [{"pure": [10**6 + 977 * number * number]} for number in range(300)],
}


@pytest.mark.parametrize("edge", EDGES)
def test_no_receipt_that_can_be_read_makes_the_spend_fail(edge: str) -> None:
    honest = plain_receipt("honest", 1)
    begun = time.monotonic()
    spread = spend_spread([honest, *_receipts_of_one_device(EDGES[edge])], 1e-6)
    assert time.monotonic() - begun < 10
    assert sum(spread.devices_by_epsilon.values()) + len(spread.left_out) == 2
    assert sum(spread.devices_by_epsilon.values()) >= 1
    assert spread.summary.most_epsilon >= 0


def test_a_device_that_cannot_be_reckoned_with_is_named() -> None:
    receipts = _receipts_of_one_device(EDGES["two relations"])
    spread = spend_spread(receipts, 1e-6, lambda key: f"device {key.hex()[:4]}")
    assert spread.left_out == {f"device {receipts[0].device_key.hex()[:4]}": 2}
    assert spread.releases_by_mechanism == {}


@pytest.mark.parametrize("claim", [{"pure": [10**50 + 1]}, {"pure": [1] * 65}, {"sampled": [1, 2, 3, 4, 10**51]}])
def test_a_cost_beyond_what_mechanisms_have_is_no_receipt(claim: dict[str, Any]) -> None:
    with pytest.raises(ReceiptRefused):
        _receipts_of_one_device([claim])
