"""Whoever is refused at the door, the operator's log says which reason it was, once."""

from __future__ import annotations

import json
import logging
import os
import subprocess
import sys
import time

import pytest

from server_kit.daemon.handshakes import HandshakeRefusal, HandshakeWatch, refusal_in
from tests.architecture.repository import ROOT

BEGINNING = "I1116 14:35:30.964411   26121 ssl_transport_security.cc:2563] Handshake failed with error SSL_ERROR_SSL: "
LINES = {
    "error:1000007d:SSL routines:OPENSSL_internal:CERTIFICATE_VERIFY_FAILED: certificate has expired": (
        HandshakeRefusal.CERTIFICATE_EXPIRED
    ),
    "error:1000007d:SSL routines:OPENSSL_internal:CERTIFICATE_VERIFY_FAILED: unable to get local issuer certificate": (
        HandshakeRefusal.FOREIGN_AUTHORITY
    ),
    "error:1000007d:SSL routines:OPENSSL_internal:CERTIFICATE_VERIFY_FAILED: unsupported certificate purpose": (
        HandshakeRefusal.CERTIFICATE_REFUSED
    ),
    "error:100000f0:SSL routines:OPENSSL_internal:UNSUPPORTED_PROTOCOL: Invalid certificate verification context": (
        HandshakeRefusal.OLD_TLS
    ),
    "error:1000009c:SSL routines:OPENSSL_internal:HTTP_REQUEST: Invalid certificate verification context": (
        HandshakeRefusal.BROKEN_HANDSHAKE
    ),
    "error:1000009c:SSL routines:OPENSSL_internal:HTTP_REQUEST": HandshakeRefusal.BROKEN_HANDSHAKE,
}


@pytest.mark.parametrize(("line", "reason"), LINES.items(), ids=LINES.values())
def test_a_line_of_grpc_is_read_for_its_reason(line, reason):
    assert refusal_in(BEGINNING + line) is reason


@pytest.mark.parametrize("line", ["", "Handshake failed", "Traceback (most recent call last):", BEGINNING])
def test_other_lines_tell_of_no_refusal(line):
    assert refusal_in(line) is None


@pytest.mark.integration
def test_each_refusal_is_one_event_with_its_reason_and_without_the_watch_there_is_none():
    command = [sys.executable, "-m", "tests.server_kit.daemon.refused_at_the_door"]
    environment = os.environ | {"GRPC_VERBOSITY": "INFO"}
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False, env=environment, timeout=120)
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout) == {
        "expired": ["certificate_expired"],
        "not yet valid": ["certificate_not_yet_valid"],
        "foreign authority": ["foreign_authority"],
        "no certificate": ["no_certificate"],
        "TLS 1.2": ["tls_too_old"],
        "revoked": ["revoked"],
        "used invitation": ["invitation_used"],
        "welcome": [],
        "nobody listens": [],
    }
    before, _, after = done.stderr.partition("back again")
    assert "Handshake failed" not in before
    assert "certificate has expired" in after


def native(text: str) -> None:
    """What native code says: Python's own `sys.stderr` is not asked."""
    os.write(2, text.encode())


def listened(path, say, capfd, caplog):
    """What the log and standard error have of what was said while a watch was open."""
    with caplog.at_level(logging.WARNING, "covey.server"), HandshakeWatch(path, 0.02):
        say()
        time.sleep(0.1)
    return [(record.__dict__["code"], record.__dict__["times"]) for record in caplog.records], capfd.readouterr().err


def test_a_flood_of_refusals_is_a_few_lines_that_count_it(tmp_path, capfd, caplog):
    line = BEGINNING + next(iter(LINES)) + "\n"
    events, passed_on = listened(tmp_path / "native.log", lambda: native(line * 1000), capfd, caplog)
    assert len(events) < 10
    assert sum(times for _, times in events) == 1000
    assert passed_on == ""


def test_what_is_not_about_handshakes_is_passed_on_and_small_talk_is_not(tmp_path, capfd, caplog):
    def say():
        native("E1116 14:35:30.964411   26121 chttp2.cc:77] something is wrong\n")
        native("I1116 14:35:30.964411   26121 chttp2.cc:78] something is as ever\n")
        sys.stderr.write("Python speaks\n")
        native("Fatal Python error: without an end of line")

    events, passed_on = listened(tmp_path / "native.log", say, capfd, caplog)
    assert events == []
    assert sorted(passed_on.splitlines()) == [
        "E1116 14:35:30.964411   26121 chttp2.cc:77] something is wrong",
        "Fatal Python error: without an end of line",
        "Python speaks",
    ]


def test_last_words_before_a_crash_are_passed_on_at_the_next_start(tmp_path, capfd, caplog):
    (tmp_path / "native.log").write_text("F1116 14:35:30.964411   26121 tls.cc:1] check failed\n")
    _, passed_on = listened(tmp_path / "native.log", lambda: None, capfd, caplog)
    assert "check failed" in passed_on
    assert (tmp_path / "native.log").read_text() == ""


def test_a_quiet_grpc_is_complained_about(tmp_path, caplog, monkeypatch):
    monkeypatch.setenv("GRPC_VERBOSITY", "ERROR")
    with caplog.at_level(logging.WARNING, "covey.server"), HandshakeWatch(tmp_path / "native.log"):
        pass
    assert "will not be told" in caplog.text


def test_the_file_does_not_grow_for_ever(tmp_path, capfd, caplog):
    path = tmp_path / "native.log"
    with HandshakeWatch(path, 0.01):
        for _ in range(3):
            native("I1116 14:35:30.964411   26121 chttp2.cc:78] " + "x" * (1 << 20) + "\n")
            time.sleep(0.3)
        assert path.stat().st_size < 2 << 20
