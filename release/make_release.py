"""What `make release KEY=...` does: a wheel that anyone can build again bit for bit, what it brings, and a signature.

    commit -> wheel, built twice and compared -> lists of components (CycloneDX) -> SHA256SUMS -> its signature

Everything is made of the commit alone, in folders of its own: what lies about in a working copy cannot get in. The
signature is OpenSSH's, by a key whose public half stands in `release/signers`; a key that nobody can check is refused.
"""

from __future__ import annotations

import argparse
import hashlib
import io
import os
import subprocess
import sys
import tarfile
import tempfile
from pathlib import Path

NAMESPACE = "covey-release"
UMASK = 0o022  # the rights of files that a build writes go into the wheel
ROOT = Path(__file__).resolve().parents[1]
COMPONENTS = {"device": ("device",), "server": ("server", "torch")}
"""Which locks tell what comes with an installation on a device and on a server."""


class NotReleased(Exception):
    """A release could not be made; nothing was left in its folder."""


def main() -> int:
    """Make a release of the newest commit; exits with 1 and a sentence where that cannot be done."""
    parser = argparse.ArgumentParser(description="Build, list and sign a release of the newest commit.")
    parser.add_argument("--key", type=Path, required=True, help="an SSH key whose public half is in release/signers")
    parser.add_argument("--out", type=Path, default=ROOT / "dist", help="where the files go")
    arguments = parser.parse_args()
    try:
        made = release(ROOT, arguments.key, arguments.out)
    except NotReleased as error:
        sys.stderr.write(f"release: {error}\n")
        return 1
    sys.stdout.write("".join(f"{path.name}\n" for path in made))
    return 0


def release(root: Path, key: Path, out: Path) -> list[Path]:
    """The files of a release of `root`'s newest commit, in `out`."""
    signer = _signer(root / "release/signers", key)
    if _run(["git", "status", "--porcelain"], root):
        raise NotReleased("the working copy differs from the commit; commit or remove what is new; nothing was built")
    out.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory() as work:
        wheel = built_twice(root, Path(work))
        made = [_kept(wheel.name, wheel.read_bytes(), out)]
        version = wheel.name.split("-")[1]
        for name, locks in COMPONENTS.items():
            made.append(_kept(f"covey-{version}-{name}.cdx.json", components(root, locks), out))
    sums = "".join(f"{hashlib.sha256(path.read_bytes()).hexdigest()}  {path.name}\n" for path in made)
    listed = _kept("SHA256SUMS", sums.encode(), out)
    signature = sign(listed, key)
    check(listed, signature, root / "release/signers", signer)
    return [*made, listed, signature]


def built_twice(root: Path, work: Path) -> Path:
    """The wheel of the newest commit, after a second build of it in another folder gave the same bytes."""
    first, second = (wheel_of(root, work / name) for name in ("first", "a second one, elsewhere"))
    if first.read_bytes() != second.read_bytes():
        raise NotReleased("two builds of one commit differ, so nobody could check this wheel; nothing was signed")
    return first


def wheel_of(root: Path, folder: Path) -> Path:
    """The wheel of the newest commit, built in `folder` from what git has and nothing else."""
    source = folder / "source"
    archive = _run(["git", "archive", "--format=tar", "HEAD"], root)
    with tarfile.open(fileobj=io.BytesIO(archive)) as files:
        files.extractall(source, filter="data")
    epoch = _run(["git", "show", "--no-patch", "--format=%ct", "HEAD"], root).decode().strip()
    build = [sys.executable, "-m", "build", "--wheel", "--no-isolation", "--outdir", os.fspath(folder), "."]
    _run(build, source, SOURCE_DATE_EPOCH=epoch)
    return next(folder.glob("*.whl"))


def components(root: Path, locks: tuple[str, ...]) -> bytes:
    """What an installation consists of, with versions and hashes, as a CycloneDX document."""
    lines = "".join((root / f"release/locks/{name}.txt").read_text() for name in locks)
    tool = [sys.executable, "-m", "cyclonedx_py", "requirements", "--output-reproducible", "--of", "JSON"]
    return _run([*tool, "--pyproject", os.fspath(root / "pyproject.toml"), "-"], root, stdin=lines.encode())


def sign(file: Path, key: Path) -> Path:
    """The signature of `file`, beside it."""
    signature = file.with_name(f"{file.name}.sig")
    signature.unlink(missing_ok=True)
    _run(["ssh-keygen", "-Y", "sign", "-q", "-n", NAMESPACE, "-f", os.fspath(key), os.fspath(file)], file.parent)
    return signature


def check(file: Path, signature: Path, signers: Path, signer: str) -> None:
    """Raise `NotReleased` unless `signer`, whom `signers` names, signed these very bytes."""
    tool = ["ssh-keygen", "-Y", "verify", "-n", NAMESPACE, "-f", os.fspath(signers), "-I", signer]
    _run([*tool, "-s", os.fspath(signature)], file.parent, stdin=file.read_bytes())


def _signer(signers: Path, key: Path) -> str:
    """Whose key this is, by the list of signers."""
    public = _run(["ssh-keygen", "-y", "-f", os.fspath(key)], key.parent).decode().split()[:2]
    for line in signers.read_text().splitlines():
        words = line.split()
        if not line.startswith("#") and words[-2:] == public:
            return words[0]
    raise NotReleased("the public half of this key is not in release/signers; add it in a commit; nothing was built")


def _kept(name: str, contents: bytes, folder: Path) -> Path:
    path = folder / name
    path.write_bytes(contents)
    return path


def _run(command: list[str], folder: Path, stdin: bytes = b"", **environment: str) -> bytes:
    """What a command prints; `NotReleased` with the end of its complaint where it fails."""
    done = subprocess.run(
        command,
        cwd=folder,
        input=stdin,
        capture_output=True,
        env={**os.environ, **environment},
        umask=UMASK,
        check=False,
    )
    if done.returncode:
        said = done.stderr.decode(errors="replace").strip().splitlines()[-1:] or ["it said nothing"]
        raise NotReleased(f"{' '.join(command[:4])} failed ({said[0]}); nothing was signed")
    return done.stdout


if __name__ == "__main__":
    sys.exit(main())
