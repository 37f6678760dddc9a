"""With the files of a device and none of its keys, nobody gives it back a budget that it has spent.

Each attack is one of deleting, cutting, setting back or exchanging, with whatever lies on the disk. Beside them stand
the broken twins: without the part that stops it, the same attack succeeds.
"""

import shutil
import sqlite3
from contextlib import closing
from pathlib import Path

import pytest

from device_sdk import Device, PrivacyBudget, ledger_access
from device_sdk.errors import VaultError
from device_sdk.key_stores import FileKeyStore
from device_sdk.ledger_access import ledger_keys
from device_sdk.vault import OF_THE_DEVICE, Vault
from device_sdk.vault.mark import Mark, Note
from privacy.errors import LedgerTampered
from privacy.keys import LedgerKeys, SigningKey
from privacy.ledger import Ledger
from privacy.ledger import checks as ledger_checks
from privacy.ledger import state as ledger_state
from privacy.mechanisms import LabelHistogram
from privacy.randomness import NoiseSource
from privacy.receipt_desk import MemoryShelf, ReceiptDesk
from privacy.receipts import issue_receipt
from privacy.release import Request, perform
from tests.hostile.ledger import thief

SERVER = "fl.example.com:8443"
SPENT = 1_000_000
NUM_RELEASES = 5


def opened(home, epsilon=2.0):
    budget = PrivacyBudget(epsilon=epsilon, delta=1e-6, pure_epsilon=epsilon / 2)
    return Device.open(home / "state", server=SERVER, budget=budget, keys={"store": "file", "file": str(home / "key")})


def release(ledger, server, subject, desk=None):
    sent = perform(ledger, LabelHistogram(3, "0.2"), [0, 1, 1], Request(server, "summary", subject), NoiseSource())
    if desk is not None:
        ledger.keep(desk.accept(issue_receipt(ledger, sent), sent.payload_hash, ledger.device_key).countersignature)
    return sent


def spent(device):
    return device.status().ledger.spent.pure_micro_epsilon


@pytest.fixture
def home(tmp_path):
    """A device that has spent its share: one release to B long ago, then four to A."""
    desk_a, desk_b = (ReceiptDesk(name, SigningKey.generate(), MemoryShelf()) for name in "AB")
    with opened(tmp_path) as device:
        # As servers that enrolled before there were excerpts: they have seen entries of the ledger itself.
        whole = device._ledger.shown_at(None)
        release(whole, "B", "0", desk_b)
        for number in range(NUM_RELEASES - 1):
            release(whole, "A", str(number), desk_a)
        assert spent(device) == SPENT
    return tmp_path


@pytest.fixture
def old(home, tmp_path_factory):
    """A copy of its state from before its last two releases."""
    before = tmp_path_factory.mktemp("old")
    with opened(before) as device:
        for number in range(NUM_RELEASES - 2):
            release(device._ledger, "A", str(number))
    shutil.copytree(before / "state", before / "copy")
    with opened(before) as device:
        for number in range(NUM_RELEASES - 2, NUM_RELEASES):
            release(device._ledger, "A", str(number))
    shutil.rmtree(home / "state")
    shutil.copytree(before / "state", home / "state")
    shutil.copy(before / "key", home / "key")
    return before / "copy"


def assert_refused(home, what, epsilon=2.0):
    """One sentence that says what is wrong and that nothing is left; also after another look."""
    for _ in range(2):
        with pytest.raises(LedgerTampered, match=f"{what}.*the budget counts as exhausted"):
            opened(home, epsilon)


@pytest.mark.parametrize("epsilon", [2.0, 100.0])
def test_deleting_the_ledger_does_not_reset_the_budget(home, epsilon):
    for name in ("ledger.db*", "ledger.anchor"):
        thief.delete(home / "state", name)
    assert_refused(home, "its entries are gone", epsilon)


@pytest.mark.parametrize("epsilon", [2.0, 100.0])
def test_deleting_all_of_the_ledger_does_not_reset_the_budget(home, epsilon):
    thief.delete(home / "state", "ledger.*")
    assert_refused(home, "its mark is missing", epsilon)


def test_a_vault_that_does_not_know_of_its_ledger_is_given_a_new_budget(home, monkeypatch):
    """The broken twin of the two above."""
    real = vars(Ledger)["open"].__func__

    def ignorant(cls, directory, keys, budget=None, *, is_known):
        return real(cls, directory, keys, budget, is_known=False)

    monkeypatch.setattr(Ledger, "open", classmethod(ignorant))
    thief.delete(home / "state", "ledger.*")
    with opened(home, 100.0) as device:
        assert spent(device) == 0


