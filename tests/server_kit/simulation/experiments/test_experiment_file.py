"""An experiment file says all there is to say, and what is wrong in it is refused before anything runs."""

from __future__ import annotations

import textwrap

import numpy as np
import pytest
import torch

from server_kit.errors import InvalidSetting
from server_kit.simulation.datasets import Synthetic
from server_kit.simulation.experiments.experiment import Unit
from server_kit.simulation.experiments.experiment_file import ExperimentFile
from server_kit.simulation.partition import ClassesPerDevice, LogNormal
from server_kit.simulation.training import Cnn, LogisticRegression, ModuleSpec
from tests.architecture.repository import ROOT
from tests.server_kit.simulation.experiments.made_up import SMALL, experiment_file

EXAMPLES = sorted((ROOT / "examples/experiments").glob("*.toml"))


def read(tmp_path, text=SMALL, **settings):
    return experiment_file(tmp_path, text, **settings).read()


def changed(old: str, new: str) -> str:
    assert old in SMALL
    return SMALL.replace(old, new)


@pytest.mark.parametrize("path", EXAMPLES, ids=lambda path: path.stem)
def test_every_example_is_an_experiment_that_could_run(path):
    experiment = ExperimentFile.open(path).read()
    experiment.check_data()
    assert len(experiment.contenders) > 1


def test_the_promised_examples_are_there():
    assert {"asynchronous", "label_skew", "quick", "rotations"} <= {path.stem for path in EXAMPLES}


def test_settings_arrive_where_they_belong(tmp_path):
    experiment = read(tmp_path)
    assert experiment.devices == 12
    assert experiment.settings.rounds == 6
    assert experiment.settings.task.learning_rate == 0.1
    assert experiment.settings.privacy is None
    assert experiment.repeats.targets == (0.2,)
    assert [contender.name for contender in experiment.contenders] == ["fedavg", "fedprox"]
    assert isinstance(experiment.model.spec(experiment.dataset, 0), LogisticRegression)


def test_work_goes_seed_by_seed(tmp_path):
    assert read(tmp_path).units == (Unit("fedavg", 0), Unit("fedprox", 0), Unit("fedavg", 1), Unit("fedprox", 1))


def test_seeds_can_be_given_from_outside(tmp_path):
    assert len(read(tmp_path, seeds=5).units) == 10


def test_contenders_meet_the_same_fleet_for_a_seed_and_another_for_the_next(tmp_path):
    here, there = read(tmp_path), read(tmp_path)
    same = [experiment.population(1).dealt.rows.values for experiment in (here, there)]
    assert np.array_equal(*same)
    assert not np.array_equal(same[0], here.population(0).dealt.rows.values)


def test_nested_rules_are_read(tmp_path):
    partition = 'partition = { kind = "classes_per_device", classes = 3, sizes = { kind = "log_normal", sigma = 0.5 } }'
    experiment = read(tmp_path, changed('partition = "iid"', partition))
    assert experiment.fleet["partition"] == ClassesPerDevice(3, LogNormal(0.5))


def test_a_generated_data_set_takes_its_settings(tmp_path):
    data = 'dataset = { kind = "synthetic", alpha = 0.5, num_devices = 12 }\n    partition = "natural_users"'
    experiment = read(tmp_path, changed('partition = "iid"', data))
    assert experiment.source == Synthetic(alpha=0.5, num_devices=12)
    experiment.check_data()


def test_paths_start_at_the_file(tmp_path):
    np.savez(tmp_path / "own.npz", x=np.ones((30, 4), np.float32), y=np.arange(30) % 3)
    named = read(tmp_path, changed('partition = "iid"', 'partition = "iid"\n    dataset = "own"\n    data_dir = "."'))
    by_path = 'partition = "iid"\n    dataset = { kind = "npz", path = "own.npz" }'
    assert len(named.dataset) == len(read(tmp_path, changed('partition = "iid"', by_path)).dataset) == 30


def test_a_model_takes_its_sizes_from_the_data(tmp_path):
    cnn = 'kind = "cnn"\n    channels = [4]\n    kernel = 3\n    padding = 1'
    experiment = read(tmp_path, changed('kind = "logistic"', cnn))
    spec = experiment.model.spec(experiment.dataset, 0)
    assert spec == Cnn(image=(1, 8, 8), channels=(4,), kernel=3, padding=1, classes=10)


def test_a_module_of_ones_own_starts_the_same_for_the_same_seed(tmp_path, monkeypatch):
    source = """
        from torch import nn

        def build(input_shape, num_classes, width=3):
            pixels = input_shape[0] * input_shape[1] * input_shape[2]
            return nn.Sequential(nn.Flatten(), nn.Linear(pixels, width), nn.Linear(width, num_classes))

        def nothing(input_shape, num_classes):
            return None
    """
    (tmp_path / "planted_model.py").write_text(textwrap.dedent(source))
    monkeypatch.syspath_prepend(tmp_path)
    own = 'module = "planted_model:build"\n    settings = { width = 5 }'
    experiment = read(tmp_path, changed('kind = "logistic"', own))
    first, again, other = (experiment.model.spec(experiment.dataset, seed) for seed in (1, 1, 2))
    assert isinstance(first, ModuleSpec)
    assert torch.equal(first.initial(), again.initial())
    assert not torch.equal(first.initial(), other.initial())
    wrong = read(tmp_path, changed('kind = "logistic"', 'module = "planted_model:nothing"'))
    with pytest.raises(InvalidSetting, match="gave a NoneType, not a torch module"):
        wrong.check_data()


