"""Every file that an installation takes from an index is one that we have seen: pinned, its hash written down."""

from __future__ import annotations

import re
import tomllib
from pathlib import Path

import pytest
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

from tests.architecture.repository import ROOT
from tests.architecture.test_dependencies import OF_CUDA, pins

LOCKS = ROOT / "release/locks"
PINNED = pins((ROOT / "constraints.txt").read_text(encoding="utf-8"))
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
EXTRAS = PROJECT["optional-dependencies"]


def entries(text: str) -> dict[str, tuple[Requirement, int]]:
    """Each distribution of a lock, with the number of its hashes; a line that is neither is an error."""
    joined = re.sub(r"\\\n\s*", "", text)
    found: dict[str, tuple[Requirement, int]] = {}
    for line in joined.splitlines():
        if line and not line.startswith("#"):
            requirement, *hashes = line.split("--hash=sha256:")
            if any(not re.fullmatch(r"[0-9a-f]{64}", each.strip()) for each in hashes):
                raise ValueError(f"not a hash: {line[:80]}")
            parsed = Requirement(requirement.strip())
            found[canonicalize_name(parsed.name)] = parsed, len(hashes)
    return found


def locked(name: str) -> dict[str, tuple[Requirement, int]]:
    return entries((LOCKS / f"{name}.txt").read_text(encoding="utf-8"))


def wanted(*extras: str) -> set[str]:
    """What pyproject.toml asks for by name, on any platform; extras of our own are followed."""
    names: set[str] = set()
    for text in [*PROJECT["dependencies"], *(line for extra in extras for line in EXTRAS[extra])]:
        requirement = Requirement(text)
        names |= wanted(*requirement.extras) if requirement.name == "covey" else {canonicalize_name(requirement.name)}
    return names


@pytest.mark.parametrize("path", sorted(LOCKS.glob("*.txt")), ids=lambda path: path.stem)
def test_every_distribution_has_one_version_and_a_hash(path: Path):
    for name, (requirement, hashes) in entries(path.read_text(encoding="utf-8")).items():
        assert [clause.operator for clause in requirement.specifier] == ["=="], name
        assert hashes >= 1, name


@pytest.mark.parametrize("path", sorted(LOCKS.glob("*.txt")), ids=lambda path: path.stem)
def test_the_versions_are_the_pinned_ones(path: Path):
    for name, (requirement, _) in entries(path.read_text(encoding="utf-8")).items():
        if not OF_CUDA.match(name):  # torch pins these itself
            assert f"=={PINNED[name]}" == str(requirement.specifier).removesuffix("+cpu"), name


@pytest.mark.parametrize(
    ("lock", "extras"), [("device", ()), ("server", ("server", "postgres")), ("development", ("dev",))]
)
def test_a_lock_holds_all_that_its_extras_ask_for(lock: str, extras: tuple[str, ...]):
    assert wanted(*extras) - {"torch"} <= set(locked(lock))


def test_torch_is_locked_in_either_build():
    assert "torch" in locked("torch")
    assert str(locked("torch_cpu")["torch"][0].specifier) == f"=={PINNED['torch']}+cpu"


@pytest.mark.parametrize("command", ["Makefile", "examples/deploy/Dockerfile"])
def test_what_is_installed_from_an_index_is_installed_by_its_hash(command: str):
    text = (ROOT / command).read_text(encoding="utf-8")
    assert text.count("--require-hashes") >= 1
    assert "--constraint" not in text


@pytest.mark.parametrize("text", ["numpy==2.4.6 \\\n    --hash=sha256:beef\n", "-r other.txt\n"])
def test_a_broken_lock_would_be_caught(text: str):
    with pytest.raises(ValueError, match=r"hash|Expected"):
        entries(text)


def test_a_distribution_without_a_hash_would_be_caught():
    assert entries("numpy==2.4.6\n")["numpy"][1] == 0
