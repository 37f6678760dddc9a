"""Refused handshakes as events: which certificate was not good enough, and why.

gRPC refuses a certificate before Python hears of it, and says why in one line on standard error. While a
`HandshakeWatch` is open, what native code writes there goes to a file; the lines about handshakes become events in
our log, those that only chat are dropped, and everything else is passed on.

A file, not a pipe: nobody ever waits for us to read it, and what was written in the moment of a crash is still there
and passed on at the next start. gRPC tells no address, so an event says how often and not who; the refused device is
told by its own probe.
"""

from __future__ import annotations

import logging
import os
import re
import sys
import threading
from collections import Counter
from enum import StrEnum
from typing import TYPE_CHECKING, Self

if TYPE_CHECKING:
    from pathlib import Path
    from typing import TextIO

log = logging.getLogger("covey.server")

_STDERR = 2
_READ_BYTES = 1 << 16
_MOST_KEPT_BYTES = 1 << 20
_REFUSAL = re.compile(r"Handshake failed with error \w+: error:\w+:[^:]*:[^:]*:(\w+)(?:: (.*))?")
_CHAT = re.compile(r"(I\d{4} \d\d:\d\d:\d\d\.\d+ +\d+ \S+\.cc:\d+\] |W\d{4} .*\] Log level INFO is not suitable )")


class HandshakeRefusal(StrEnum):
    """Why a handshake came to nothing."""

    CERTIFICATE_EXPIRED = "certificate_expired"
    CERTIFICATE_NOT_YET_VALID = "certificate_not_yet_valid"
    FOREIGN_AUTHORITY = "foreign_authority"
    CERTIFICATE_REFUSED = "certificate_refused"
    NO_CERTIFICATE = "no_certificate"
    OLD_TLS = "old_tls"
    BROKEN_HANDSHAKE = "broken_handshake"


_SENTENCES = {
    HandshakeRefusal.CERTIFICATE_EXPIRED: "its certificate has expired; the device must enrol again, or set its clock",
    HandshakeRefusal.CERTIFICATE_NOT_YET_VALID: "its certificate is not valid yet; compare the two clocks",
    HandshakeRefusal.FOREIGN_AUTHORITY: "another authority issued its certificate; it belongs to another federation",
    HandshakeRefusal.CERTIFICATE_REFUSED: "its certificate is not one of a device",
    HandshakeRefusal.NO_CERTIFICATE: "it showed no certificate; only enrolled devices may come in here",
    HandshakeRefusal.OLD_TLS: "it speaks only TLS older than 1.2; this server wants 1.3",
    HandshakeRefusal.BROKEN_HANDSHAKE: "it does not speak TLS as we do, or gave up",
}
_BY_WORD = {
    "PEER_DID_NOT_RETURN_A_CERTIFICATE": HandshakeRefusal.NO_CERTIFICATE,
    "UNSUPPORTED_PROTOCOL": HandshakeRefusal.OLD_TLS,
    "WRONG_VERSION_NUMBER": HandshakeRefusal.OLD_TLS,
}
_BY_DETAIL = {
    "certificate has expired": HandshakeRefusal.CERTIFICATE_EXPIRED,
    "certificate is not yet valid": HandshakeRefusal.CERTIFICATE_NOT_YET_VALID,
    "unable to get local issuer certificate": HandshakeRefusal.FOREIGN_AUTHORITY,
    "unable to get issuer certificate": HandshakeRefusal.FOREIGN_AUTHORITY,
    "unable to verify the first certificate": HandshakeRefusal.FOREIGN_AUTHORITY,
    "self signed certificate": HandshakeRefusal.FOREIGN_AUTHORITY,
    "self signed certificate in certificate chain": HandshakeRefusal.FOREIGN_AUTHORITY,
    "certificate signature failure": HandshakeRefusal.FOREIGN_AUTHORITY,
}


def refusal_in(line: str) -> HandshakeRefusal | None:
    """The refusal that a line of gRPC's tells of; None if it is about something else."""
    match = _REFUSAL.search(line)
    if match is None:
        return None
    word, detail = match.groups()
    if word == "CERTIFICATE_VERIFY_FAILED":
        return _BY_DETAIL.get((detail or "").strip(), HandshakeRefusal.CERTIFICATE_REFUSED)
    return _BY_WORD.get(word, HandshakeRefusal.BROKEN_HANDSHAKE)


class HandshakeWatch:
    """Listens to what native code of this process says; one in a process.

    gRPC says these things as small talk, and reads when it is imported how much of that is wanted: the process must
    have begun with `GRPC_VERBOSITY=INFO`, or without it.
    """

    def __init__(self, path: Path, look_every_seconds: float = 0.5) -> None:
        self._path, self._look_every_seconds = path, look_every_seconds
        self._position, self._rest = 0, b""
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._watch, name="covey-handshakes", daemon=True)

    def __enter__(self) -> Self:
        quiet = os.environ.get("GRPC_VERBOSITY", "INFO").upper()
        if quiet not in {"INFO", "DEBUG"}:
            log.warning("refused handshakes will not be told: GRPC_VERBOSITY is %s; set it to INFO", quiet)
        self._told = os.open(self._path, os.O_RDWR | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, 0o600)
        sys.stderr.flush()
        self._terminal = os.dup(_STDERR)
        # What Python itself has to say needs no detour.
        self._before, sys.stderr = sys.stderr, _text(self._terminal)
        os.dup2(self._told, _STDERR)
        self._thread.start()
        return self

    def __exit__(self, *exc_info: object) -> None:
        """Pass on the rest, and give standard error back."""
        os.dup2(self._terminal, _STDERR)
        self._over.set()
        self._thread.join()
        sys.stderr.flush()
        sys.stderr = self._before
        os.close(self._told)
        os.close(self._terminal)

    def _watch(self) -> None:
        while not self._over.wait(self._look_every_seconds):
            self._look()
        self._look()
        if self._rest:
            os.write(self._terminal, self._rest)
        os.ftruncate(self._told, 0)

    def _look(self) -> None:
        refused: Counter[HandshakeRefusal] = Counter()
        while piece := os.pread(self._told, _READ_BYTES, self._position):
            self._position += len(piece)
            *lines, self._rest = (self._rest + piece).split(b"\n")
            refused.update(filter(None, map(self._heard, lines)))
        # A stranger can be refused as often as it likes; the log gets a line a look for each reason.
        for reason, times in refused.items():
            fields = {"code": reason.value, "times": times}
            log.warning("refused a handshake: %s", _SENTENCES[reason], extra=fields)
        if self._position >= _MOST_KEPT_BYTES:
            os.ftruncate(self._told, 0)
            self._position = 0

    def _heard(self, line: bytes) -> HandshakeRefusal | None:
        text = line.decode("utf-8", "replace")
        reason = refusal_in(text)
        if reason is None and not _CHAT.match(text):
            os.write(self._terminal, line + b"\n")
        return reason


def _text(descriptor: int) -> TextIO:
    # Never closed: whoever logs may hold on to it.
    return open(os.dup(descriptor), "w", buffering=1, encoding="utf-8", errors="backslashreplace", closefd=False)