def test_privacy_terms_are_read(tmp_path):
    experiment = read(tmp_path, f'{SMALL}\n    [privacy]\n    unit = "device"\n    epsilon = 4')
    terms = experiment.settings.privacy
    assert terms is not None
    assert (terms.unit, terms.epsilon) == ("device", 4.0)


def test_more_seeds_contenders_and_targets_leave_finished_units_as_they_are(tmp_path):
    before = read(tmp_path)
    more = changed("targets = [0.2]", "targets = [0.5, 0.9]").replace("seeds = 2", "seeds = 9")
    after = read(tmp_path, f'# a remark\n{more}\n    [[compare]]\n    preset = "auxo"')
    assert before.terms(Unit("fedavg", 0)) == after.terms(Unit("fedavg", 0))


@pytest.mark.parametrize(
    ("old", "new"),
    [("devices = 12", "devices = 13"), ("learning_rate = 0.1", "learning_rate = 0.2"), ("rounds = 6", "rounds = 7")],
)
def test_any_other_change_makes_another_unit(tmp_path, old, new):
    assert read(tmp_path).terms(Unit("fedavg", 0)) != read(tmp_path, changed(old, new)).terms(Unit("fedavg", 0))


@pytest.mark.parametrize(
    ("text", "sentence"),
    [
        ("[population", "experiment.toml: is no TOML"),
        (f"{SMALL}\n[trainingg]", "experiment.toml: unknown table 'trainingg'; did you mean 'training'?"),
        ("population = 3", "population must be a table, written [population]"),
        (changed('partition = "iid"', ""), "[population]: setting 'partition' is missing"),
        (
            changed('partition = "iid"', 'partition = "dirichlett"'),
            "unknown kind 'dirichlett'; did you mean 'dirichlet'?",
        ),
        (changed("devices = 12", "device = 12"), "[population]: unknown setting 'device'; did you mean 'devices'?"),
        (changed("devices = 12", "devices = 0"), "[population]: devices must be at least 1"),
        (changed("devices = 12", 'dataset = "digit"'), "unknown dataset 'digit'; did you mean 'digits'?"),
        (changed("devices = 12", "seed = 4"), "[population]: unknown setting 'seed'"),
        (
            changed('kind = "logistic"', 'kind = "logistics"'),
            "[model]: unknown kind 'logistics'; did you mean 'logistic'?",
        ),
        (changed('kind = "logistic"', 'kind = "mlp"\n    classes = 3'), "[model]: unknown setting 'classes'"),
        (changed("learning_rate = 0.1", ""), "[training]: setting 'learning_rate' is missing"),
        (
            changed("learning_rate = 0.1", "learning_rate = 0.1\n    epochs = 0"),
            "[training]: epochs must be at least 1",
        ),
        (changed("rounds = 6", "round = 6"), "[run]: unknown setting 'round'; did you mean 'rounds'?"),
        (changed("rounds = 6", "rounds = 0"), "[run]: rounds must be at least 1"),
        (changed("seeds = 2", "seeds = 0"), "[run]: seeds start at 0 and there must be one at least"),
        (changed("targets = [0.2]", "targets = [80]"), "[run]: targets are shares from 0 to 1"),
        (f"{SMALL}\n[privacy]\nepsilonn = 1", "[privacy]: unknown setting 'epsilonn'; did you mean 'epsilon'?"),
        (SMALL.partition("[[compare]]")[0], "nothing to run"),
        (changed('"fedprox"', '"fedprxo"'), "unknown preset 'fedprxo'; did you mean 'fedprox'?"),
        (changed('"fedprox"', '"fedavg"'), "two entries are called 'fedavg'; give one another name"),
        (changed('preset = "fedprox"', 'presett = "fedprox"'), "unknown setting 'presett'; did you mean 'preset'?"),
        (f"{SMALL}\n    overrides = {{ over_comit = 2 }}", "unknown setting 'over_comit'; did you mean 'over_commit'?"),
    ],
)
def test_what_is_wrong_in_a_file_is_one_sentence_with_its_place(tmp_path, text, sentence):
    with pytest.raises(InvalidSetting) as refused:
        read(tmp_path, text)
    assert sentence in str(refused.value)
    assert str(refused.value).startswith("experiment.toml")
    assert "\n" not in str(refused.value)


@pytest.mark.parametrize(
    ("old", "new"),
    [
        ('partition = "iid"', 'partition = { kind = "classes_per_device", classes = 11 }'),
        ('partition = "iid"', 'partition = "natural_users"'),
        ('kind = "logistic"', 'kind = "cnn"'),
        ("devices = 12", 'dataset = "synthetic"\n    holdout = "given_split"'),
    ],
)
def test_what_does_not_fit_the_data_is_refused_before_anything_runs(tmp_path, old, new):
    with pytest.raises(InvalidSetting):
        read(tmp_path, changed(old, new)).check_data()


def test_a_file_that_is_no_text_is_refused(tmp_path):
    (tmp_path / "experiment.toml").write_bytes(b"\xff\xfe\x00")
    with pytest.raises(InvalidSetting, match="not a text in UTF-8"):
        ExperimentFile.open(tmp_path / "experiment.toml")
