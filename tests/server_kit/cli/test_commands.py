"""The operator's commands read the store whether or not a daemon runs, fit 80 columns, and say the same as JSON."""

from __future__ import annotations

import json
import stat
from datetime import UTC, datetime

import pytest
from safetensors.numpy import load_file

from device_sdk.wire.invitation import Invitation
from privacy.accounting import epsilon_spent
from privacy.keys import LedgerKeys
from privacy.ledger import Ledger
from privacy.receipts import issue_receipt
from server_kit.commands.overview import History
from server_kit.commands.texts import ago, duration, size
from server_kit.daemon.federation_home import Home
from server_kit.daemon.invitations import Invitations
from server_kit.daemon.register import EnrolledDevice
from server_kit.daemon.server_certificate import FILE as CERTIFICATE
from server_kit.privacy_spend import privacy_spend
from server_kit.store.memory import MemoryStore
from server_kit.store.protocol import Arrival, Happening
from tests.privacy.ledger_helpers import BUDGET, release
from tests.server_kit.cli.federations import DEVICES
from tests.server_kit.store.deliveries import COST, receipt, summary

LOOKING = ["status", "cohorts", "devices"]


class TestLooking:
    def test_status_tells_of_cohorts_devices_and_privacy(self, run, shared):
        ran = run("server", "status", shared.directory)
        assert ran.code == 0
        assert "covey: not running; this is what it stored" in ran.out
        assert "3 enrolled, 0 revoked" in ran.out
        assert "1 replayed" in ran.out
        assert "87.5%" in ran.out
        assert "of 8 spent by the device that spent" in ran.out
        assert f"{shared.config.listen.dashboard} once the server runs" in ran.out

    def test_status_knows_that_a_daemon_runs(self, run, shared):
        with shared.running():
            assert "covey: running" in run("server", "status", shared.directory).out

    @pytest.mark.parametrize("command", LOOKING)
    def test_it_fits_a_narrow_terminal(self, run, shared, command):
        assert max(map(len, run("server", command, shared.directory).out.splitlines())) <= 80

    @pytest.mark.parametrize("command", LOOKING)
    def test_json_names_its_format(self, run, shared, command):
        ran = run("server", command, shared.directory, "--json")
        assert (ran.code, json.loads(ran.out)["format"]) == (0, f"covey-server-{command}-1")

    def test_cohorts_are_those_that_train_or_all(self, run, shared):
        def named(*options: str) -> list[str]:
            return [
                each["cohort"]
                for each in json.loads(run("server", "cohorts", shared.directory, "--json", *options).out)["cohorts"]
            ]

        assert named() == ["0.0", "0.1"]
        assert named("--all") == ["0", "0.0", "0.1"]

    def test_a_cohort_tells_what_is_under_way(self, run, shared):
        document = json.loads(run("server", "cohorts", shared.directory, "--json").out)
        first = document["cohorts"][0]
        assert (first["out"], first["arrived"], first["needed"], first["accuracy"]) == (1, 1, 2, 0.875)
        assert 20 <= first["open_seconds"] < 600

    def test_devices_tell_when_they_were_here(self, run, shared):
        document = json.loads(run("server", "devices", shared.directory, "--json").out)
        first, second, _ = document["devices"]
        assert (first["device"], first["releases"], second["refusals"]) == (DEVICES[0], 1, {"replayed": 1})
        assert "5 min ago" in run("server", "devices", shared.directory).out

    def test_an_empty_federation_says_so(self, run, tmp_path):
        run("server", "init", tmp_path / "f")
        assert "no cohort yet" in run("server", "cohorts", tmp_path / "f").out
        assert "no device yet" in run("server", "devices", tmp_path / "f").out
        assert "no cohort yet" in run("server", "status", tmp_path / "f").out

    @pytest.mark.parametrize("command", [*LOOKING, "invite", "check", "rotate"])
    def test_a_directory_that_is_none_is_one_sentence(self, run, tmp_path, command):
        ran = run("server", command, tmp_path / "nowhere")
        assert (ran.code, ran.out) == (1, "")
        assert ran.err.startswith("covey: there is no server.toml")


