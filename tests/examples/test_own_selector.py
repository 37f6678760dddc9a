"""A selector written by a user works in simulation by its dotted name."""

from __future__ import annotations

import ast
import inspect

import pytest

from examples import own_selector
from server_kit.errors import InvalidSetting
from server_kit.interfaces import DeviceView
from server_kit.presets import strategy
from server_kit.simulation.experiments import ExperimentFile
from tests.server_kit.engine.contracts import keeps_selector
from tests.server_kit.engine.scripted import rng
from tests.server_kit.engine.worlds import people, small, world

NAME = "examples.own_selector:Turns"


@pytest.mark.parametrize("pause", [0, 3])
def test_it_keeps_the_contract_of_selectors(pause):
    keeps_selector(own_selector.Turns(pause))


def test_it_is_named_in_a_preset_and_takes_its_settings():
    chosen = strategy("fedavg", {"selector": {"kind": NAME, "least_pause": 2}}).selector
    assert chosen == own_selector.Turns(2)
    assert strategy("fedavg", {"selector": NAME}).selector == own_selector.Turns()


@pytest.mark.parametrize("preset", ["fedavg", "fedgroup", "fedbuff"])
def test_in_a_run_devices_take_turns(preset):
    with world(preset, people(devices=12), small(6, 4), overrides={"selector": NAME}) as now:
        now.go_on()
        took_part = [now.state.views[device].participations for device in now.population.devices]
        assert min(took_part) >= 1
        if preset == "fedavg":
            assert took_part == [2] * 12


def test_whoever_paused_longest_comes_first():
    views = [DeviceView("late", last_round=9), DeviceView("early", last_round=2), DeviceView("never")]
    assert own_selector.Turns().select(views, 3, {"round": 9}, rng()) == ["never", "early", "late"]


def test_it_works_from_an_experiment_file(tmp_path):
    file = tmp_path / "turns.toml"
    file.write_text(
        f"""
[population]
devices = 8
partition = {{ kind = "iid", sizes = {{ kind = "equal", mean_samples = 20 }} }}

[model]
kind = "logistic"

[training]
learning_rate = 0.1

[run]
rounds = 2
evaluate_every = 2
participants = 4
seeds = 1

[[compare]]
preset = "fedavg"
overrides = {{ selector = {{ kind = "{NAME}", least_pause = 1 }} }}
"""
    )
    experiment = ExperimentFile.open(file).read()
    assert experiment.run(experiment.units[0]).points[-1].progress.round == 2


def test_an_unknown_setting_of_it_is_refused_with_the_nearest():
    with pytest.raises(InvalidSetting, match="unknown setting 'least_pose'; did you mean 'least_pause'"):
        strategy("fedavg", {"selector": {"kind": NAME, "least_pose": 2}})


def test_it_takes_twenty_lines():
    source = inspect.getsource(own_selector.Turns)
    tree = ast.parse(source).body[0]
    assert isinstance(tree, ast.ClassDef)
    assert len([line for line in source.splitlines() if line.strip()]) <= 20
