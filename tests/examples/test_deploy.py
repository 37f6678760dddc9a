"""The files in examples/deploy name commands and ports that exist, and run as nobody special."""

from __future__ import annotations

import re
import shlex
import shutil
import subprocess
from configparser import ConfigParser
from pathlib import Path

import click
import pytest
import yaml  # type: ignore[import-untyped]

import covey
from server_kit.config import ServerConfig
from tests.architecture.repository import ROOT
from tests.docs.command_tree import check_usage

DEPLOY = ROOT / "examples/deploy"
LISTEN = ServerConfig().listen
DEVICE_PORTS = {LISTEN.gateway_address.port, LISTEN.enrolment_address.port}
INSTRUCTIONS = {
    "ARG",
    "FROM",
    "WORKDIR",
    "COPY",
    "RUN",
    "USER",
    "VOLUME",
    "EXPOSE",
    "STOPSIGNAL",
    "HEALTHCHECK",
    "ENTRYPOINT",
    "CMD",
}


class Unit(ConfigParser):
    def optionxform(self, optionstr: str) -> str:
        return optionstr


def unit() -> Unit:
    parsed = Unit(strict=True, interpolation=None)
    parsed.read_string((DEPLOY / "covey.service").read_text())
    return parsed


def instructions(text: str) -> list[tuple[str, str]]:
    """A Dockerfile, continued lines joined, comments left out."""
    lines = [line for line in text.splitlines() if line.strip() and not line.startswith("#")]
    joined = re.sub(r"\\\n\s*", " ", "\n".join(lines))
    return [(word, rest) for word, _, rest in (line.partition(" ") for line in joined.splitlines())]


def dockerfile() -> list[tuple[str, str]]:
    return instructions((DEPLOY / "Dockerfile").read_text())


def last(name: str) -> str:
    return [rest for word, rest in dockerfile() if word == name][-1]


class TestUnit:
    @pytest.mark.parametrize("setting", ["ExecStartPre", "ExecStart"])
    def test_it_calls_commands_that_exist(self, setting):
        program, *words = shlex.split(unit()["Service"][setting])
        assert Path(program).name == "covey"
        check_usage(covey.covey, words)

    def test_a_command_that_does_not_exist_would_be_caught(self):
        with pytest.raises(click.UsageError):
            check_usage(covey.covey, ["server", "start", "federation"])

    def test_it_stops_gently_and_reloads(self):
        service = unit()["Service"]
        assert (service["KillMode"], service["Restart"]) == ("mixed", "on-failure")
        assert int(service["TimeoutStopSec"]) > 10
        assert service["ExecReload"].endswith("-HUP $MAINPID")

    def test_it_runs_as_a_user_without_rights_in_a_private_directory(self):
        service = unit()["Service"]
        assert service["User"] == "covey"
        assert service["StateDirectoryMode"] == "0700"
        assert (service["NoNewPrivileges"], service["CapabilityBoundingSet"]) == ("yes", "")
        assert service["ProtectSystem"] == "strict"

    def test_systemd_takes_it(self, tmp_path):
        analyze = shutil.which("systemd-analyze")
        if analyze is None:
            pytest.skip("systemd-analyze is not installed, so the unit was only read by us")
        text = (DEPLOY / "covey.service").read_text().replace("/opt/covey/bin/covey", "/bin/true")
        (tmp_path / "covey.service").write_text(text)
        verified = subprocess.run([analyze, "verify", tmp_path / "covey.service"], capture_output=True, text=True)
        assert (verified.returncode, verified.stderr) == (0, "")


class TestDockerfile:
    def test_every_instruction_is_one(self):
        assert {word for word, _ in dockerfile()} <= INSTRUCTIONS

    def test_a_mistyped_instruction_would_be_caught(self):
        assert {word for word, _ in instructions("FORM python\nRUN a \\\n  && b\n")} - INSTRUCTIONS == {"FORM"}

    def test_it_copies_what_exists(self):
        for word, rest in dockerfile():
            if word == "COPY" and not rest.startswith("--from"):
                *sources, _ = rest.split()
                assert [source for source in sources if not (ROOT / source).exists()] == []

    def test_it_runs_a_command_that_exists_as_nobody_special(self):
        program, *words = yaml.safe_load(last("ENTRYPOINT"))
        assert Path(program).name == "covey"
        check_usage(covey.covey, [*words, *yaml.safe_load(last("CMD"))])
        assert last("USER") != "root"

    def test_it_opens_the_ports_of_devices_and_no_other(self):
        assert set(map(int, last("EXPOSE").split())) == DEVICE_PORTS

    def test_its_health_check_asks_where_the_observer_listens(self):
        assert f"http://{LISTEN.status}/healthz" in last("HEALTHCHECK")


class TestCompose:
    def services(self) -> dict:
        return yaml.safe_load((DEPLOY / "compose.yaml").read_text())["services"]

    def test_only_devices_ports_leave_the_machine(self):
        ports = {
            int(port.partition(":")[0]) for service in self.services().values() for port in service.get("ports", ())
        }
        assert ports == DEVICE_PORTS

    def test_no_password_is_written_down(self):
        for service in self.services().values():
            for name, value in service["environment"].items():
                assert "PASSWORD" not in name or value.startswith("${")

    def test_the_database_listens_on_no_network(self):
        database, server = self.services()["database"], self.services()["covey"]
        assert "listen_addresses=" in database["command"]
        assert "--auth-local=scram-sha-256" in database["environment"]["POSTGRES_INITDB_ARGS"]
        socket = "socket:/var/run/postgresql"
        assert socket in database["volumes"]
        assert socket in server["volumes"]

    def test_it_builds_our_dockerfile(self):
        build = self.services()["covey"]["build"]
        assert (DEPLOY / build["context"] / build["dockerfile"]).resolve() == DEPLOY / "Dockerfile"
