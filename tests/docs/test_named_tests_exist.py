"""A guarantee that points to a test points to one that exists."""

from __future__ import annotations

import ast
import re

from tests.architecture.repository import ROOT

DOCUMENTS = sorted((ROOT / "docs").glob("*.md"))


def named_tests(text: str) -> set[str]:
    """Test functions and test files that a document names in code spans."""
    return set(re.findall(r"`(test_\w+|tests/[\w/]+\.py)`", text))


def existing_tests() -> set[str]:
    files = sorted((ROOT / "tests").rglob("*.py"))
    names = {path.relative_to(ROOT).as_posix() for path in files}
    for path in files:
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.FunctionDef):
                names.add(node.name)
    return names


def test_every_test_that_the_docs_name_exists() -> None:
    existing = existing_tests()
    missing = {
        f"{path.name}: {name}" for path in DOCUMENTS for name in named_tests(path.read_text()) if name not in existing
    }
    assert not missing


def test_a_test_that_was_renamed_is_missed() -> None:
    assert named_tests("see `test_no_such_promise` in `tests/privacy/nowhere.py`") - existing_tests() == {
        "test_no_such_promise",
        "tests/privacy/nowhere.py",
    }


def test_the_guarantees_name_many_tests() -> None:
    assert len(named_tests((ROOT / "docs/privacy_guarantees.md").read_text())) > 25
