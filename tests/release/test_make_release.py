"""A release can be built again bit for bit, says what it brings, and is signed by someone whom users can look up."""

from __future__ import annotations

import importlib.util
import json
import os
import shutil
import subprocess
import zipfile
from pathlib import Path
from types import ModuleType

import pytest

from tests.architecture.repository import ROOT

SIGNER = "releases@covey.example"


def imported() -> ModuleType:
    spec = importlib.util.spec_from_file_location("make_release", ROOT / "release/make_release.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


make_release = imported()

pytestmark = pytest.mark.skipif(shutil.which("ssh-keygen") is None, reason="ssh-keygen is not installed to sign with")


def git(root: Path, *words: str) -> str:
    who = ["-c", "user.name=Tester", "-c", "user.email=tester@covey.example", "-c", "commit.gpgsign=false"]
    return subprocess.run(["git", *who, *words], cwd=root, check=True, capture_output=True, text=True).stdout


def new_key(path: Path) -> Path:
    subprocess.run(["ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-C", "", "-f", path], check=True)
    return path


@pytest.fixture(scope="module")
def key(tmp_path_factory) -> Path:
    return new_key(tmp_path_factory.mktemp("keys") / "release")


@pytest.fixture(scope="module")
def project(tmp_path_factory, key) -> Path:
    """A repository of its own with this tree's code and one signer."""
    root = tmp_path_factory.mktemp("project") / "covey"
    root.mkdir()
    for name in ("covey.py", "pyproject.toml", "README.md", "LICENSE"):
        shutil.copy(ROOT / name, root)
    for name in ("privacy", "device_sdk", "server_kit", "release"):
        shutil.copytree(ROOT / name, root / name, ignore=shutil.ignore_patterns("__pycache__"))
    public = " ".join(key.with_suffix(".pub").read_text().split()[:2])
    (root / "release/signers").write_text(f'# who\n{SIGNER} namespaces="{make_release.NAMESPACE}" {public}\n')
    git(root, "init", "--quiet")
    git(root, "add", "--all")
    git(root, "commit", "--quiet", "--message", "One commit")
    return root


@pytest.fixture(scope="module")
def made(project, key, tmp_path_factory) -> dict[str, Path]:
    out = tmp_path_factory.mktemp("out")
    return {path.name: path for path in make_release.release(project, key, out)}


def one(made: dict[str, Path], ending: str) -> Path:
    [path] = [path for name, path in made.items() if name.endswith(ending)]
    return path


def test_the_same_commit_gives_the_same_wheel_under_another_umask(project, made, tmp_path):
    before = os.umask(0o077)
    try:
        again = make_release.wheel_of(project, tmp_path)
    finally:
        os.umask(before)
    assert again.read_bytes() == one(made, ".whl").read_bytes()


def test_the_wheel_holds_the_three_packages_and_the_command(made):
    names = set(zipfile.ZipFile(one(made, ".whl")).namelist())
    assert {"covey.py", "privacy/__init__.py", "device_sdk/__init__.py", "server_kit/__init__.py"} <= names
    assert not any(name.startswith(("tests/", "release/")) for name in names)


@pytest.mark.parametrize(
    ("name", "brings", "not_this"), [("device", "cryptography", "torch"), ("server", "torch", "ruff")]
)
def test_it_lists_what_comes_with_it_by_version_and_hash(made, name, brings, not_this):
    listed = json.loads(one(made, f"-{name}.cdx.json").read_text())
    components = {component["name"]: component for component in listed["components"]}
    assert listed["bomFormat"] == "CycloneDX"
    assert listed["metadata"]["component"]["name"] == "covey"
    assert components[brings]["version"]
    assert "sha256" in json.dumps(components[brings]).lower().replace("-", "")
    assert not_this not in components


def test_its_checksums_are_signed_and_hold(made):
    folder = made["SHA256SUMS"].parent
    subprocess.run(["sha256sum", "--check", "--strict", "SHA256SUMS"], cwd=folder, check=True, capture_output=True)
    assert len(made["SHA256SUMS"].read_text().splitlines()) == 3


def test_changed_checksums_are_not_signed(project, made, tmp_path):
    changed = tmp_path / "SHA256SUMS"
    changed.write_text(made["SHA256SUMS"].read_text().replace("a", "b"))
    with pytest.raises(make_release.NotReleased, match="incorrect signature"):
        make_release.check(changed, made["SHA256SUMS.sig"], project / "release/signers", SIGNER)


def test_a_key_that_users_cannot_look_up_signs_nothing(project, tmp_path):
    with pytest.raises(make_release.NotReleased, match="release/signers"):
        make_release.release(project, new_key(tmp_path / "other"), tmp_path / "out")
    assert not (tmp_path / "out").exists()


def test_what_is_not_committed_is_not_released(project, key, tmp_path):
    (project / "left_behind.py").touch()
    try:
        with pytest.raises(make_release.NotReleased, match="differs from the commit"):
            make_release.release(project, key, tmp_path / "out")
    finally:
        (project / "left_behind.py").unlink()


def test_two_builds_that_differ_are_found(project, key, tmp_path, monkeypatch):
    real, epochs = make_release.wheel_of, iter(["first", "second"])

    def wheel_with_a_note(root: Path, folder: Path) -> Path:
        wheel = real(root, folder)
        with zipfile.ZipFile(wheel, "a") as archive:
            archive.writestr("built_as", next(epochs))
        return wheel

    monkeypatch.setattr(make_release, "wheel_of", wheel_with_a_note)
    with pytest.raises(make_release.NotReleased, match="two builds of one commit differ"):
        make_release.release(project, key, tmp_path / "out")
