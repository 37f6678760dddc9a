"""`check` tells an operator whose database could be somebody else's."""

from __future__ import annotations

from types import SimpleNamespace
from typing import cast

import pytest

from server_kit.daemon.check import Verdict
from server_kit.daemon.check_line import check_line
from server_kit.daemon.checks import CHECKS
from server_kit.daemon.federation_home import Home

ELSEWHERE = "postgresql+psycopg://covey@db.example.com/covey"


def found(url: str) -> list[tuple[Verdict, str]]:
    home = SimpleNamespace(config=SimpleNamespace(store=SimpleNamespace(url=url)))
    return list(check_line(cast("Home", home)))


def test_it_is_one_of_the_checks():
    assert check_line in [check for _, check in CHECKS]


@pytest.mark.parametrize("query", ["", "?sslmode=disable", "?sslmode=prefer", "?sslmode=require", "?sslmode=verify-ca"])
def test_a_line_that_anyone_could_answer_is_told_with_its_remedy(query):
    [(verdict, sentence)] = found(ELSEWHERE + query)
    assert verdict is Verdict.WARN
    assert "sslmode=verify-full" in sentence


def test_a_line_whose_other_end_proves_its_name_is_well():
    assert [verdict for verdict, _ in found(f"{ELSEWHERE}?sslmode=verify-full&sslrootcert=system")] == [Verdict.OK]


@pytest.mark.parametrize(
    "url",
    [
        "",
        "sqlite:///federation.db",
        "postgresql+psycopg://covey@localhost/covey",
        "postgresql+psycopg://covey@/covey?host=/var/run/postgresql",
    ],
)
def test_a_database_on_this_machine_needs_no_line(url):
    assert [verdict for verdict, _ in found(url)] == [Verdict.OK]


def test_a_host_in_the_query_is_the_one_that_is_asked():
    [(verdict, _)] = found("postgresql+psycopg://covey@localhost/covey?host=db.example.com")
    assert verdict is Verdict.WARN
