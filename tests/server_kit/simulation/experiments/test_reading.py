"""A table becomes the rule that it describes, or one sentence that says what is wrong and where."""

from __future__ import annotations

import textwrap
from dataclasses import dataclass, field
from enum import StrEnum
from pathlib import Path
from typing import Literal, Protocol

import pytest

from server_kit.errors import InvalidSetting
from server_kit.places import Place
from server_kit.reading import Reader, fields_of


class Rule(Protocol):
    def apply(self) -> int: ...


@dataclass(frozen=True)
class Plain:
    amount: int = 1

    def __post_init__(self) -> None:
        if self.amount < 0:
            raise InvalidSetting("amount must be at least 0; nothing was made")

    def apply(self) -> int:
        return self.amount


@dataclass(frozen=True)
class Doubled:
    inner: Rule = field(default_factory=Plain)

    def apply(self) -> int:
        return 2 * self.inner.apply()


@dataclass(frozen=True)
class Wave:
    share: float


class Colour(StrEnum):
    RED = "red"
    GREEN = "green"


@dataclass(frozen=True)
class Everything:
    number: int
    share: float = 0.0
    on: bool = False
    word: str = ""
    way: Literal["up", "down"] = "up"
    path: Path | None = None
    pair: tuple[float, float] = (0.0, 0.0)
    many: tuple[int, ...] = ()
    width: int | Literal["automatic"] = 1
    rule: Rule = field(default_factory=Plain)
    waves: tuple[Wave, ...] = ()
    colour: Colour = Colour.RED
    least: float | None = 0.5
    table: dict[str, int] = field(default_factory=dict)


READER = Reader(Path("folder"), {Rule: {"plain": Plain, "doubled": Doubled}})
PLACE = Place("file.toml", ("table",))


def read(**table: object) -> Everything:
    return Everything(**READER.settings({"number": 1, **table}, PLACE, Everything))


def test_every_type_of_setting_can_be_given():
    found = read(
        share=1,
        on=True,
        word="text",
        way="down",
        path="data/here",
        pair=[1, 2.5],
        many=[1, 2, 3],
        width="automatic",
        rule={"kind": "doubled", "inner": {"kind": "plain", "amount": 4}},
        waves=[{"share": 0.5}],
        colour="green",
        least="none",
        table={"any": 1},
    )
    assert found == Everything(
        1,
        1.0,
        True,
        "text",
        "down",
        Path("folder/data/here"),
        (1.0, 2.5),
        (1, 2, 3),
        "automatic",
        Doubled(Plain(4)),
        (Wave(0.5),),
        Colour.GREEN,
        None,
        {"any": 1},
    )
    assert isinstance(found.share, float)


def test_a_rule_can_be_named_alone():
    assert read(rule="doubled").rule == Doubled()


def test_an_absolute_path_stays_as_it_is():
    assert read(path="/data").path == Path("/data")


@pytest.mark.parametrize(
    ("table", "sentence"),
    [
        ({"numberz": 2}, "file.toml [table]: unknown setting 'numberz'; did you mean 'number'?"),
        ({"number": "two"}, "number must be a whole number, got 'two'"),
        ({"number": 1.0}, "number must be a whole number"),
        ({"number": True}, "number must be a whole number"),
        ({"share": "half"}, "share must be a number"),
        ({"share": float("nan")}, "share must be a number"),
        ({"on": 1}, "on must be true or false"),
        ({"way": "upp"}, "unknown way 'upp'; did you mean 'up'?"),
        ({"pair": [1]}, "pair must be a list of 2"),
        ({"many": 3}, "many must be a list"),
        ({"colour": "gren"}, "unknown colour 'gren'; did you mean 'green'?"),
        ({"number": "none"}, "number must be a whole number"),
        ({"table": 3}, "table must be a table"),
        ({"width": "automatc"}, "unknown width 'automatc'; did you mean 'automatic'?"),
        ({"rule": "doubeld"}, "file.toml [table.rule]: unknown kind 'doubeld'; did you mean 'doubled'?"),
        ({"rule": {"amount": 1}}, "[table.rule]: setting 'kind' is missing; there is doubled, plain"),
        ({"rule": {"kind": "plain", "amountt": 1}}, "[table.rule]: unknown setting 'amountt'; did you mean 'amount'?"),
        ({"rule": {"kind": "plain", "amount": -1}}, "[table.rule]: amount must be at least 0"),
        ({"rule": 5}, "[table.rule]: expected a name or a table with kind"),
        ({"rule": "nowhere_at_all:Rule"}, "'nowhere_at_all:Rule' cannot be imported"),
        ({"rule": "os:nothing_like_it"}, "cannot be imported"),
        ({"waves": [{}]}, "[table.waves]: setting 'share' is missing"),
        ({"waves": [{"share": 1, "at": 2}]}, "[table.waves]: unknown setting 'at'"),
    ],
)
def test_what_is_wrong_is_said_with_its_place(table, sentence):
    with pytest.raises(InvalidSetting) as refused:
        read(**table)
    assert sentence in str(refused.value)
    assert "\n" not in str(refused.value)


def test_a_required_setting_is_missed():
    with pytest.raises(InvalidSetting, match="setting 'number' is missing; nothing was run"):
        READER.settings({}, PLACE, Everything)


def test_what_is_not_for_files_is_unknown():
    with pytest.raises(InvalidSetting, match="unknown setting 'word'"):
        READER.settings({"number": 1, "word": "x"}, PLACE, Everything, without=("word",))


def test_a_rule_of_ones_own_is_found_by_its_dotted_name(tmp_path, monkeypatch):
    source = """
        from dataclasses import dataclass

        @dataclass(frozen=True)
        class Tripled:
            amount: int = 1

            def apply(self):
                return 3 * self.amount
    """
    (tmp_path / "planted_rules.py").write_text(textwrap.dedent(source))
    monkeypatch.syspath_prepend(tmp_path)
    assert read(rule={"kind": "planted_rules:Tripled", "amount": 2}).rule.apply() == 6


def test_a_function_is_a_maker_too():
    def made(path: Path, least: int = 1) -> None: ...

    made.__annotations__ = {"path": Path, "least": int, "return": None}
    fields = fields_of(made)
    assert fields["path"][0] is Path
    assert fields["least"] == (int, 1)