class TestInvite:
    def test_each_line_is_an_invitation_to_this_server(self, run, shared):
        ran = run("server", "invite", shared.directory, "--count", 3)
        invitations = [Invitation.from_text(line) for line in ran.out.splitlines()]
        assert len({each.secret for each in invitations}) == 3
        assert {each.fingerprint for each in invitations} == {shared.authority().fingerprint}
        assert {str(each.address) for each in invitations} == {"localhost:8444"}
        assert "covey device enrol --server localhost:8444" in ran.err

    def test_it_opens_the_door_once_and_for_a_while(self, run, shared):
        document = json.loads(run("server", "invite", shared.directory, "--days", 2, "--json").out)
        (line,) = document["invitations"]
        store = shared.open_store()
        try:
            Invitations(store.invitations).redeem(Invitation.from_text(line).secret, DEVICES[0])
        finally:
            store.close()
        expires = datetime.fromisoformat(document["expires_at"])
        assert 1.9 < (expires - datetime.now(UTC)).total_seconds() / 86400 < 2.1

    def test_no_secret_is_stored(self, run, shared):
        (line,) = run("server", "invite", shared.directory).out.splitlines()
        secret = Invitation.from_text(line).secret
        for path in shared.directory.rglob("*"):
            assert not path.is_file() or secret not in path.read_bytes()


class TestRevoke:
    def test_the_device_is_out_from_then_on(self, run, home):
        ran = run("server", "revoke", home.directory, DEVICES[1])
        assert (ran.code, ran.out) == (0, f"{DEVICES[1]} is kept out from the daemon's next start on\n")
        assert "was revoked before" in run("server", "revoke", home.directory, DEVICES[1][:8]).out
        store = home.open_store()
        found = store.register.find(DEVICES[1])
        store.close()
        assert found is not None
        assert found.revoked

    @pytest.mark.parametrize(
        ("name", "said"), [("ffffffff", "no device begins"), ("000000", "3 devices begin"), ("", "3 devices")]
    )
    def test_a_name_that_is_not_one_devices_is_refused(self, run, shared, name, said):
        ran = run("server", "revoke", shared.directory, name)
        assert (ran.code, said in ran.err) == (1, True)


class TestExport:
    def test_the_newest_model_is_written_with_its_names(self, run, shared, tmp_path):
        ran = run("server", "export", shared.directory, "--cohort", "0.0", "-o", tmp_path / "model.safetensors")
        assert (ran.code, "version 4 of cohort 0.0" in ran.out) == (0, True)
        assert {name: array.shape for name, array in load_file(tmp_path / "model.safetensors").items()} == {
            "dense1.weight": (10, 64),
            "dense1.bias": (10,),
        }

    def test_an_unknown_cohort_is_refused_with_the_nearest(self, run, shared, tmp_path):
        ran = run("server", "export", shared.directory, "--cohort", "0.7", "-o", tmp_path / "model.safetensors")
        assert (ran.code, "did you mean '0.0'?" in ran.err or "did you mean '0.1'?" in ran.err) == (1, True)
        assert list(tmp_path.iterdir()) == []


class TestReceipts:
    def test_they_reconcile_with_the_ledgers_of_devices(self, run, tmp_path):
        run("server", "init", tmp_path / "f")
        home_directory, keys, device = tmp_path / "f", LedgerKeys.generate(), "5" * 32
        home = Home.open(home_directory)
        store = home.open_store()
        with Ledger.open(tmp_path / "state", keys, BUDGET) as ledger:
            sent = release(ledger, "epoch 1", server=home.authority().server)
            own = issue_receipt(ledger, sent)
            store.register.add(EnrolledDevice(device, bytes(32), keys.public_key))
            arrival = summary(device)
            assert store.accept([Arrival(device, arrival.header, own, None, b"noised")], 1.0) == [True]
        store.close()
        out = tmp_path / "receipts.jsonl"
        ran = run("server", "receipts", home_directory, "-o", out)
        assert (ran.code, ran.out.startswith("wrote 1 receipt to")) == (0, True)
        assert stat.S_IMODE(out.stat().st_mode) == 0o600
        report = run("privacy", "report", tmp_path / "state", "--receipts", out, "--json")
        assert (report.code, json.loads(report.out)["receipts"]["matched"]) == (0, 1)

    def test_a_place_that_cannot_be_written_is_one_sentence(self, run, shared, tmp_path):
        ran = run("server", "receipts", shared.directory, "-o", tmp_path / "nowhere" / "receipts.jsonl")
        assert (ran.code, ran.out) == (1, "")


