"""Large things by name: updates, models, checkpoints, reports. A name is there with all its bytes, durably, or not.

On this machine a blob is a file, written aside, synced, renamed, and its directory synced. Elsewhere it is an object
behind any URL that fsspec knows (`s3://bucket/covey`), whose own promise it is that a finished upload stays.
"""

from __future__ import annotations

import os
import re
import shutil
import time
from collections.abc import Iterable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any, BinaryIO, Protocol

from privacy.durable import make_directory, sync, sync_directory
from privacy.errors import MissingExtra
from server_kit.errors import InvalidSetting, StoreUnavailable

_NAME = re.compile(r"[A-Za-z0-9_-][A-Za-z0-9._-]*(/[A-Za-z0-9_-][A-Za-z0-9._-]*)*")
_DRAFT = ".new"
_COPY_BYTES = 1 << 20
_LOCAL = "file://"


class Blobs(Protocol):
    """Bytes by name. Names are paths of letters, digits, `.`, `_` and `-`; none is ever written twice."""

    def put(self, name: str, content: bytes | Path | Iterable[bytes]) -> None:
        """Keep these bytes, or those of a file, which is moved, or pieces as they come. Durable when it returns."""

    def get(self, name: str) -> bytes:
        """All bytes; `FileNotFoundError` if there is no such blob."""

    def open(self, name: str) -> BinaryIO:
        """To be read piece by piece; `FileNotFoundError` if there is no such blob."""

    def path(self, name: str) -> Path | None:
        """Where the file lies, for a memory map; None if it is not on this machine."""

    def exists(self, name: str) -> bool: ...

    def list(self, prefix: str = "") -> list[str]:
        """The names that begin so, sorted."""

    def delete(self, name: str) -> None:
        """Forget a name; one that is not there is forgotten already."""


def open_blobs(url: str | Path) -> Blobs:
    """A directory, or any URL that fsspec knows."""
    text = str(url)
    if text.startswith(_LOCAL):
        return LocalBlobs(Path(text.removeprefix(_LOCAL)))
    return RemoteBlobs(text) if "://" in text else LocalBlobs(Path(text))


class LocalBlobs:
    """Files in a directory of this machine."""

    def __init__(self, directory: Path) -> None:
        self._directory = directory.absolute()
        with unavailable():
            make_directory(self._directory)

    def put(self, name: str, content: bytes | Path | Iterable[bytes]) -> None:
        target = self.path(name)
        with unavailable():
            if not target.parent.is_dir():
                make_directory(target.parent)
            if not (isinstance(content, Path) and _moved(content, target)):
                _write_aside(target, content)
            sync_directory(target.parent)
            if isinstance(content, Path):
                content.unlink(missing_ok=True)

    def get(self, name: str) -> bytes:
        with unavailable():
            return self.path(name).read_bytes()

    def open(self, name: str) -> BinaryIO:
        with unavailable():
            return self.path(name).open("rb")

    def path(self, name: str) -> Path:
        return self._directory / _checked(name)

    def exists(self, name: str) -> bool:
        return self.path(name).is_file()

    def list(self, prefix: str = "") -> list[str]:
        folder = prefix.rpartition("/")[0]
        with unavailable():
            names = _files_below(self._directory / folder, f"{folder}/" if folder else "")
            return sorted(name for name in names if name.startswith(prefix))

    def delete(self, name: str) -> None:
        with unavailable():
            self.path(name).unlink(missing_ok=True)

    def drop_drafts(self, older_than_seconds: float) -> None:
        """Delete what a killed process had half written."""
        before = time.time() - older_than_seconds
        for path in self._directory.rglob(f".*{_DRAFT}"):
            with suppress(FileNotFoundError):
                if path.stat().st_mtime < before:
                    path.unlink()