def test_a_countersigned_entry_does_not_make_an_end(home):
    thief.cut(home / "state", thief.countersigned_head(home / "state", "B"))
    assert_refused(home, "its end is not signed by its device")


def test_an_end_under_the_servers_tag_would_be_cut_to(home, monkeypatch):
    """The broken twin: one tag for both, and no mark."""
    thief.cut(home / "state", thief.countersigned_head(home / "state", "B"))
    real = ledger_state.check_end
    for module in (ledger_state, ledger_checks):
        monkeypatch.setattr(module, "check_end", lambda *given, takes_old: real(*given, takes_old=True))
    assert_refused(home, "it was cut")
    monkeypatch.setattr(ledger_checks, "check_mark", lambda state, reached: None)
    with opened(home) as device:
        assert spent(device) == SPENT // NUM_RELEASES


def test_the_anchors_older_note_does_not_make_an_end(home):
    thief.cut(home / "state", thief.older_note(home / "state"))
    assert_refused(home, "it was cut: it ends at entry 9, but had come to entry 10")


def test_without_the_mark_the_last_release_would_be_noised_again(home, monkeypatch):
    """The broken twin: the end before the last lies in the anchor."""
    thief.cut(home / "state", thief.older_note(home / "state"))
    monkeypatch.setattr(ledger_checks, "check_mark", lambda state, reached: None)
    with opened(home) as device:
        assert release(device._ledger, "A", str(NUM_RELEASES - 2)).sequence == 10


@pytest.fixture
def killed(tmp_path):
    """The files of a device that was killed after a few releases, logs and all."""
    with opened(tmp_path / "live") as device:
        for number in range(3):
            release(device._ledger, "A", str(number))
        return Path(shutil.copytree(tmp_path / "live", tmp_path / "killed"))


def with_earlier_log(killed, name, home, log):
    """The killed device, with a log as it was earlier."""
    thief.with_log(killed / "state", home / "state", name, log)
    shutil.copy(killed / "key", home / "key")
    return home


def test_what_the_log_still_holds_does_not_make_a_ledger(killed, tmp_path):
    """A killed device leaves a log in which every end of the last hours stands, signed."""
    earlier = thief.earlier_logs(killed / "state" / "ledger.db-wal")
    assert len(earlier) == 5
    for number, log in enumerate(earlier):
        home = with_earlier_log(killed, "ledger.db", tmp_path / str(number), log)
        thief.rebuild_anchor(home / "state")
        assert_refused(home, f"it was cut: it ends at entry {number + 1}, but had come to entry 6")


def test_without_the_mark_an_earlier_log_makes_a_ledger(killed, tmp_path, monkeypatch):
    """The broken twin."""
    monkeypatch.setattr(ledger_checks, "check_mark", lambda state, reached: None)
    log = thief.earlier_logs(killed / "state" / "ledger.db-wal")[0]
    home = with_earlier_log(killed, "ledger.db", tmp_path / "earlier", log)
    thief.rebuild_anchor(home / "state")
    with opened(home) as device:
        assert spent(device) == SPENT // NUM_RELEASES


def keys_with_a_new_budget(killed, tmp_path):
    """The ledger keys with which a device opens after its vault was set back by its own log and its ledger deleted."""
    found = []
    for number, log in enumerate(thief.earlier_logs(killed / "state" / "vault.db-wal")):
        home = with_earlier_log(killed, "vault.db", tmp_path / str(number), log)
        mark = home / "state" / "vault.mark"
        Mark.create(mark, Note(mark.read_text().split()[0], 0))  # it is not sealed: anyone can write one
        thief.delete(home / "state", "ledger.*")
        try:
            device = opened(home)
        except (LedgerTampered, VaultError):
            continue
        with device:
            found.append(device._ledger._state.opened.device_key)
    return found


def test_what_the_vaults_log_still_holds_does_not_reset_the_budget(killed, tmp_path):
    """Every earlier state of the vault either knows of the ledger or is from before it had keys: another device."""
    with Vault.open(tmp_path / "live" / "state", FileKeyStore(tmp_path / "live" / "key")) as vault:
        own = ledger_keys(vault).public_key.hex()
    assert len(thief.earlier_logs(killed / "state" / "vault.db-wal")) >= 1
    assert own not in keys_with_a_new_budget(killed, tmp_path)


