"""`server.toml`: an empty file works, nothing is guessed, and every refusal names the file and the setting."""

from __future__ import annotations

import dataclasses
import re
from decimal import Decimal
from fractions import Fraction
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from device_sdk.wire.codec import decode_from_server, encode_from_server
from device_sdk.wire.messages import (
    Blob,
    DeviceLevelTerms,
    Dtype,
    ModelReference,
    RecordLevelTerms,
    Task,
    TensorSpec,
)
from privacy.budget import PrivacyUnit
from server_kit.config import FILE_NAME, ServerConfig
from server_kit.config.checking import exact
from server_kit.config.policy import check_policy
from server_kit.config.reloading import WHILE_RUNNING
from server_kit.config.sample import sample_settings
from server_kit.daemon.federation_home import Home
from server_kit.errors import InvalidSetting
from tests.architecture.repository import ROOT

TABLES = {each.name: type(getattr(ServerConfig(), each.name)) for each in dataclasses.fields(ServerConfig)}
SETTINGS = [(table, field.name) for table, kind in TABLES.items() for field in dataclasses.fields(kind)]


def refusal(text: str) -> str:
    with pytest.raises(InvalidSetting) as caught:
        ServerConfig.of_text(text)
    return str(caught.value)


def uncommented(text: str) -> str:
    """The sample with every default stated."""
    return re.sub(r"(?m)^# ([a-z_]+ = )", r"\1", text)


def unstated(text: str) -> set[tuple[str, str]]:
    """Settings that a sample does not name in their table."""
    parts = re.split(r"(?m)^\[(\w+)\]$", text)
    stated = {
        (table, name)
        for table, body in zip(parts[1::2], parts[2::2], strict=True)
        for name in re.findall(r"(?m)^(?:# )?([a-z_]+) = ", body)
    }
    return set(SETTINGS) - stated


class TestReading:
    def test_an_empty_file_is_a_federation(self, tmp_path):
        (tmp_path / FILE_NAME).write_text("")
        assert ServerConfig.read(tmp_path / FILE_NAME) == ServerConfig()

    @pytest.mark.parametrize(("table", "setting"), SETTINGS)
    def test_a_mistyped_setting_is_refused_with_the_nearest(self, table, setting):
        sentence = refusal(f"[{table}]\n{setting}x = 1\n")
        assert sentence.startswith(f"server.toml [{table}]: unknown setting '{setting}x'")
        assert f"did you mean '{setting}'?" in sentence

    @pytest.mark.parametrize("table", TABLES)
    def test_a_mistyped_table_is_refused_with_the_nearest(self, table):
        assert f"unknown table '{table}s'; did you mean '{table}'?" in refusal(f"[{table}s]\n")

    @pytest.mark.parametrize(
        ("text", "said"),
        [
            ("[federation]\nparticipants = 0", "[federation]: participants must be at least 1"),
            ("[federation]\nparticipants = '20'", "[federation]: participants must be a whole number"),
            ("[federation]\nmodel = 'build'", "model must be 'package.module:build'"),
            ("[federation]\ndeadline_seconds = inf", "deadline_seconds must be above 0"),
            ("[federation]\ndevice = 'gpu'", "device must be auto, cpu, cuda or cuda:NUMBER"),
            ("[training]\nsteps = 3\nepochs = 1", "give steps or epochs, not both"),
            ("[training]\nmomentum = 1.0", "momentum must be at least 0 and below 1"),
            ("[privacy]\nlevel = 'devices'", "unknown level 'devices'; did you mean 'device'?"),
            ("[privacy]\nnoise_multiplier = 0", "noise_multiplier must be a number above 0"),
            ("[privacy]\nclip_norm = '1/0'", "clip_norm must be a number above 0"),
            ("[privacy]\nsampling_rate = 1.5", "sampling_rate must be at most 1"),
            ("[privacy]\ngrid_bits = 60", "grid_bits must lie within 8 and 24"),
            ("[privacy]\nlevel = 'device'\nchoice_by = 'votes'", "votes hide records and not devices"),
            ("[privacy]\nchoice_by = 'vote'", "unknown choice_by 'vote'; did you mean 'votes'?"),
            ("[privacy]\nhistogram = { labels = 1 }", "[privacy.histogram]: labels must be at least 2"),
            ("[policy]\nepsilon = -1", "a budget needs a finite ε above 0"),
            ("[policy]\npure_epsilon = 9", "is no share of ε=8"),
            ("[listen]\ngateway = '8443'", "gateway must be host:port"),
            ("[listen]\ngateway = '127.0.0.1:8444'", "ports of their own"),
            ("[listen]\nhosts = ['a b']", "hosts must be names or addresses"),
            ("[listen]\nhosts = []", "hosts must name the server at least once"),
            ("[guards]\nstrikes = 0", "strikes must be above 0"),
            ("[evaluation]\nevery = -1", "every must be 0 (never) or more"),
            ("[log]\nlevel = 'loud'", "unknown level 'loud'"),
            ("[log]\nformat = 'xml'", "unknown format 'xml'"),
            ("log = 1", "log must be a table, written [log]"),
            ("[federation", "is no TOML"),
        ],
    )
    def test_what_makes_no_sense_is_refused_in_one_sentence(self, text, said):
        sentence = refusal(text)
        assert sentence.startswith("server.toml")
        assert said in sentence
        assert "\n" not in sentence

    @pytest.mark.parametrize(
        "setting",
        [
            "url = 'postgresql+psycopg://covey:hunter2@db/covey'",
            "url = 'postgresql+psycopg://covey@db/covey?password=hunter2'",
            "blobs = 's3://key:hunter2@bucket/covey'",
        ],
    )
    def test_a_password_in_a_url_is_refused_and_not_repeated(self, setting):
        sentence = refusal(f"[store]\n{setting}\n")
        assert "must not hold a password" in sentence
        assert "hunter2" not in sentence

    def test_a_file_that_is_not_there_is_one_sentence(self, tmp_path):
        with pytest.raises(InvalidSetting, match="could not be read"):
            ServerConfig.read(tmp_path / FILE_NAME)

    def test_a_relative_path_starts_at_the_file(self, tmp_path):
        (tmp_path / FILE_NAME).write_text("[evaluation]\nvalidation = 'test.npz'\n")
        assert ServerConfig.read(tmp_path / FILE_NAME).evaluation.validation == tmp_path / "test.npz"