class RemoteBlobs:
    """Objects behind a URL."""

    def __init__(self, url: str) -> None:
        try:
            import fsspec
        except ImportError as error:
            raise MissingExtra("blobs by URL need fsspec; pip install 'covey[server]'; nothing was opened") from error
        try:
            self._files, root = fsspec.core.url_to_fs(url)
        except (ImportError, ValueError) as error:
            raise InvalidSetting(f"blobs cannot be kept at {url}: {error}; nothing was opened") from error
        self._root = root.rstrip("/")

    def put(self, name: str, content: bytes | Path | Iterable[bytes]) -> None:
        place = self._place(name)
        with unavailable():
            self._files.makedirs(place.rpartition("/")[0], exist_ok=True)
            if isinstance(content, bytes):
                self._files.pipe_file(place, content)
                return
            pieces = _pieces_of(content) if isinstance(content, Path) else content
            self._upload(place, pieces)
            if isinstance(content, Path):
                content.unlink(missing_ok=True)

    def get(self, name: str) -> bytes:
        with unavailable():
            content: bytes = self._files.cat_file(self._place(name))
            return content

    def open(self, name: str) -> BinaryIO:
        with unavailable():
            file: BinaryIO = self._files.open(self._place(name), "rb")
            return file

    def path(self, name: str) -> None:
        return None

    def exists(self, name: str) -> bool:
        with unavailable():
            return bool(self._files.isfile(self._place(name)))

    def list(self, prefix: str = "") -> list[str]:
        with unavailable():
            self._files.invalidate_cache()
            found = self._files.find(f"{self._root}/{prefix.rpartition('/')[0]}".rstrip("/"))
        skipped = len(self._root) + 1
        return sorted(place[skipped:] for place in found if place[skipped:].startswith(prefix))

    def delete(self, name: str) -> None:
        with unavailable(), suppress(FileNotFoundError):
            self._files.rm_file(self._place(name))

    def _place(self, name: str) -> str:
        return f"{self._root}/{_checked(name)}"

    def _upload(self, place: str, pieces: Iterable[bytes]) -> None:
        file: Any = self._files.open(place, "wb")
        try:
            for piece in pieces:
                file.write(piece)
        except BaseException:
            # Closing would finish the upload, and half an object would stand under the name; some file systems
            # have put it there from the beginning.
            file.discard()
            with suppress(OSError):
                self._files.rm_file(place)
            raise
        file.close()


def _files_below(folder: Path | str, prefix: str) -> Iterator[str]:
    """The names of all files that are no drafts, each after `prefix`; a folder that is not there has none."""
    try:
        entries = list(os.scandir(folder))
    except FileNotFoundError:
        return
    for entry in entries:
        if entry.is_dir(follow_symlinks=False):
            yield from _files_below(entry.path, f"{prefix}{entry.name}/")
        elif not entry.name.startswith(".") and entry.is_file():
            yield f"{prefix}{entry.name}"


def _checked(name: str) -> str:
    if not _NAME.fullmatch(name):
        raise InvalidSetting(f"{name!r} cannot be the name of a blob; nothing was touched")
    return name


def _moved(source: Path, target: Path) -> bool:
    """Whether the file could be renamed, with all its bytes synced; not if it lies on another disk."""
    if source.stat().st_dev != target.parent.stat().st_dev:
        return False
    with source.open("rb") as file:
        sync(file.fileno())
    source.rename(target)
    return True


def _write_aside(target: Path, content: bytes | Path | Iterable[bytes]) -> None:
    draft = target.with_name(f".{target.name}.{os.urandom(4).hex()}{_DRAFT}")
    try:
        _write(draft, content)
        draft.rename(target)
    except BaseException:
        draft.unlink(missing_ok=True)
        raise


def _write(draft: Path, content: bytes | Path | Iterable[bytes]) -> None:
    with os.fdopen(os.open(draft, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "wb") as file:
        if isinstance(content, Path):
            with content.open("rb") as source:
                shutil.copyfileobj(source, file, _COPY_BYTES)
        elif isinstance(content, bytes):
            file.write(content)
        else:
            file.writelines(content)
        file.flush()
        sync(file.fileno())


def _pieces_of(path: Path) -> Iterator[bytes]:
    with path.open("rb") as file:
        while piece := file.read(_COPY_BYTES):
            yield piece


@contextmanager
def unavailable() -> Iterator[None]:
    """Turn what a disk or a network refuses into `StoreUnavailable`; a missing blob stays a missing file."""
    try:
        yield
    except FileNotFoundError:
        raise
    except OSError as error:
        raise StoreUnavailable(
            f"a blob could not be read or written ({error.strerror or type(error).__name__}); make room or grant "
            "access, and try again; nothing was changed"
        ) from error
