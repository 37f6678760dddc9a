"""`init` makes a federation that `check` finds nothing wrong with; what would fail is found by name."""

from __future__ import annotations

import json
import socket
import sys
from datetime import datetime, timedelta

import numpy as np
import pytest

from server_kit.config import FILE_NAME
from server_kit.config.sample import sample_settings
from server_kit.daemon.check import Verdict, check_home
from server_kit.daemon.checks import CHECKS
from server_kit.daemon.federation_home import Home


def port_pair() -> int:
    """A port that is free together with the next one."""
    for _ in range(100):
        with socket.socket() as first, socket.socket() as second:
            first.bind(("127.0.0.1", 0))
            port = first.getsockname()[1]
            try:
                second.bind(("127.0.0.1", port + 1))
            except OSError:
                continue
            return port
    pytest.fail("there are no two free ports side by side")


@pytest.fixture
def fresh(tmp_path):
    port = port_pair()
    with socket.socket() as listening:
        listening.bind(("127.0.0.1", 0))
        status = listening.getsockname()[1]
    return Home.create(tmp_path / "federation", sample_settings(port=port, status_port=status))


def findings(home: Home, check: str) -> dict[Verdict, str]:
    found = check_home(home, [each for each in CHECKS if each[0] == check])
    return {each.verdict: each.sentence for each in found}


def with_settings(home: Home, text: str) -> Home:
    (home.directory / FILE_NAME).write_text(text)
    return Home.open(home.directory)


class TestInit:
    def test_it_tells_what_was_made_and_what_comes_next(self, run, tmp_path):
        ran = run("server", "init", tmp_path / "f", "--host", "fl.example.com", "--port", "9000", "--name", "ward 7")
        assert ran.code == 0
        assert "fl.example.com:9001" in ran.out
        assert "--training record" in ran.out
        home = Home.open(tmp_path / "f")
        assert home.config.federation.name == "ward 7"
        assert home.config.listen.hosts == ("fl.example.com",)

    @pytest.mark.parametrize(
        ("words", "said"),
        [
            (["--preset", "cove"], "did you mean 'covey'?"),
            (["--model", "nowhere:build"], "cannot be imported"),
            (["--host", "not a host"], "hosts must be names or addresses"),
            (["--port", "8480", "--status-port", "8481"], "ports of their own"),
        ],
    )
    def test_what_cannot_work_is_refused_and_leaves_nothing(self, run, tmp_path, words, said):
        ran = run("server", "init", tmp_path / "f", *words)
        assert (ran.code, said in " ".join(ran.err.split())) == (2, True)
        assert list(tmp_path.iterdir()) == []

    def test_a_directory_in_use_is_refused(self, run, home):
        before = sorted(home.directory.rglob("*"))
        ran = run("server", "init", home.directory)
        assert (ran.code, "not an empty directory" in ran.err) == (1, True)
        assert sorted(home.directory.rglob("*")) == before

    def test_a_model_beside_the_command_is_found(self, run, tmp_path, monkeypatch):
        monkeypatch.setattr(sys, "path", [*sys.path])
        monkeypatch.chdir(tmp_path)
        (tmp_path / "model_beside_the_command.py").write_text(
            "import torch\n\ndef build():\n    return torch.nn.Linear(2, 2)\n"
        )
        assert run("server", "init", "f", "--model", "model_beside_the_command:build").code == 0


