"""What the repository holds, for the tests that read its files instead of running its code."""

from __future__ import annotations

import ast
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).parents[2]
PACKAGES = ("device_sdk", "privacy", "server_kit")
MADE_BY_TOOLS = {".git", ".venv", "build", "dist", "__pycache__", ".hypothesis", ".benchmarks"}


def package_sources(*packages: str) -> list[Path]:
    """The Python files of those of our packages that exist."""
    return sorted(path for package in packages for path in (ROOT / package).rglob("*.py"))


def name_of(path: Path) -> str:
    """How a test names a file: from the root, the same on every machine."""
    return path.relative_to(ROOT).as_posix()


def kept_files() -> list[Path]:
    """Everything that is, or is about to be, under version control; in an unpacked archive, everything."""
    listed = listed_by_git()
    if listed is None:
        listed = [path for path in ROOT.rglob("*") if not is_made_by_tools(path.relative_to(ROOT))]
    return sorted(path for path in listed if path.is_file())


def listed_by_git() -> list[Path] | None:
    """None where there is no git, or no clone that it accepts."""
    git = shutil.which("git")
    if git is None:
        return None
    command = [git, "ls-files", "-z", "--cached", "--others", "--exclude-standard"]
    listing = subprocess.run(command, cwd=ROOT, capture_output=True, text=True)
    return [ROOT / name for name in listing.stdout.split("\0") if name] if listing.returncode == 0 else None


def is_made_by_tools(path: Path) -> bool:
    return any(part in MADE_BY_TOOLS or part.endswith(("_cache", ".egg-info")) for part in path.parts)


def imported_names(tree: ast.AST) -> Iterator[tuple[str, int]]:
    """Every imported name, absolute and with its line; a relative one keeps its dots, so that it matches nothing."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            yield from ((alias.name, node.lineno) for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            module = "." * node.level + (node.module or "")
            yield from ((f"{module}.{alias.name}", node.lineno) for alias in node.names)
        elif isinstance(node, ast.Call) and (name := dynamically_imported(node)):
            yield name, node.lineno


def dynamically_imported(call: ast.Call) -> str | None:
    """The module that `import_module("...")` or `__import__("...")` names, if it is written out."""
    function = call.func.attr if isinstance(call.func, ast.Attribute) else getattr(call.func, "id", None)
    if function not in {"import_module", "__import__"} or not call.args:
        return None
    first = call.args[0]
    return first.value if isinstance(first, ast.Constant) and isinstance(first.value, str) else None


def is_within(name: str, module: str) -> bool:
    """Whether a dotted name is that module or lies in it."""
    return f"{name}.".startswith(f"{module}.")
