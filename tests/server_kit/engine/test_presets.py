"""Presets are data: each builds and runs, settings are laid over them, a wrong name is answered with the nearest."""

from __future__ import annotations

import copy
from dataclasses import dataclass
from typing import Any

import pytest

from server_kit.aggregation import CasaDecay, FedAvg, FedYogi, NormBound
from server_kit.clustering import HierarchicalClustering, Optics
from server_kit.errors import InvalidSetting
from server_kit.formation import Evidence, FixedRounds, Founding, Gated, Never, Online, Spectral
from server_kit.interfaces import DeviceView
from server_kit.matching import Assigned, OwnChoice
from server_kit.objectives import Proximal
from server_kit.parts import PARTS
from server_kit.presets import PRESETS, UNDER_TERMS, strategy
from server_kit.selection import ClusterWeighted, Uniform
from server_kit.strategy import Strategy
from tests.server_kit.engine.scripted import rng
from tests.server_kit.engine.worlds import run, small
from tests.server_kit.simulation.experiments.made_up import SMALL, experiment_file


@pytest.mark.parametrize("name", sorted(PRESETS))
def test_every_preset_builds_and_runs(name):
    ended = run(name, settings=small(2))
    assert ended.preset == name
    assert len(ended.points) >= 2
    assert len(ended.device_accuracies) == 12
    assert ended.points[-1].progress.client_steps > 0


def test_the_published_systems_are_there():
    assert set(PRESETS) >= {
        *("auxo", "haccs", "fedgroup", "fedgrouprox", "flexcfl", "casa", "casa_plus", "covey"),
        *("fedavg", "fedprox", "fedyogi", "qfedavg", "ftfa", "tifl", "oort", "oort_lite", "cfl", "flhc", "ifca"),
        *("standalone", "fedasync", "fedbuff", "cfl_async", "ifca_async", "oracle"),
    }


class TestOverrides:
    def test_what_is_not_said_stays(self):
        built = strategy("casa", {"formation": {"steps": 7}})
        assert isinstance(built.formation, Gated)
        assert built.formation.steps == 7
        assert isinstance(built.formation.inner, Spectral)
        assert isinstance(built.aggregator, CasaDecay)

    def test_a_setting_deep_inside_leaves_its_neighbours(self):
        built = strategy("flhc", {"formation": {"clusterer": {"linkage": "average"}}}).formation
        assert isinstance(built, Founding)
        assert vars(built.clusterer) == vars(HierarchicalClustering(clusters=4, linkage="average"))
        assert built.at_round == 10

    def test_another_kind_replaces_a_part_with_all_its_settings(self):
        built = strategy("fedprox", {"objective": {"kind": "sparse_masked"}})
        assert not isinstance(built.objective, Proximal)
        rule = strategy("auxo", {"formation": {"rule": {"kind": "fixed_rounds", "rounds": [3]}}}).formation
        assert isinstance(rule, Online)
        assert rule.rule == FixedRounds((3,))

    def test_a_name_alone_is_a_part_with_its_defaults(self):
        assert strategy("fedprox", {"objective": "proximal"}).objective == Proximal()
        assert strategy("fedavg", {"aggregator": "fedyogi"}).aggregator == FedYogi()

    def test_settings_of_a_part_that_the_preset_only_names(self):
        assert strategy("fedyogi", {"aggregator": {"learning_rate": 0.5}}).aggregator == FedYogi(learning_rate=0.5)

    def test_parts_inside_parts(self):
        given = {"aggregator": {"kind": "norm_bound", "bound": 2.0, "inner": {"kind": "fedavg", "weighted": False}}}
        assert strategy("fedavg", given).aggregator == NormBound(FedAvg(weighted=False), 2.0)

    def test_none_is_a_word(self):
        built = strategy("haccs", {"formation": {"summarizer": {"epsilon": "none"}}}).formation
        assert isinstance(built, Founding)
        assert built.summarizer.epsilon is None  # type: ignore[attr-defined]

    def test_a_preset_is_not_changed_by_what_is_laid_over_it(self):
        before = copy.deepcopy(dict(PRESETS))
        strategy("auxo", {"formation": {"rule": {"kind": "fixed_rounds"}, "clusterer": {"clusters": 4}}})
        assert before == PRESETS

    def test_defaults_are_those_of_a_strategy(self):
        assert strategy("fedavg") == Strategy("fedavg")
        assert isinstance(strategy("fedavg").selector, Uniform)

    def test_what_presets_promise(self):
        auxo, haccs, casa = (strategy(name) for name in ("auxo", "haccs", "casa"))
        assert auxo.over_commit == 1.25
        assert isinstance(auxo.formation, Online)
        assert isinstance(auxo.formation.rule, Evidence)
        assert isinstance(haccs.selector, ClusterWeighted)
        assert isinstance(haccs.formation, Founding)
        assert isinstance(haccs.formation.clusterer, Optics)
        assert casa.is_asynchronous
        assert isinstance(casa.matcher, Assigned)