class TestCheck:
    def test_a_new_federation_has_nothing_wrong(self, run, fresh):
        ran = run("server", "check", fresh.directory, "--json")
        assert ran.code == 0
        verdicts = {each["check"]: each["verdict"] for each in json.loads(ran.out)["findings"]}
        assert set(verdicts) == {name for name, _ in CHECKS}
        assert "fail" not in verdicts.values()

    def test_it_fits_a_narrow_terminal(self, run, fresh):
        ran = run("server", "check", fresh.directory)
        assert max(map(len, ran.out.splitlines())) <= 80

    def test_one_failure_is_exit_code_one(self, run, fresh):
        fresh.secrets.path("store.key").chmod(0o644)
        ran = run("server", "check", fresh.directory)
        assert ran.code == 1
        assert "fail" in ran.out
        assert "would stop the server" in ran.err

    def test_a_port_in_use_is_found(self, fresh):
        with socket.socket() as taken:
            taken.bind(("127.0.0.1", fresh.config.listen.gateway_address.port))
            taken.listen()
            assert "gateway cannot listen" in findings(fresh, "ports")[Verdict.FAIL]
        assert Verdict.FAIL not in findings(fresh, "ports")

    def test_ports_of_a_running_daemon_are_its_own(self, fresh):
        with fresh.running():
            assert findings(fresh, "ports") == {Verdict.OK: "a daemon runs here and has its ports"}

    def test_a_status_port_for_all_is_warned_of(self, fresh):
        assert "takes its token over plain HTTP" in findings(
            with_settings(fresh, "[listen]\nstatus = '0.0.0.0:8480'\n"), "ports"
        ).get(Verdict.WARN, "")

    def test_a_missing_secret_is_found(self, fresh):
        fresh.secrets.path("feedback.key").unlink()
        assert "feedback.key" in findings(fresh, "secrets")[Verdict.FAIL]

    @pytest.mark.parametrize(
        ("days", "check", "said"),
        [
            (-1, "clock", "before this federation was made"),
            (3651, "certificates", "the authority ended on"),
        ],
    )
    def test_a_clock_outside_the_authoritys_life_is_found(self, fresh, monkeypatch, days, check, said):
        class Clock(datetime):
            @classmethod
            def now(cls, tz=None):
                return datetime.now(tz) + timedelta(days=days)

        monkeypatch.setattr("server_kit.daemon.checks.datetime", Clock)
        found = check_home(fresh, [each for each in CHECKS if each[0] == check])
        assert any(each.verdict is Verdict.FAIL and said in each.sentence for each in found)

    def test_a_wrong_model_is_found(self, fresh):
        wrong = with_settings(fresh, "[federation]\nmodel = 'nowhere:build'\n")
        assert "cannot be imported" in findings(wrong, "model")[Verdict.FAIL]

    def test_terms_beyond_the_policy_are_found(self, fresh):
        wrong = with_settings(fresh, "[privacy]\nnoise_multiplier = 0.3\n")
        assert "more than [policy] promises" in findings(wrong, "policy")[Verdict.FAIL]

    def test_a_new_federation_is_guarded_and_says_how(self, fresh):
        said = findings(fresh, "guard")
        assert "of 20 updates the 5 largest and smallest values of each weight are left out" in said[Verdict.OK]
        assert "no update counts with more than a length of" in said[Verdict.OK]

    @pytest.mark.parametrize(
        ("settings", "said"),
        [
            ('[federation]\npreset = "casa"', "one dishonest device of few can still steer a model"),
            ("[federation]\nparticipants = 2", "one dishonest device of few can still steer a model"),
            ('[aggregation]\nguard = "none"', "one dishonest device can replace a model"),
        ],
    )
    def test_a_weak_guard_is_warned_of(self, fresh, settings, said):
        assert said in findings(with_settings(fresh, settings), "guard")[Verdict.WARN]

    def test_a_guard_that_cannot_be_is_found(self, fresh):
        wrong = '[federation]\npreset = "casa"\n[aggregation]\nguard = "trimmed_mean"'
        assert "is not possible" in findings(with_settings(fresh, wrong), "guard")[Verdict.FAIL]

    def test_the_key_of_another_store_is_found(self, fresh):
        fresh.secrets.create_key("store.key")
        assert "does not open the store" in findings(fresh, "database")[Verdict.FAIL]

    def test_a_database_that_is_none_is_found(self, fresh):
        (fresh.directory / "covey.db").write_bytes(b"not a database" * 100)
        assert Verdict.FAIL in findings(fresh, "database")

    @pytest.mark.parametrize(
        ("arrays", "said"),
        [
            (None, "there is no such file"),
            ({"x": np.zeros((3, 2))}, "is not an .npz file with arrays x and y"),
            ({"x": np.zeros((3, 2)), "y": np.zeros(2)}, "has 3 rows of x and 2 of y"),
            ({"x": np.zeros((3, 2)), "y": np.zeros(3)}, "does not suit the model"),
            ({"x": np.zeros((3, 64)), "y": np.full(3, 10)}, "does not suit the model"),
        ],
    )
    def test_validation_data_that_cannot_be_used_are_found(self, fresh, arrays, said):
        if arrays is not None:
            np.savez(fresh.directory / "test.npz", **arrays)
        wrong = with_settings(fresh, "[evaluation]\nvalidation = 'test.npz'\n")
        assert said in findings(wrong, "validation")[Verdict.FAIL]

    def test_validation_data_that_can_be_used_are_counted(self, fresh):
        np.savez(fresh.directory / "test.npz", x=np.zeros((3, 64)), y=np.zeros(3))
        right = with_settings(fresh, "[evaluation]\nvalidation = 'test.npz'\n")
        assert findings(right, "validation") == {Verdict.OK: "test.npz has 3 records"}

    def test_a_check_that_cannot_be_made_is_a_failure_of_its_own(self, fresh):
        def breaks(_: Home):
            yield Verdict.OK, "so far so good"
            raise OSError(5, "Input/output error")

        found = check_home(fresh, [("broken", breaks)])
        assert (found[-1].verdict, found[-1].sentence) == (Verdict.FAIL, "could not be checked (Input/output error)")
