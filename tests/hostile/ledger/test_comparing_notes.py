"""Two servers that lay side by side all that a device has sent them find nothing that is the same."""

import re
import shutil
from dataclasses import fields

import pytest

from device_sdk.identity import Identity
from privacy.errors import LedgerTampered
from privacy.receipts import Receipt
from tests.device_sdk.runtime.federation import no_weights, started

LABELS = [0, 1, 1, 2]


@pytest.fixture
def servers(tmp_path):
    """Two federations that know nothing of each other."""
    both = [started(tmp_path / name, no_weights(2, 3), rounds=0) for name in ("first", "second")]
    yield both
    for federation in both:
        federation.server.close()


def share(federation, home, subjects):
    """One device, of the one state that it keeps, at one of its servers."""
    device = federation.open(home)
    with device:
        if device.status().device is None:
            device.enrol(federation.server.invitation().to_text())
        for subject in subjects:
            assert device.share_label_histogram(LABELS, num_labels=3, epsilon="0.1", subject=subject)


def heard(federation):
    return [header for _, header, _ in federation.server.desk.accepted]


def links(one, other):
    """Every value of 16 bytes or more that stands in what both servers have, however it is spelled."""
    seen = []
    for headers in (one, other):
        texts = [header.receipt.decode() for header in headers]
        raw = [
            value.hex()
            for header in headers
            for value in (getattr(header, part.name) for part in fields(header))
            if isinstance(value, bytes)
        ]
        seen.append({word for text in texts + raw for word in re.findall(r"[0-9a-f]{32,}", text)})
    return seen[0] & seen[1]


def test_nothing_that_two_servers_have_is_the_same(servers, tmp_path):
    first, second = servers
    for number in range(3):  # in turns, so that a shared number would show
        share(first, tmp_path, [f"week {number}", f"month {number}"])
        share(second, tmp_path, [f"week {number}"])
    assert links(heard(first), heard(second)) == set()
    assert [header.sequence for header in heard(first)] == [1, 2, 3, 4, 5, 6]
    assert [header.sequence for header in heard(second)] == [1, 2, 3]
    for federation in servers:
        (device,) = {device for device, _, _ in federation.server.desk.accepted}
        enrolled = federation.server.register.find(device)
        keys = {Receipt.from_json(header.receipt).device_key for header in heard(federation)}
        assert keys == {enrolled.ledger_key}


def test_servers_that_are_shown_the_ledger_itself_find_the_device(servers, tmp_path, monkeypatch):
    """The broken twin: one key, one name and one running number for all, as it was before."""
    monkeypatch.setattr(Identity, "is_excerpt", property(lambda self: False))
    first, second = servers
    share(first, tmp_path, ["a", "b"])
    share(second, tmp_path, ["a"])
    shared = links(heard(first), heard(second))
    receipt = Receipt.from_json(heard(first)[0].receipt)
    assert {receipt.ledger, receipt.device_key.hex()} <= shared
    assert [header.sequence for header in heard(second)] == [6]


def test_each_server_still_notices_a_ledger_that_was_set_back(servers, tmp_path):
    """Its countersignature is about its own excerpt, and the device knows that excerpt as its own."""
    first, second = servers
    share(first, tmp_path, ["a"])
    share(second, tmp_path, ["a"])
    old = shutil.copytree(tmp_path / "state", tmp_path / "old")
    share(first, tmp_path, ["b"])
    shutil.rmtree(tmp_path / "state")
    shutil.copytree(old, tmp_path / "state")
    share(second, tmp_path, ["c"])  # it has seen nothing that is gone
    with pytest.raises(LedgerTampered, match="has seen release 2, which is not in it"):
        share(first, tmp_path, ["d"])