class TestUnwritable:
    def test_receipts_that_cannot_be_written_are_told_of_in_one_sentence(self, run, home, tmp_path):
        ran = run("server", "receipts", home.directory, "-o", tmp_path / "nowhere" / "receipts.jsonl")
        assert ran.code == 1
        assert "receipts.jsonl (No such file or directory); choose another place" in " ".join(ran.err.split())
        assert "untouched" in ran.err

    def test_a_federation_that_cannot_be_made_is_told_of_in_one_sentence(self, run, tmp_path):
        (tmp_path / "file").write_text("no directory")
        ran = run("server", "init", tmp_path / "file" / "federation")
        assert (ran.code, "nothing was made" in ran.err) == (1, True)
        assert [each.name for each in tmp_path.iterdir()] == ["file"]


class TestRotate:
    def test_all_stays_readable_under_new_keys(self, run, home):
        before = home.secrets.read("store.key")
        certificate = home.secrets.read(CERTIFICATE)
        ran = run("server", "rotate", home.directory, "--store-key", "--certificate")
        assert ran.code == 0
        assert home.secrets.read("store.key") != before
        assert home.secrets.read(CERTIFICATE) != certificate
        assert before.strip() not in home.secrets.read("store.key")
        assert len(json.loads(run("server", "devices", home.directory, "--json").out)["devices"]) == 3
        store = home.open_store()
        assert len(list(store.receipts())) == 1
        store.close()

    def test_the_old_key_opens_nothing_any_more(self, run, home):
        before = home.secrets.read("store.key")
        run("server", "rotate", home.directory, "--store-key")
        home.secrets.write("store.key", before)
        ran = run("server", "devices", home.directory)
        assert (ran.code, "does not open the store" in ran.err) == (1, True)

    def test_the_store_key_is_not_taken_from_a_running_daemon(self, run, home):
        with home.running():
            ran = run("server", "rotate", home.directory, "--store-key")
            assert (ran.code, "stop it, rotate, start it again" in ran.err) == (1, True)
            assert run("server", "rotate", home.directory).code == 0

    def test_a_key_of_the_environment_is_not_replaced_behind_its_back(self, run, home, monkeypatch):
        monkeypatch.setenv("COVEY_STORE_KEY", home.secrets.read("store.key").decode().strip())
        ran = run("server", "rotate", home.directory, "--store-key")
        assert (ran.code, "COVEY_STORE_KEY" in ran.err) == (1, True)


class TestSpend:
    def test_it_is_that_of_the_accountant_by_device(self):
        receipts = [receipt("a", number) for number in range(1, 6)] + [receipt("b", 1)]
        spend = privacy_spend(receipts, 1e-6)
        assert (spend.devices, spend.releases) == (2, 6)
        assert spend.most_epsilon == pytest.approx(epsilon_spent([COST] * 5, 1e-6), abs=1e-4)
        assert spend.median_epsilon <= spend.most_epsilon

    def test_nothing_received_is_nothing_spent(self):
        assert privacy_spend([], 1e-6).most_epsilon == 0


def test_history_is_read_on_and_not_again():
    store, history = MemoryStore(), History()
    for number in range(30):
        store.note(Happening("tested", float(number), "0", {"accuracy": number / 100}))
    assert history.read_on(store).accuracy == {"0": 0.29}
    store.note(Happening("split", 31.0, "0", {}))
    assert [each.kind for each in history.read_on(store).last][-2:] == ["tested", "split"]
    assert (len(history.last), history.read_to) == (8, 31)


@pytest.mark.parametrize(
    ("seconds", "text"), [(0.2, "0 s"), (59, "59 s"), (90, "2 min"), (7200, "2 h"), (200_000, "2 d")]
)
def test_spans_are_told_in_their_largest_unit(seconds, text):
    assert duration(seconds) == text
    assert ago(100.0 - seconds, 100.0) == f"{text} ago"


def test_sizes_are_told_in_their_largest_unit():
    assert [size(count) for count in (5, 2048, 3 << 20, 5 << 40)] == ["5 B", "2 KiB", "3 MiB", "5.0 TiB"]