@pytest.mark.parametrize(
    ("name", "overrides", "sentence"),
    [
        ("auxxo", {}, "presets: unknown preset 'auxxo'; did you mean 'auxo'?"),
        ("fedavg", {"selectr": "oort"}, "preset fedavg: unknown setting 'selectr'; did you mean 'selector'?"),
        ("fedavg", {"selector": "ort"}, "preset fedavg [selector]: unknown kind 'ort'; did you mean 'oort'?"),
        (
            "fedprox",
            {"objective": {"muh": 1.0}},
            "preset fedprox [objective]: unknown setting 'muh'; did you mean 'mu'?",
        ),
        (
            "auxo",
            {"formation": {"rule": "evidance"}},
            "preset auxo [formation.rule]: unknown kind 'evidance'; did you mean 'evidence'?",
        ),
        ("fedavg", {"budget": "each_"}, "unknown budget 'each_'; did you mean 'each'?"),
        ("fedavg", {"name": "mine"}, "unknown setting 'name'"),
        ("fedavg", {"over_commit": "much"}, "over_commit must be a number, got 'much'; nothing was run"),
        ("fedprox", {"objective": {"mu": -1.0}}, "preset fedprox [objective]: mu is 0 or more, got -1.0"),
        ("ifca", {"formation": {"models": 1}}, "a choice needs at least 2 models, got 1; nothing was started"),
        ("fedavg", {"aggregator": "norm_bound"}, "setting 'inner' is missing"),
        ("fedavg", {"over_commit": 0.5}, "over_commit is 1 or more, got 0.5; nothing was started"),
        ("fedbuff", {"buffer": 0}, "buffer is 1 arrival or more, got 0; nothing was started"),
        ("fedavg", {"selector": "nowhere.to_be:found"}, "'nowhere.to_be:found' cannot be imported"),
        ("fedavg", {"selector": "server_kit.selection:Nobody"}, "'server_kit.selection:Nobody' cannot be imported"),
    ],
)
def test_a_wrong_word_is_answered_with_one_sentence(name, overrides, sentence):
    with pytest.raises(InvalidSetting) as refused:
        strategy(name, overrides)
    assert sentence in str(refused.value)
    assert "\n" not in str(refused.value)


@dataclass(frozen=True)
class Alphabetical:
    """A selector that only this test knows."""

    backwards: bool = False

    def select(self, waiting: Any, count: int, memory: Any, rng: Any) -> list[str]:
        return sorted((view.device for view in waiting), reverse=self.backwards)[:count]

    def observe(self, outcome: Any, memory: Any) -> None:
        pass


@pytest.mark.parametrize("backwards", [False, True])
def test_a_dotted_name_is_a_part_like_any_other(backwards):
    dotted = {"kind": f"{__name__}:Alphabetical", "backwards": backwards}
    built = strategy("fedavg", {"selector": dotted})
    chosen = built.selector.select([DeviceView(device) for device in "bca"], 2, {}, rng())
    assert chosen == (["c", "b"] if backwards else ["a", "b"])
    assert run(built, settings=small(2)).points[-1].progress.round == 2


