"""Canaries are planted in everything a device knows; no log line, no error and no file shows one."""

from __future__ import annotations

import base64
import logging
from typing import Any

import pytest

from device_sdk.affinity_store import AffinityStore
from device_sdk.conditions import Conditions
from device_sdk.errors import DeviceError
from device_sdk.identity import Identity, ledger_keys
from device_sdk.key_stores import Argon2Cost, PassphraseKeyStore
from device_sdk.round_record import Kind
from device_sdk.state import RoundJournal
from device_sdk.vault import Vault
from device_sdk.wire.messages import EnrolmentReply, Feedback, Split
from privacy.ledger import Ledger
from privacy.randomness import NoiseSource
from privacy.release import Request
from server_kit.daemon.authority import Authority
from tests.device_sdk.canaries import seen, seen_in_files, seen_in_lines, spellings
from tests.device_sdk.conftest import SERVER
from tests.device_sdk.rounds import BUDGET, Coin
from tests.device_sdk.vault import raw

PASSPHRASE = "canary of a passphrase"
CHEAP = Argon2Cost(iterations=2, lanes=1, memory_kib=19 * 1024)
PLANTED: dict[str, Any] = {
    "passphrase": PASSPHRASE,
    "reward": 0.7312946085311,
    "mac": b"canary of a mac, opaque",
    "order": b"canary of a task's order",
    "cohort": "0.918273.645546.372819",
    "task": "canary-task-of-a-server",
    "battery": "canary of a battery's serial number",
    "record": b"canary of a record",
}


def fails():
    raise OSError(PLANTED["battery"])


class Errors:
    """Collects the sentences of what was refused."""

    def __init__(self):
        self.lines = []

    def __call__(self, function, *arguments, **keywords):
        with pytest.raises(DeviceError) as caught:
            function(*arguments, **keywords)
        error: BaseException | None = caught.value
        while error is not None:
            self.lines.append(f"{error} {error!r}")
            error = error.__cause__ or error.__context__


class ReadsData(Coin):
    """Has the data in its hands, and then something goes wrong in it."""

    def answer(self, data, noise):
        assert data == PLANTED["record"]
        return super().answer(data, noise)


def live(state, refused):
    """A device's whole life, with much that goes wrong; returns the secrets it made."""
    authority = Authority.create()
    with Vault.open(state, PassphraseKeyStore(lambda: PASSPHRASE, CHEAP)) as vault:
        identity = Identity.of(vault, SERVER)
        refused(identity.renewal_request)
        certificate = authority.issue_device(identity.certificate_request, "00" * 16)
        reply = EnrolmentReply("00" * 16, "covey-abc", b"k" * 32, "h:1", certificate, authority.certificate)
        identity.enrol(reply)
        first_tls_key = identity.credentials.private_key
        refused(identity.renew, b"not asked for")
        identity.renew(authority.issue_device(identity.renewal_request(), "00" * 16))
        keys = ledger_keys(vault)
        with Ledger.open(state, keys, BUDGET) as ledger:
            spoil_a_round(RoundJournal(vault, ledger, SERVER), AffinityStore(vault, SERVER), vault, refused)
            Conditions(charging=fails).missing()
            raw.overwrite_record(state, max(raw.sealed_records(state)), b"altered")
            AffinityStore(vault, SERVER).load()
            RoundJournal(vault, ledger, SERVER).rounds()
        vault.rotate()
        view = vault._view()
        sealing_keys = {"key-encryption key": view.key, **{f"key of {s!r}": key for s, key in view.keys.items()}}
        assert len(sealing_keys) == 3
        secrets = {
            **sealing_keys,
            "signing key": identity.signing_key.to_bytes(),
            "ledger's signing key": keys.signing.to_bytes(),
            "ledger's sealing key": keys.sealing,
            "first TLS key": pem_body(first_tls_key),
            "second TLS key": pem_body(identity.credentials.private_key),
        }
        vault.table(SERVER, "table").put("a", b"something to shred")
        vault.shred(SERVER)
    refused(Vault.open, state, PassphraseKeyStore(lambda: "another passphrase", CHEAP))
    return secrets


def spoil_a_round(journal, affinity, vault, refused):
    task = PLANTED["task"]
    request = Request("covey-abc", "training", task)
    journal.accept(task, Kind.TRAINING, PLANTED["order"], ReadsData(), request)
    refused(journal.accept, task, Kind.TRAINING, b"", ReadsData(), request)
    refused(journal.finish, task)
    journal.release(task, ReadsData(), PLANTED["record"], request=request, noise=NoiseSource())
    journal.uploaded(task)
    cohort, reward, mac = PLANTED["cohort"], PLANTED["reward"], PLANTED["mac"]
    with vault.changing():
        affinity.learn(Feedback(cohort, 1, mac, reward_change=reward, sub_cluster=1), (cohort, "0.1"))
        journal.finish(task)
    affinity.follow([Split(cohort, (f"{cohort}.0", f"{cohort}.1"))])
    refused(affinity.learn, Feedback(cohort, 2, mac, reward_change=reward * 1e9), ())


def pem_body(key):
    """The part of a PEM key that is secret, as raw bytes."""
    return base64.b64decode(b"".join(key.splitlines()[1:-1]))[36:68]


def test_no_canary_stands_in_a_log_an_error_or_a_file(state, caplog, capfd, lines):
    caplog.set_level(logging.DEBUG)
    refused = Errors()
    secrets = live(state, refused)
    everything = {**PLANTED, **secrets}
    assert len(lines()) > 15
    assert len(refused.lines) > 6
    records = [f"{vars(record)} {record.getMessage()} {record.exc_text}" for record in caplog.records]
    printed = "".join(capfd.readouterr())
    assert seen_in_lines(everything, [*lines(), *records, *refused.lines, printed]) == set()
    assert seen_in_files(everything, state) == set()


@pytest.mark.parametrize("name", PLANTED)
def test_a_planted_leak_is_caught_in_every_spelling(name, tmp_path):
    for number, spelling in enumerate(spellings(PLANTED[name])):
        (tmp_path / f"leak-{number}").write_bytes(b"before " + spelling + b" after")
        assert seen_in_files(PLANTED, tmp_path) == {name}
        (tmp_path / f"leak-{number}").unlink()


def test_a_canary_inside_base64_is_caught_at_every_alignment():
    for before in (b"", b"x", b"xy", b"xyz"):
        assert "record" in seen(PLANTED, base64.b64encode(before + b"canary of a record" + b"tail"))


def test_a_vault_that_does_not_seal_is_caught(state, key_store, monkeypatch):
    """The broken twin: records as they are."""
    monkeypatch.setattr("device_sdk.vault.contents.seal", lambda key, content, where: content)
    monkeypatch.setattr("device_sdk.vault.contents.open_sealed", lambda key, content, where: content)
    with Vault.open(state, key_store) as vault:
        vault.table(SERVER, "table").put("a", b"canary of a record")
    assert seen_in_files(PLANTED, state) == {"record"}