def test_a_vault_that_hears_of_the_mark_later_than_of_the_keys_is_set_back(tmp_path, monkeypatch):
    """The broken twin: two transactions, so that the log holds what was true in between, and nobody wonders at it."""

    def in_two_steps(vault):
        table = vault.table(OF_THE_DEVICE, "keys")
        if table.get("ledger") is None:
            table.put("ledger", LedgerKeys.generate().to_bytes())
            table.put("ledger marked", b"yes")
        return LedgerKeys.from_bytes(table.get("ledger"))

    monkeypatch.setattr(ledger_access, "ledger_keys", in_two_steps)
    monkeypatch.setattr(ledger_access, "_has_ledger", lambda vault: True)
    real = vars(Ledger)["open"].__func__

    def ignorant(cls, *given, is_known):
        return real(cls, *given)

    with monkeypatch.context() as patched:
        patched.setattr(Ledger, "open", classmethod(ignorant))
        with opened(tmp_path / "live") as device:
            own = device._ledger._state.opened.device_key
            killed = Path(shutil.copytree(tmp_path / "live", tmp_path / "killed"))
    assert own in keys_with_a_new_budget(killed, tmp_path)


def test_a_mark_that_was_set_back_alone_is_noticed(home, old):
    thief.put_back(old, home / "state", "ledger.mark")
    assert_refused(home, "its mark was set back")


def test_a_ledger_that_was_set_back_alone_is_noticed(home, old):
    thief.put_back(old, home / "state", "ledger.db", "ledger.anchor")
    assert_refused(home, "it was cut: it ends at entry 6, but had come to entry 10")


def test_a_ledger_that_looks_at_no_mark_is_set_back(home, old, monkeypatch):
    """The broken twin."""
    thief.put_back(old, home / "state", "ledger.db", "ledger.anchor")
    monkeypatch.setattr(ledger_checks, "check_mark", lambda state, reached: None)
    with opened(home) as device:
        assert spent(device) < SPENT


def test_setting_back_mark_and_ledger_together_is_left_to_the_servers(home, old):
    """What no file can prevent, as the threat model says; the server that has seen more tells (tests of receipts)."""
    thief.put_back(old, home / "state", "ledger.db", "ledger.anchor", "ledger.mark")
    with opened(home) as device:
        assert spent(device) < SPENT


def test_a_deleted_torn_or_foreign_mark_is_noticed(home, tmp_path_factory):
    mark = home / "state" / "ledger.mark"
    content = mark.read_bytes()
    other = tmp_path_factory.mktemp("other")
    opened(other).close()
    foreign = (other / "state" / "ledger.mark").read_bytes()
    for damaged in (content[:100], content[:-1] + b"x", content[:50] + b"x" + content[51:], b"", bytes(512), foreign):
        mark.write_bytes(damaged)
        assert_refused(home, "its mark was changed, or belongs to other keys")
    mark.unlink()
    assert_refused(home, "its mark is missing")


def test_a_ledger_of_another_device_is_not_taken(home, tmp_path_factory):
    other = tmp_path_factory.mktemp("other")
    opened(other).close()
    thief.delete(home / "state", "ledger.*")
    for path in (other / "state").glob("ledger.*"):
        shutil.copy(path, home / "state")
    assert_refused(home, "it was written under other keys than these")


def test_another_ledger_of_the_same_device_is_not_taken(home, tmp_path):
    """As an app could write one, with a larger budget, since it holds the keys while the device is open."""
    with Vault.open(home / "state", FileKeyStore(home / "key")) as vault:
        keys = ledger_keys(vault)
    Ledger.open(tmp_path / "larger", keys, PrivacyBudget(epsilon=100, delta=1e-6, pure_epsilon=50)).close()
    thief.put_back(tmp_path / "larger", home / "state", "ledger.db", "ledger.anchor")
    assert_refused(home, "another ledger stands in its place", 100.0)


def test_a_device_that_nobody_touched_goes_on(home):
    with opened(home) as device:
        assert spent(device) == SPENT
        with closing(sqlite3.connect(home / "state" / "ledger.db")) as database:
            assert database.execute("SELECT seq FROM head").fetchone() == (2 * NUM_RELEASES,)
