"""Noise has one source, and bytes from elsewhere are never run.

On a device randomness comes from the operating system (`privacy.randomness`): a generator that can be
seeded can be predicted, and then the noise can be undone. Pickle and its kin run what they read; they
are forbidden on the server too.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator

import pytest

from tests.architecture.repository import PACKAGES, imported_names, is_within, name_of, package_sources

RUNS_WHAT_IT_READS = (
    "cloudpickle",
    "dill",
    "joblib",
    "marshal",
    "numpy.load.allow_pickle",
    "pickle",
    "shelve",
    "torch.load",
    "torch.save",
)
CAN_BE_PREDICTED = (
    "numpy.random",
    "random",
    "scipy.stats.rvs",
    "torch.Generator",
    "torch.bernoulli",
    "torch.default_generator",
    "torch.manual_seed",
    "torch.multinomial",
    "torch.normal",
    "torch.poisson",
    "torch.rand",
    "torch.rand_like",
    "torch.randint",
    "torch.randint_like",
    "torch.randn",
    "torch.randn_like",
    "torch.random",
    "torch.randperm",
    "torch.seed",
)
# A tensor or distribution that draws for itself, whatever it is called.
DRAWING_METHODS = {"bernoulli_", "cauchy_", "exponential_", "log_normal_", "normal_", "random_", "rvs", "uniform_"}
FORBIDDEN = {
    "device_sdk": (*RUNS_WHAT_IT_READS, *CAN_BE_PREDICTED),
    "privacy": (*RUNS_WHAT_IT_READS, *CAN_BE_PREDICTED),
    "server_kit": RUNS_WHAT_IT_READS,
}
# Assumed even without an import in sight, because packages are also imported through helpers.
USUAL_ALIASES = {"np": "numpy", "numpy": "numpy", "torch": "torch"}


def forbidden_uses(file: str, source: str) -> list[str]:
    """What `file` uses against the rule of its package, each as a sentence."""
    forbidden = FORBIDDEN[file.partition("/")[0]]
    tree = ast.parse(source)
    used = sorted({*imported_names(tree), *dotted_uses(tree)}, key=lambda use: (use[1], use[0]))
    return [
        f"{file}:{line} uses {name}"
        for name, line in used
        if any(is_within(name, module) for module in forbidden)
        or ("random" in forbidden and name.rpartition(".")[2] in DRAWING_METHODS)
    ]


def dotted_uses(tree: ast.AST) -> Iterator[tuple[str, int]]:
    """Every `a.b.c` with `a` replaced by what was imported under that name; calls with `allow_pickle` likewise."""
    aliases = USUAL_ALIASES | aliases_in(tree)
    for node in ast.walk(tree):
        if isinstance(node, ast.Attribute):
            head, _, rest = ast.unparse(node).partition(".")
            yield f"{aliases.get(head, head)}.{rest}", node.lineno
        elif isinstance(node, ast.keyword) and node.arg == "allow_pickle" and not is_false(node.value):
            yield "numpy.load.allow_pickle", node.value.lineno


def aliases_in(tree: ast.AST) -> dict[str, str]:
    """Under which name a module or a part of one is known in this file."""
    found: dict[str, str] = {}
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            found |= {alias.asname: alias.name for alias in node.names if alias.asname}
        elif isinstance(node, ast.ImportFrom) and node.module:
            found |= {alias.asname or alias.name: f"{node.module}.{alias.name}" for alias in node.names}
    return found


def is_false(value: ast.expr) -> bool:
    return isinstance(value, ast.Constant) and value.value is False


@pytest.mark.parametrize("path", package_sources(*PACKAGES), ids=name_of)
def test_no_predictable_noise_and_no_code_in_data(path):
    assert forbidden_uses(name_of(path), path.read_text(encoding="utf-8")) == []


def test_there_are_sources_to_look_at():
    assert len(package_sources("privacy")) > 3


@pytest.mark.parametrize(
    "source",
    [
        "import random",
        "from random import gauss",
        "import random as innocent",
        "import numpy as np\nnp.random.default_rng(0)",
        "import numpy as quiet\nquiet.random.laplace()",
        "from numpy.random import default_rng",
        "from numpy import random",
        "def late(np):\n    return np.random.normal()",
        "import torch\ntorch.manual_seed(1)",
        "import torch\ntorch.randn(3)",
        "from torch import normal",
        "weights.normal_(0, 1)",
        "norm(0, 1).rvs(10)",
        "import pickle",
        "import joblib",
        "from marshal import loads",
        "import shelve",
        "__import__('pickle')",
        "importlib.import_module('random')",
        "import torch\ntorch.load(path)",
        "import numpy as np\nnp.load(path, allow_pickle=True)",
    ],
)
def test_a_forbidden_use_is_caught(source):
    assert forbidden_uses("privacy/planted.py", source)


def test_pickle_is_caught_on_the_server_too_while_seeds_are_its_own_affair():
    assert forbidden_uses("server_kit/planted.py", "import pickle")
    assert not forbidden_uses("server_kit/planted.py", "import numpy as np\nnp.random.default_rng(3)")


@pytest.mark.parametrize(
    "source",
    [
        "import os\nos.urandom(32)",
        "from privacy import randomness\nrandomness.discrete_laplace()",
        "from privacy.randomness import NoiseSource",
        "import secrets",
        "import numpy as np\nnp.load(path, allow_pickle=False)\nnp.rint(x)",
        "import torch\ntorch.from_numpy(x)",
    ],
)
def test_an_honest_use_passes(source):
    assert forbidden_uses("privacy/planted.py", source) == []