class TestSample:
    def test_it_states_every_setting_with_its_default(self):
        text = uncommented(sample_settings())
        assert unstated(text) == set()
        assert ServerConfig.of_text(text) == ServerConfig()

    def test_as_written_it_means_the_same(self):
        assert ServerConfig.of_text(sample_settings()) == ServerConfig()

    def test_a_forgotten_setting_or_another_default_is_caught(self):
        text = uncommented(sample_settings())
        assert unstated(text.replace("strikes = 3\n", "")) == {("guards", "strikes")}
        assert ServerConfig.of_text(text.replace("strikes = 3", "strikes = 4")) != ServerConfig()

    def test_a_named_host_is_reached_from_outside_and_status_is_not(self):
        listen = ServerConfig.of_text(sample_settings(hosts=["fl.example.com", "10.0.0.7"], port=9000)).listen
        assert str(listen.enrolment_address) == "fl.example.com:9001"
        assert str(listen.gateway_address) == "fl.example.com:9000"
        assert listen.gateway == "0.0.0.0:9000"
        assert listen.status_is_local

    def test_hiding_whole_devices_leaves_room_for_as_many_rounds(self):
        config = ServerConfig.of_text(sample_settings(level="device"))
        assert config.privacy.unit is PrivacyUnit.DEVICE
        assert check_policy(config).rounds >= check_policy(ServerConfig()).rounds

    def test_any_name_survives(self):
        name = 'a "quoted" \\ name'
        assert ServerConfig.of_text(sample_settings(name=name)).federation.name == name


class TestPage:
    PAGE = (ROOT / "docs/operating.md").read_text(encoding="utf-8")

    def rows(self) -> dict[str, str]:
        return dict(re.findall(r"(?m)^\| `\[(\w+)\]` \| (.*) \|$", self.PAGE))

    def test_it_names_every_setting_and_whether_it_can_change(self):
        rows = self.rows()
        for table, setting in SETTINGS:
            changes = setting in WHILE_RUNNING.get(table, ())
            assert (f"`{setting}`" in rows[table], f"*`{setting}`*" in rows[table]) == (True, changes), setting

    def test_it_names_no_setting_that_is_none(self):
        for table, text in self.rows().items():
            named = set(re.findall(r"`([a-z_]{3,})`", text)) - {"record", "device"}
            assert named <= {name for of, name in SETTINGS if of == table}

    def test_it_names_every_secret(self, tmp_path):
        for path in Home.create(tmp_path / "federation").secrets.directory.iterdir():
            assert f"| `{path.name}` |" in self.PAGE


class TestTerms:
    @given(st.decimals(min_value=Decimal("1e-9"), max_value=Decimal("1e9"), places=9))
    def test_a_number_stays_as_it_was_written(self, number):
        text = format(number, "f")
        assert Fraction(exact(text, "x")) == Fraction(number)

    @given(st.floats(min_value=0.01, max_value=1e9))
    def test_a_float_means_the_digits_that_show_it(self, number):
        assert Fraction(exact(number, "x")) == Fraction(Decimal(repr(number)))

    @pytest.mark.parametrize("text", ["-1", "0", "0.0", "1e5", "nan", "", "1//2", "1/0"])
    def test_what_is_no_number_above_zero_is_refused(self, text):
        with pytest.raises(InvalidSetting, match="x must be a number above 0"):
            exact(text, "x")

    def test_levels_have_the_terms_of_their_mechanism(self):
        record = ServerConfig().privacy.terms()
        device = ServerConfig.of_text("[privacy]\nlevel = 'device'\nnoise_multiplier = 6.5\n").privacy.terms()
        assert isinstance(record, RecordLevelTerms)
        assert isinstance(device, DeviceLevelTerms)
        assert (record.grid_bits, device.grid_bits, device.noise_multiplier) == (8, 17, "6.5")

    def test_terms_and_objective_pass_the_wire(self):

        config = ServerConfig()
        model = ModelReference(0, Blob(bytes(32), 80), (TensorSpec("w", Dtype.F32, (1,)),))
        objective, terms = config.training.objective(), config.privacy.terms()
        task = Task("task", "0" * 32, "0", 1, model, objective, terms, config.federation.deadline_seconds)

        assert decode_from_server(encode_from_server(task)) == task


def test_hosts_may_be_addresses_of_either_kind():
    assert ServerConfig.of_text("[listen]\nhosts = ['::1', '10.0.0.1', 'fl.example.com']\n").listen.hosts[0] == "::1"


@pytest.mark.parametrize(("status", "local"), [("127.0.0.1:1", True), ("[::1]:1", True), ("0.0.0.0:1", False)])
def test_it_is_known_whether_status_is_for_this_machine_only(status, local):
    assert ServerConfig.of_text(f"[listen]\nstatus = '{status}'\n").listen.status_is_local is local


def test_nothing_of_the_sample_depends_on_where_it_is_read():
    assert ServerConfig.of_text(sample_settings(), folder=Path("elsewhere")) == ServerConfig()
