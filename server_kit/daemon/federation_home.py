"""The federation's directory: its settings, its secrets, and all that the server keeps.

    server.toml     settings; no secret is in it
    authority.pem   the authority's certificate: what devices pin
    secrets/        authority.key, signing.key, feedback.key, store.key, dashboard.token, server.pem (shown to devices)
    covey.db        what must not be forgotten, unless [store] url says otherwise
    blobs/          checkpoints and large updates, unless [store] blobs says otherwise
    models/         copies of models for devices to fetch
    scratch/        drafts of checkpoints
    spool/          uploads that are not finished
    run/            what processes publish while they run; safe to delete when none does

Only its owner can enter it. It is made whole or not at all, and one daemon runs in it.
"""

from __future__ import annotations

import fcntl
import os
import secrets as chance
import shutil
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING
from urllib.parse import quote, urlsplit

from privacy.durable import make_directory, sync_directory, write_durably
from privacy.keys import SigningKey
from server_kit.config.server_config import FILE_NAME, ServerConfig
from server_kit.daemon.authority import Authority
from server_kit.daemon.dashboard_token import make_token
from server_kit.daemon.feedback_mac import FeedbackSeal
from server_kit.daemon.secret_files import SecretFiles, variable_of
from server_kit.daemon.server_certificate import current_certificate
from server_kit.errors import HomeBusy, HomeError, SecretUnusable

if TYPE_CHECKING:
    from datetime import datetime
    from pathlib import Path

    from server_kit.checkpoints import Checkpoints
    from server_kit.daemon.authority import ServerCertificate
    from server_kit.store.blobs import Blobs
    from server_kit.store.keys import StoreKeys
    from server_kit.store.protocol import Store

_FOLDERS = ("secrets", "blobs", "models", "scratch", "spool", "run")
_LOCK = "daemon.lock"
_ATTEMPTS, _PAUSE_SECONDS = 25, 0.02
_PASSWORD = "database_password"  # noqa: S105 - the name of a file


