"""A ledger holds nothing derived from data: not in an entry, not anywhere in its files, not in its errors."""

import base64
import json

import pytest

from privacy.errors import PrivacyError
from privacy.ledger import Ledger
from privacy.ledger import book as ledger_module
from privacy.release import Answer
from tests.privacy.ledger_helpers import BUDGET, MECHANISM, TERMS, ask, change, pure, reserve, rows

PAYLOAD = b"canary-payload-5318008-0x1p-3"
SUBJECT = "canary-subject-7291"
FIELDS = {
    "open": "ledger device_key version epsilon delta training relation pure_epsilon renyi_epsilon limits carried "
    "carried_by_server quotas predecessor shown lost signature",
    "reserve": "mechanism terms unit relation pure mu_squared rho sampled purpose server request spend spent "
    "spent_by_server",
    "release": "reserve payload_hash sealed_hash seeded",
    "quota": "server share_ppm",
    "decision": "reason",
}


def spellings(canary):
    return [
        canary,
        canary.hex().encode(),
        base64.b64encode(canary).rstrip(b"=")[:-1],
        canary.decode().encode("utf-16-le"),
    ]


def files_that_hold(directory, canaries):
    return [
        (path.name, canary)
        for path in sorted(directory.rglob("*"))
        if path.is_file()
        for canary in canaries
        if any(spelling in path.read_bytes() for spelling in spellings(canary))
    ]


def use(directory, keys):
    """A ledger's whole life, looked at while the log still holds everything."""
    ledger = Ledger.open(directory, keys, BUDGET)
    reservation = ledger.reserve(MECHANISM, TERMS, pure(), ask(SUBJECT))
    sent = ledger.settle(reservation, Answer(PAYLOAD))
    ledger.set_quota("clinic", 7)
    ledger.record_decision("looked at it")
    return ledger, sent


def test_no_file_holds_an_answer_a_subject_or_a_key(tmp_path, ledger_keys):
    secrets = [PAYLOAD, SUBJECT.encode()]
    ledger, sent = use(tmp_path, ledger_keys)
    assert files_that_hold(tmp_path, secrets) == []
    ledger.forget_answer(sent.request)
    ledger.close()
    assert files_that_hold(tmp_path, secrets) == []
    key_material = ledger_keys.to_bytes()
    for path in tmp_path.iterdir():
        content = path.read_bytes()
        assert key_material[-32:] not in content
        assert key_material[-64:-32] not in content


def test_scan_catches_a_ledger_that_does_not_seal(tmp_path, ledger_keys, monkeypatch):
    monkeypatch.setattr(ledger_module, "seal", lambda key, plaintext, associated: plaintext)
    ledger, _ = use(tmp_path, ledger_keys)
    ledger.close()
    assert files_that_hold(tmp_path, [PAYLOAD]) == [("ledger.db", PAYLOAD)]


def test_entries_have_these_fields_and_no_others(tmp_path, ledger_keys):
    ledger, _ = use(tmp_path, ledger_keys)
    ledger.close()
    found = {}
    for (body,) in rows(tmp_path, "SELECT body FROM entry"):
        fields = json.loads(body)
        found[fields["kind"]] = set(fields) - {"seq", "at", "kind"}
    assert found == {kind: set(names.split()) for kind, names in FIELDS.items()}


def test_entries_of_different_answers_differ_only_in_hashes(tmp_path, ledger_keys):
    """Two devices that differ in their data alone: the entries say the same, down to their length."""
    bodies = []
    for name, payload in (("one", b"a" * 64), ("other", b"b" * 64)):
        with Ledger.open(tmp_path / name, ledger_keys, BUDGET, clock=lambda: 1.0) as ledger:
            ledger.settle(reserve(ledger, "epoch 1"), Answer(payload))
        bodies.append([json.loads(body) for (body,) in rows(tmp_path / name, "SELECT body FROM entry WHERE seq > 0")])
        sizes = rows(tmp_path / name, "SELECT length(sealed) FROM answer")
        assert sizes == [(1 + 12 + 64 + 16,)]
    for one, other in zip(*bodies, strict=True):
        assert {name for name in one if one[name] != other[name]} <= {"payload_hash", "sealed_hash"}


def test_errors_do_not_repeat_what_they_were_given(ledger, tmp_path):
    canary = "canary\x1b" * 40
    attempts = [
        lambda: ledger.reserve(MECHANISM, {"term": [canary, 1.5]}, pure(), ask(SUBJECT)),
        lambda: ledger.record_decision(canary),
        lambda: ledger.forget_answer(canary),
        lambda: ledger.set_quota(canary, 1),
    ]
    for attempt in attempts:
        with pytest.raises(PrivacyError) as caught:
            attempt()
        assert "canary" not in str(caught.value)


def test_broken_answer_is_not_shown(tmp_path, ledger_keys):
    ledger, _ = use(tmp_path, ledger_keys)
    change(tmp_path, "UPDATE answer SET sealed = ?", (PAYLOAD,))
    with ledger, pytest.raises(PrivacyError) as caught:
        ledger.stored(ledger.reserve(MECHANISM, TERMS, pure(), ask(SUBJECT)))
    assert "canary" not in str(caught.value)
