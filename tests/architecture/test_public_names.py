"""What a package offers stands in its `__all__`, sorted, and nothing else does."""

from __future__ import annotations

import importlib
import types

import pytest

from tests.architecture.repository import PACKAGES, ROOT, package_sources

# Bound by `from __future__ import annotations` and by the guard of imports for type checkers.
OF_THE_LANGUAGE = {"annotations", "TYPE_CHECKING"}


def packages() -> list[str]:
    """Our packages and their sub-packages, as far as they exist; not what protoc wrote."""
    folders = [path.parent.relative_to(ROOT) for path in package_sources(*PACKAGES) if path.name == "__init__.py"]
    return [".".join(folder.parts) for folder in folders if "_generated" not in folder.parts]


def faults_of_surface(module: types.ModuleType) -> list[str]:
    """How the public names of a package differ from its `__all__`."""
    bound = {name for name, value in vars(module).items() if is_public(name, value)}
    if not hasattr(module, "__all__"):
        return [f"binds {', '.join(sorted(bound))} without an __all__"] if bound else []
    offered = list(module.__all__)
    faults = [f"offers {name}, which does not exist" for name in offered if not hasattr(module, name)]
    faults += [f"binds {name} without offering it" for name in sorted(bound - set(offered))]
    if offered != sorted(set(offered)):
        faults.append("has an __all__ that is not sorted, or names something twice")
    return faults


def is_public(name: str, value: object) -> bool:
    return not (name.startswith("_") or name in OF_THE_LANGUAGE or isinstance(value, types.ModuleType))


@pytest.mark.parametrize("package", packages())
def test_public_names_are_those_offered(package):
    assert faults_of_surface(importlib.import_module(package)) == []


@pytest.mark.parametrize("package", [name for name in packages() if name in PACKAGES])
def test_a_top_level_package_says_what_it_offers(package):
    assert importlib.import_module(package).__all__


def test_there_is_a_package_to_look_at():
    assert "privacy" in packages()


@pytest.mark.parametrize(
    ("source", "fault"),
    [
        ("__all__ = ['gone']", "does not exist"),
        ("__all__ = ['b', 'a']; a = b = 1", "not sorted"),
        ("__all__ = ['a', 'a']; a = 1", "twice"),
        ("__all__ = []; forgotten = 1", "without offering"),
        ("from pathlib import Path", "without an __all__"),
    ],
)
def test_a_faulty_surface_is_caught(source, fault):
    module = types.ModuleType("planted")
    exec(source, vars(module))
    (sentence,) = faults_of_surface(module)
    assert fault in sentence


def test_a_name_may_be_made_on_demand():
    module = types.ModuleType("planted")
    exec("import os\n__all__ = ['late']\ndef __getattr__(name): return {'late': 1}[name]", vars(module))
    assert faults_of_surface(module) == []