@dataclass(frozen=True)
class Home:
    """One federation on this machine."""

    directory: Path
    config: ServerConfig

    @classmethod
    def create(cls, directory: Path, settings: str = "") -> Home:
        """A new federation with its own authority and keys. `settings` is the text of `server.toml`.

        `HomeError` if the directory holds anything. Whatever fails, nothing is left behind.
        """
        directory = directory.absolute()
        if directory.exists() and not (directory.is_dir() and not any(directory.iterdir())):
            raise HomeError(f"{directory.name} exists and is not an empty directory; name another; nothing was made")
        draft = directory.with_name(f".{directory.name}.{chance.token_hex(4)}.new")
        try:
            make_directory(directory.parent)
            cls._fill(draft, settings)
            # Takes the place of an empty directory, and of nothing else.
            draft.rename(directory)
        except BaseException as error:
            shutil.rmtree(draft, ignore_errors=True)
            if not isinstance(error, OSError):
                raise
            raise HomeError(
                f"{directory.name} could not be made ({error.strerror or error}); name another place, or make room; "
                "nothing was made"
            ) from error
        sync_directory(directory.parent)
        return cls.open(directory)

    @classmethod
    def _fill(cls, draft: Path, settings: str) -> None:
        ServerConfig.of_text(settings, FILE_NAME, draft)
        for folder in ("", *_FOLDERS):
            make_directory(draft / folder)
        write_durably(draft / FILE_NAME, settings.encode())
        authority, secrets = Authority.create(), SecretFiles(draft / "secrets")
        write_durably(draft / "authority.pem", authority.certificate_pem)
        secrets.write("authority.key", authority.private_key_pem())
        for name in ("signing.key", "feedback.key", "store.key"):
            secrets.create_key(name)
        make_token(secrets)
        home = cls.open(draft)
        home.server_certificate()
        home.open_store().close()

    @classmethod
    def open(cls, directory: Path) -> Home:
        """The federation in a directory; `HomeError` if there is none, `InvalidSetting` if its file is wrong."""
        directory = directory.absolute()
        if not (directory / FILE_NAME).is_file():
            raise HomeError(
                f"there is no {FILE_NAME} in {directory.name}; make a federation with: covey server init DIR"
            )
        home = cls(directory, ServerConfig.read(directory / FILE_NAME))
        for folder in _FOLDERS[1:]:
            make_directory(directory / folder)
        return home

    def read_settings(self) -> ServerConfig:
        """The settings as the file says now."""
        return ServerConfig.read(self.directory / FILE_NAME)

    @property
    def secrets(self) -> SecretFiles:
        return SecretFiles(self.directory / "secrets")

    @property
    def scratch(self) -> Path:
        return self.directory / "scratch"

    @property
    def models(self) -> Path:
        """What devices fetch (`daemon.model_shelf`)."""
        return self.directory / "models"

    @property
    def spool(self) -> Path:
        return self.directory / "spool"

    @property
    def run(self) -> Path:
        """Where processes publish what they count (`server_kit.metrics`)."""
        return self.directory / "run"

    @property
    def blobs_url(self) -> str:
        return self.config.store.blobs or str(self.directory / "blobs")

    @property
    def store_url(self) -> str:
        """Of the database, with the password that the settings must not hold."""
        url = self.config.store.url
        if not url:
            return f"sqlite:///{self.directory / 'covey.db'}"
        password = os.environ.get(variable_of(_PASSWORD)) or (self.secrets.read_file(_PASSWORD) or b"").decode().strip()
        parts = urlsplit(url)
        if not password or parts.hostname is None:
            return url
        user = f"{parts.username or ''}:{quote(password, safe='')}@"
        return parts._replace(netloc=user + parts.netloc.rpartition("@")[2]).geturl()

    def store_keys(self) -> StoreKeys:
        """Seal what is kept of devices."""
        from server_kit.store.keys import StoreKeys

        return StoreKeys.parse(self.secrets.read("store.key").decode("ascii", "replace"))

    def open_store(self) -> Store:
        """What the server must not forget; made and brought up to date if needed."""
        from server_kit.store.opening import open_store

        return open_store(self.store_url, self.store_keys(), self.open_blobs(), quota=self.config.guards.quota())

    def open_blobs(self) -> Blobs:
        """Models, checkpoints and large updates."""
        from server_kit.store.blobs import open_blobs

        return open_blobs(self.blobs_url)

    def open_checkpoints(self) -> Checkpoints:
        """Of cohorts and of the federation."""
        from server_kit.checkpoints import Checkpoints

        return Checkpoints(self.open_blobs(), self.scratch, self.config.store.keep_checkpoints)

    def authority(self) -> Authority:
        """Who vouches for devices and server here."""
        path = self.directory / "authority.pem"
        try:
            return Authority.from_pem(path.read_bytes(), self.secrets.read("authority.key"))
        except (OSError, ValueError, TypeError) as error:
            raise SecretUnusable(
                "the authority cannot be opened: authority.pem or secrets/authority.key is missing, damaged or "
                "another's; restore both from your backup; nothing was started"
            ) from error

    def server_certificate(self, now: datetime | None = None) -> ServerCertificate:
        """What the server shows; call again from time to time, for it is renewed before it ends."""
        return current_certificate(self.secrets, self.authority(), self.config.listen.hosts, now)

    def signing_key(self) -> SigningKey:
        """Signs countersignatures; devices pin its public half."""
        return SigningKey(self.secrets.read_key("signing.key"))

    def feedback_seal(self) -> FeedbackSeal:
        """Proves what this server told whom."""
        return FeedbackSeal(self.secrets.read_key("feedback.key"))

    @contextmanager
    def running(self) -> Iterator[None]:
        """Be the one daemon of this federation; `HomeBusy` if there is another."""
        descriptor = self._lock_file()
        try:
            self._take(descriptor)
            yield
        finally:
            os.close(descriptor)

    def is_running(self) -> bool:
        """Whether a daemon runs here now."""
        descriptor = self._lock_file()
        try:
            fcntl.flock(descriptor, fcntl.LOCK_SH | fcntl.LOCK_NB)
        except BlockingIOError:
            return True
        finally:
            os.close(descriptor)
        return False

    def _take(self, descriptor: int) -> None:
        """Take the lock; whoever asks `is_running` holds it for a moment, so a few tries are made."""
        for _ in range(_ATTEMPTS):
            try:
                return fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                time.sleep(_PAUSE_SECONDS)
        raise HomeBusy(f"a daemon runs in {self.directory.name} already; stop it first; nothing was started")

    def _lock_file(self) -> int:
        return os.open(self.run / _LOCK, os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600)
