"""What a demo lacks is said in one sentence, before anything is started."""

from __future__ import annotations

import socket
import time

import pytest

import covey
from privacy.errors import MissingExtra
from server_kit.demo import requirements, running
from server_kit.demo.errors import DemoFailed
from server_kit.demo.processes import Processes
from server_kit.demo.requirements import (
    PACKAGES,
    available_megabytes,
    check_memory,
    check_packages,
    check_python,
    prepare,
)
from server_kit.demo.running import Demo, Folder, check_free, free_ports
from server_kit.demo.terms import Ports, Terms


class Silent:
    """A watch that shows nothing."""

    def __init__(self):
        self.began_at = time.monotonic()

    def doing(self, what):
        pass

    def seen(self, glance, progress, one_model):
        pass


def told(capsys, *arguments):
    code = covey.run(covey.covey, ["demo", *arguments])
    sentence = capsys.readouterr().err
    assert sentence.startswith("covey: ")
    assert sentence.count("\n") == 1
    return code, sentence


def test_this_machine_has_all_that_is_needed():
    check_python((3, 11))
    check_packages(PACKAGES)
    check_memory(6, available_megabytes())


def test_an_old_python_is_named():
    with pytest.raises(DemoFailed, match=r"needs Python 3\.11 or newer, and this is 3\.10; .*nothing was started"):
        check_python((3, 10))


def test_a_missing_package_is_named_with_what_brings_it(capsys, monkeypatch, tmp_path):
    monkeypatch.setattr(requirements, "PACKAGES", ("rich", "no_such_package"))
    code, sentence = told(capsys, "--out", str(tmp_path / "out"))
    assert code == covey.ExitCode.MISSING_EXTRA
    assert "needs no_such_package; run: pip install 'covey[server,audit]'" in sentence
    assert not (tmp_path / "out").exists()


def test_a_missing_package_is_an_extra():
    with pytest.raises(MissingExtra):
        check_packages(("no_such_package",))


@pytest.mark.parametrize(("available", "remedy"), [(2200, "--devices 10 would fit"), (100, "close other programs")])
def test_too_little_memory_is_told_with_a_remedy(capsys, monkeypatch, tmp_path, available, remedy):
    monkeypatch.setattr(requirements, "available_megabytes", lambda: available)
    code, sentence = told(capsys, "--out", str(tmp_path / "out"))
    assert code == covey.ExitCode.FOUND_WRONG
    assert f"{available:,} MB are available; {remedy}; nothing was started" in sentence


def test_a_system_that_does_not_tell_its_memory_is_tried():
    check_memory(96, None)


def test_a_folder_with_something_else_in_it_is_left_alone(capsys, tmp_path):
    (tmp_path / "mine.txt").write_text("mine")
    code, sentence = told(capsys, "--out", str(tmp_path))
    assert code == covey.ExitCode.FOUND_WRONG
    assert "name another folder with --out" in sentence
    assert (tmp_path / "mine.txt").read_text() == "mine"


def test_what_a_demo_left_is_replaced(tmp_path):
    folder = tmp_path / "out"
    prepare(folder)
    (folder / "report.html").write_text("old")
    prepare(folder)
    assert [path.name for path in folder.iterdir()] == [".made-by-covey-demo"]


def test_free_ports_are_free_and_differ():
    ports = free_ports()
    check_free(ports)
    assert len({ports.gateway, ports.enrolment, ports.status}) == 3


@pytest.mark.integration
def test_a_taken_port_is_one_sentence_and_what_was_started_is_stopped(monkeypatch, tmp_path):
    prepare(tmp_path / "out")
    with socket.socket() as other:
        other.bind(("127.0.0.1", 0))
        other.listen()
        taken = other.getsockname()[1]
        free = free_ports()
        monkeypatch.setattr(running, "free_ports", lambda: Ports(free.gateway, taken, free.status))
        started = []
        usual = Processes.start

        def start(self, *arguments, **more):
            started.append(usual(self, *arguments, **more))
            return started[-1]

        monkeypatch.setattr(Processes, "start", start)
        with pytest.raises(DemoFailed, match=f"port {taken} of this machine is taken.*everything was stopped"):
            Demo(Terms(6, 8), Folder(tmp_path / "out"), Silent()).run()
    assert len(started) == 6
    assert all(process.poll() is not None for process in started)
