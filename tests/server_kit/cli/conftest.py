"""Runs `covey` in this process, as a terminal would."""

from __future__ import annotations

from dataclasses import dataclass

import pytest

import covey
from server_kit.daemon.federation_home import Home
from tests.server_kit.cli.federations import populated


@dataclass
class Ran:
    code: int
    out: str
    err: str


@pytest.fixture
def run(capsys):
    def call(*words: object) -> Ran:
        code = covey.run(covey.covey, [str(word) for word in words])
        captured = capsys.readouterr()
        return Ran(code, captured.out, captured.err)

    return call


@pytest.fixture
def home(tmp_path) -> Home:
    return populated(tmp_path / "federation")


@pytest.fixture(scope="module")
def shared(tmp_path_factory) -> Home:
    """For tests that only look."""
    return populated(tmp_path_factory.mktemp("shared") / "federation")
