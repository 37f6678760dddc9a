"""A changed file while the server runs: what may change does, what may not stays, and both are said."""

from __future__ import annotations

import dataclasses

import pytest

from server_kit.config import ServerConfig, reloadable
from server_kit.config.reloading import WHILE_RUNNING

OLD = ServerConfig()


def test_nothing_changed_is_nothing_said():
    assert reloadable(OLD, ServerConfig()) == reloadable(OLD, OLD)
    assert reloadable(OLD, OLD).changed == reloadable(OLD, OLD).refused == ()


def test_what_may_change_is_taken_over_and_the_rest_is_named():
    new = ServerConfig.of_text("[log]\nlevel = 'debug'\n[federation]\nparticipants = 5\npreset = 'fedavg'\n")
    reload = reloadable(OLD, new)
    assert reload.changed == ("federation.participants", "log.level")
    assert reload.refused == ("federation.preset",)
    assert (reload.config.log.level, reload.config.federation.participants) == ("debug", 5)
    assert reload.config.federation.preset == OLD.federation.preset


@pytest.mark.parametrize("text", ["[privacy]\nnoise_multiplier = 0.1\n", "[policy]\nepsilon = 80\n"])
def test_a_promise_never_changes_while_the_server_runs(text):
    reload = reloadable(OLD, ServerConfig.of_text(text))
    assert reload.config == OLD
    assert len(reload.refused) == 1


def test_every_setting_that_may_change_exists():
    for table, names in WHILE_RUNNING.items():
        assert names <= {each.name for each in dataclasses.fields(getattr(OLD, table))}
