"""Every part and every setting of it is on its page, as the code has it."""

from __future__ import annotations

import dataclasses

import pytest

from server_kit.parts import PARTS
from tests.docs.parts_page import PAGE, page

KINDS = [(point.__name__, kind, made) for point, kinds in PARTS.items() for kind, made in kinds.items()]


def test_the_page_says_what_the_parts_say():
    assert PAGE.read_text(encoding="utf-8") == page(), "write it anew: python -m tests.docs.parts_page"


@pytest.mark.parametrize(("point", "kind", "made"), KINDS, ids=lambda value: value if isinstance(value, str) else "")
def test_a_part_is_there_with_its_settings(point, kind, made):
    section = page().partition(f"## {point}\n")[2].partition(f"### `{kind}`\n")[2].partition("\n#")[0]
    for field in dataclasses.fields(made):
        assert not field.init or f"`{field.name} = " in section