def test_every_part_has_one_name():
    for parts in PARTS.values():
        assert len(set(parts.values())) == len(parts)
        assert all(name == name.lower().replace("-", "_") for name in parts)


@pytest.mark.parametrize(("participants", "leaves", "each"), [(20, 1, 20), (20, 3, 6), (20, 20, 1)])
def test_leaves_share_the_places_equally(participants, leaves, each):
    assert strategy("auxo").pace(participants, leaves).arrivals == each
    assert strategy("fedgroup").pace(participants, leaves).arrivals == participants
    assert strategy("fedbuff").pace(participants, leaves).arrivals == 10
    assert strategy("fedbuff").pace(participants, leaves).in_flight == participants


class TestHurry:
    @pytest.mark.parametrize(("hurried", "round_number", "factor"), [(None, 99, 1.25), (20, 19, 1.25), (20, 20, 1.0)])
    def test_more_are_asked_than_are_waited_for_in_so_many_rounds(self, hurried, round_number, factor):
        built = strategy("auxo", {"hurried_rounds": hurried} if hurried is not None else {})
        assert built.pace(20, 1, round_number=round_number).over_commit == factor

    def test_a_number_of_rounds_is_not_negative(self):
        with pytest.raises(InvalidSetting, match="hurried_rounds is 0 or more, got -1"):
            strategy("auxo", {"hurried_rounds": -1})

    @pytest.mark.parametrize("budget", ["each", "shared"])
    def test_later_rounds_ask_nobody_in_vain(self, budget):
        def late(hurried: int) -> int:
            shared = {"hurried_rounds": hurried, "over_commit": 2.0, "budget": budget}
            return run(strategy("fedavg", shared), settings=small(4)).refusals.get("late", 0)

        assert late(0) == 0
        assert late(1) < late(4)


class TestTerms:
    def test_where_they_hide_records_covey_spends_no_participation_and_no_choice_in_vain(self):
        built = strategy("covey", unit="record")
        assert (built.over_commit, built.shares_places) == (1.0, True)
        assert built.formation == strategy("covey").formation

    def test_where_they_hide_devices_it_is_one_model_without_anything_that_is_paid_for_in_vain(self):
        built = strategy("covey", unit="device")
        assert isinstance(built.formation, Never)
        assert isinstance(built.aggregator, FedAvg)
        assert not getattr(built.matcher, "asks_for_choices", False)
        assert (built.over_commit, built.reports_loss) == (1.0, False)

    @pytest.mark.parametrize("unit", sorted(UNDER_TERMS))
    @pytest.mark.parametrize("name", sorted(set(PRESETS) - {"covey"}))
    def test_published_systems_are_what_they_are(self, name, unit):
        assert strategy(name, unit=unit) == strategy(name)

    @pytest.mark.parametrize("overrides", [{"formation": {"steps": 7}}, {"matcher": {"renew_steps": 5}}])
    def test_who_speaks_of_cohorts_gets_them(self, overrides):
        built = strategy("covey", overrides, unit="device")
        assert isinstance(built.formation, Gated)
        assert isinstance(built.matcher, OwnChoice)
        assert isinstance(built.aggregator, FedAvg)

    def test_an_experiment_runs_it_as_its_terms_say(self, tmp_path):
        terms = '    [privacy]\n    unit = "device"\n    participations = 9\n    [[compare]]\n    preset = "covey"\n'
        experiment = experiment_file(tmp_path, SMALL.partition("[[compare]]")[0] + terms).read()
        points = experiment.run(experiment.units[0]).points
        assert [list(point.cohorts) for point in points] == [["0"]] * len(points)
        assert 0 < (points[-1].epsilon or 0.0) <= 8
