"""The vault knows that there is a ledger, from before it is created; one that it does not know it takes over once."""

import pytest

from device_sdk.identity import Identity
from device_sdk.ledger_access import ledger_keys, open_ledger
from device_sdk.vault import OF_THE_DEVICE, Vault, salvage
from privacy.budget import PrivacyBudget
from privacy.errors import LedgerTampered
from privacy.keys import LedgerKeys
from privacy.ledger import Ledger, start_over
from privacy.ledger.mark import BLANK, Mark, read_mark
from tests.hostile.ledger import thief
from tests.privacy.ledger_helpers import BUDGET, as_before_marks, release

SERVER = "fl.example.com:8443"


def write_as_before(vault, *, with_ledger=True):
    """What the version before marks left in a state: keys in the vault, a ledger beside it, no word of a mark."""
    keys = LedgerKeys.generate()
    vault.table(OF_THE_DEVICE, "keys").put("ledger", keys.to_bytes())
    if with_ledger:
        with Ledger.open(vault.directory, keys, BUDGET) as ledger:
            release(ledger, "epoch 1")
        as_before_marks(vault.directory, keys)
    return keys


def test_the_mark_is_there_before_the_keys_and_blank_until_the_ledger_is(vault, state):
    keys = ledger_keys(vault)
    assert read_mark(state / "ledger.mark", keys.marking) is BLANK
    with open_ledger(vault, BUDGET) as ledger:
        assert ledger.status().sequence == 0
    reached = read_mark(state / "ledger.mark", keys.marking)
    assert reached is not BLANK
    assert (reached.sequence, reached.opening) == (0, ledger.opening)


@pytest.mark.parametrize("when", ["keys", "mark", "ledger"])
def test_interrupted_while_it_begins_it_begins_again(vault, monkeypatch, when):
    def interrupted(*_):
        raise KeyboardInterrupt

    with monkeypatch.context() as patched:
        if when == "keys":  # the mark is on disk, the keys are not
            patched.setattr("device_sdk.vault.vault.VaultTable.put", interrupted)
        elif when == "mark":
            patched.setattr(Mark, "create", interrupted)
        else:
            patched.setattr("privacy.ledger.book.create", interrupted)
        with pytest.raises(KeyboardInterrupt):
            open_ledger(vault, BUDGET)
    with open_ledger(vault, BUDGET) as ledger:
        release(ledger, "epoch 1")


def test_a_ledger_whose_mark_was_not_filled_in_is_taken_only_if_nothing_was_booked(vault, state):
    with open_ledger(vault, BUDGET):
        pass
    Mark.create(state / "ledger.mark", ledger_keys(vault).marking)
    with open_ledger(vault, BUDGET) as ledger:
        release(ledger, "epoch 1")
    Mark.create(state / "ledger.mark", ledger_keys(vault).marking)
    with pytest.raises(LedgerTampered, match="its mark was set back"):
        open_ledger(vault, BUDGET)


def test_a_state_from_before_there_were_marks_is_taken_over_once(vault, state):
    keys = write_as_before(vault)
    with open_ledger(vault, BUDGET) as ledger:
        assert (ledger.status().sequence, ledger_keys(vault).to_bytes()) == (2, keys.to_bytes())
        release(ledger, "epoch 2")
    thief.delete(state, "ledger.*")
    with pytest.raises(LedgerTampered, match="its mark is missing"):
        open_ledger(vault, BUDGET)


def test_taking_over_leaves_nothing_in_the_log_that_says_otherwise(vault, state):
    write_as_before(vault)
    with open_ledger(vault, BUDGET):
        log = state / "vault.db-wal"
        assert log.stat().st_size == 0


def test_a_state_from_before_that_has_lost_its_ledger_is_not_given_a_new_one(vault, state):
    write_as_before(vault)
    Identity.of(vault, SERVER)
    thief.delete(state, "ledger.*")
    with pytest.raises(LedgerTampered, match="it is gone, and the vault still holds its keys"):
        open_ledger(vault, PrivacyBudget(epsilon=100, delta=1e-6))


def test_a_state_from_before_whose_creation_was_interrupted_is_completed(vault):
    write_as_before(vault, with_ledger=False)
    with open_ledger(vault, BUDGET) as ledger:
        release(ledger, "epoch 1")
    with open_ledger(vault, BUDGET) as ledger:
        assert ledger.status().sequence == 2


def test_a_ledger_without_its_vault_is_not_touched(tmp_path, vault, state, key_store):
    with open_ledger(vault, BUDGET) as ledger:
        release(ledger, "epoch 1")
    vault.close()
    thief.delete(state, "vault.*")
    before = {path.name: path.read_bytes() for path in state.glob("ledger.*")}
    with Vault.open(state, key_store) as other, pytest.raises(LedgerTampered, match="under other keys"):
        open_ledger(other, BUDGET)
    assert {path.name: path.read_bytes() for path in state.glob("ledger.*") if path.name in before} == before


def test_rotating_shredding_and_salvaging_leave_ledger_and_mark_alone(vault, state, key_store):
    with open_ledger(vault, BUDGET) as ledger:
        release(ledger, "epoch 1")
    Identity.of(vault, SERVER)
    vault.rotate()
    vault.shred(SERVER)
    vault.close()
    with salvage(state, key_store) as again:
        with open_ledger(again, BUDGET) as ledger:
            assert ledger.verify().sequence == 2
        thief.delete(state, "ledger.*")
        with pytest.raises(LedgerTampered, match="its mark is missing"):
            open_ledger(again, BUDGET)


def test_a_person_may_start_over_and_the_vault_goes_on_knowing(vault, state):
    with open_ledger(vault, BUDGET) as ledger:
        release(ledger, "epoch 1")
    (state / "ledger.db").unlink()
    with pytest.raises(LedgerTampered, match="its entries are gone"):
        open_ledger(vault, BUDGET)
    start_over(state, ledger_keys(vault), "the disk failed", BUDGET)
    with open_ledger(vault, BUDGET) as ledger:
        assert ledger.status().spent.pure_micro_epsilon == 1_000
    thief.delete(state, "ledger.*")
    with pytest.raises(LedgerTampered, match="its mark is missing"):
        open_ledger(vault, BUDGET)
