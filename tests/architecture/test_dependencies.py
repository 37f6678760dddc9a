"""A device installs little, every dependency of it is argued for, and every version we test with is written down."""

from __future__ import annotations

import re
import tomllib
from collections.abc import Callable, Iterable
from importlib import metadata

import pytest
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

from covey import EXTRA_OF_MODULE
from tests.architecture.repository import ROOT

PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
DISTRIBUTION_OF_MODULE = {"sklearn": "scikit-learn"}  # the rest are called as they are imported
MOST_ON_A_DEVICE = 10

Requires = Callable[[str], Iterable[str]]


def requires_as_installed(distribution: str) -> Iterable[str]:
    return metadata.requires(distribution) or ()


def closure(requirements: Iterable[str], requires: Requires = requires_as_installed) -> set[str]:
    """Every distribution that these requirements bring on this Python, by canonical name."""
    found: set[str] = set()
    seen: set[tuple[str, frozenset[str]]] = set()
    waiting = [(Requirement(text), frozenset({""})) for text in requirements]
    while waiting:
        requirement, extras = waiting.pop()
        marker = requirement.marker
        if marker is not None and not any(marker.evaluate({"extra": extra}) for extra in extras):
            continue
        name, wanted = canonicalize_name(requirement.name), frozenset({"", *requirement.extras})
        if (name, wanted) not in seen:
            seen.add((name, wanted))
            found.add(name)
            waiting += [(Requirement(text), wanted) for text in requires(name)]
    return found


OF_CUDA = re.compile(r"(nvidia|cuda)-[\w-]+$|triton$")
"""Distributions that torch pins itself, by exact version, in its build for graphics cards."""


def pins(text: str) -> dict[str, str]:
    """The versions in a constraints file. Anything but `name==version` and comments is an error."""
    lines = [line for line in text.splitlines() if line and not line.startswith("#")]
    wrong = [line for line in lines if not re.fullmatch(r"[\w.-]+==[\w.]+", line)]
    if wrong:
        raise ValueError(f"not a plain pin: {wrong}")
    return {canonicalize_name(name): version for name, _, version in (line.partition("==") for line in lines)}


def test_a_device_installs_few_distributions():
    on_a_device = closure(PROJECT["dependencies"]) | {"covey"}
    assert len(on_a_device) <= MOST_ON_A_DEVICE, sorted(on_a_device)


def test_every_dependency_of_a_device_is_argued_for():
    decision = (ROOT / "docs/decisions/0002-device-dependencies.md").read_text(encoding="utf-8")
    unargued = [
        Requirement(text).name for text in PROJECT["dependencies"] if f"`{Requirement(text).name}`" not in decision
    ]
    assert unargued == []


def test_every_installed_version_is_pinned_once():
    pinned = pins((ROOT / "constraints.txt").read_text(encoding="utf-8"))
    assert {name for name in closure(["covey[dev]"]) - set(pinned) if not OF_CUDA.match(name)} == {"covey"}


def test_only_what_a_torch_for_graphics_cards_brings_may_go_without_a_pin():
    brought = ["nvidia-cublas", "nvidia-cudnn-cu13", "cuda-toolkit", "triton"]
    assert all(map(OF_CUDA.match, brought))
    assert not any(map(OF_CUDA.match, ["numpy", "torch", "barracuda", "tritonclient", "my-nvidia-tool"]))


@pytest.mark.parametrize("module", EXTRA_OF_MODULE)
def test_the_advice_for_a_missing_package_installs_it(module):
    distribution = canonicalize_name(DISTRIBUTION_OF_MODULE.get(module, module))
    extra = PROJECT["optional-dependencies"][EXTRA_OF_MODULE[module]]
    assert distribution in {canonicalize_name(Requirement(text).name) for text in extra}


def test_the_closure_follows_extras_and_markers():
    index = {
        "a": ["b[fast]>=1", "old; python_version < '3'"],
        "b": ["c", "d; extra == 'fast'", "e; extra == 'slow'"],
    }
    assert closure(["a"], requires=lambda name: index.get(name, ())) == {"a", "b", "c", "d"}


@pytest.mark.parametrize("line", ["torch>=2", "torch==2.13.0+cpu", "torch @ https://example.com/torch.whl", "-e ."])
def test_a_loose_or_local_pin_is_caught(line):
    with pytest.raises(ValueError, match="not a plain pin"):
        pins(f"numpy==2.4.6\n{line}\n")
