"""The checks of `covey server check`, each for one thing that a start needs."""

from __future__ import annotations

import shutil
import socket
import time
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING

from device_sdk.wire.invitation import Address
from server_kit.aggregation import Guarded
from server_kit.config.policy import check_policy
from server_kit.daemon.check import Check, Found, Verdict
from server_kit.daemon.check_line import check_line
from server_kit.daemon.evaluating import check_evaluation
from server_kit.daemon.kept_checks import check_checkpoints, check_kept, check_pages
from server_kit.daemon.server_certificate import authority_begins_at, authority_expires_at, expires_at
from server_kit.guarding import guard_of, usual_length
from server_kit.models import initial_model

if TYPE_CHECKING:
    from pathlib import Path

    from server_kit.daemon.federation_home import Home

_SOON = timedelta(days=7)
_AUTHORITY_SOON = timedelta(days=180)
_BEFORE_COVEY = datetime(2026, 1, 1, tzinfo=UTC)
_MODELS_ON_DISK = 20
"""Room for so many models: checkpoints, drafts, uploads under way."""
_FEW_ROUNDS = 10
_LEAST_FREE_BYTES = 1 << 30


def check_secrets(home: Home) -> Found:
    """All keys are there, whole, and private."""
    faults = home.secrets.exposed()
    yield from ((Verdict.FAIL, fault) for fault in faults)
    home.authority()
    home.signing_key()
    home.feedback_seal()
    home.store_keys()
    if not faults:
        yield Verdict.OK, "all keys are there, and no other user can read them"


def check_certificates(home: Home) -> Found:
    """The authority and the server's certificate are good for a while."""
    now = datetime.now(UTC)
    for what, ends, soon in (
        ("the authority", authority_expires_at(home.authority()), _AUTHORITY_SOON),
        ("the server's certificate", expires_at(home.server_certificate()), _SOON),
    ):
        if ends <= now:
            yield Verdict.FAIL, f"{what} ended on {ends:%Y-%m-%d}; make a new federation, or set the clock"
            continue
        days = (ends - now).days
        yield (Verdict.OK if ends - now > soon else Verdict.WARN), f"{what} is good for {days} more days"
    if all(host in {"localhost", "127.0.0.1", "::1"} for host in home.config.listen.hosts):
        yield Verdict.WARN, "[listen] hosts names only this machine, so devices elsewhere cannot connect"


def check_ports(home: Home) -> Found:
    """The server can listen where it should; a running daemon listens there already."""
    listen = home.config.listen
    if home.is_running():
        yield Verdict.OK, "a daemon runs here and has its ports"
        return
    doors = {door: Address.from_text(getattr(listen, door)) for door in ("enrolment", "gateway", "status")}
    faults = {door: fault for door, address in doors.items() if (fault := _cannot_listen(address))}
    for door, fault in faults.items():
        yield Verdict.FAIL, f"{door} cannot listen on {doors[door]} ({fault}); stop what does, or name another port"
    if not faults:
        yield Verdict.OK, "all three ports are free"
    if not listen.status_is_local:
        yield Verdict.WARN, f"status listens on {listen.status} and takes its token over plain HTTP; prefer loopback"


def check_clock(home: Home) -> Found:
    """Certificates and deadlines need a clock that is about right."""
    now = datetime.now(UTC)
    if now < _BEFORE_COVEY:
        yield Verdict.FAIL, f"the clock says {now:%Y-%m-%d}, before this program was written; set it"
        return
    if now < authority_begins_at(home.authority()):
        yield Verdict.FAIL, f"the clock says {now:%Y-%m-%d %H:%M} UTC, before this federation was made; set it"
        return
    monotonic = time.monotonic()
    time.sleep(0.01)
    if time.monotonic() <= monotonic:
        yield Verdict.FAIL, "the monotonic clock stands still; deadlines would never pass"
        return
    yield Verdict.OK, f"the clock says {now:%Y-%m-%d %H:%M} UTC"


def check_model(home: Home) -> Found:
    """The model can be imported and built."""
    settings = home.config.federation
    model = initial_model(settings.model, settings.seed, home.directory)
    tensors, megabytes = len(model.layout.tensors), model.size_bytes / 1e6
    yield Verdict.OK, f"{settings.model} has {model.layout.size:,} parameters in {tensors} tensors ({megabytes:.1f} MB)"
    if model.size_bytes * 2 > home.config.guards.most_upload_bytes:
        yield Verdict.WARN, "[guards] most_upload_bytes leaves no room for a noised update of this model; raise it"
    needed = max(_LEAST_FREE_BYTES, _MODELS_ON_DISK * model.size_bytes)
    free = shutil.disk_usage(home.directory).free
    verdict = Verdict.OK if free >= needed else Verdict.WARN if free >= needed / 4 else Verdict.FAIL
    yield verdict, f"{free / 1e9:.1f} GB are free on disk; {needed / 1e9:.1f} GB are wise for this model"


def check_validation(home: Home) -> Found:
    """The server's own test data, if it has any."""
    path = home.config.evaluation.validation
    if path is None:
        yield Verdict.OK, "there is no validation file, so devices are asked how models do"
    elif not path.is_file():
        yield Verdict.FAIL, f"[evaluation] validation names {path.name}, and there is no such file"
    else:
        verdict, sentence = _validation_file(path)
        if verdict is Verdict.OK:
            check_evaluation(home)
        yield verdict, sentence


def check_strategy(home: Home) -> Found:
    """The preset exists, and its privacy terms keep the policy."""
    allowance = check_policy(home.config)
    policy = home.config.policy
    answers = f" and {allowance.answers} answers" if allowance.answers else ""
    may = f"a device may train in {allowance.rounds} rounds{answers}"
    promise = f"ε={policy.epsilon:g}, δ={policy.delta:g} for each {allowance.protects.value}"
    yield (Verdict.OK if allowance.rounds >= _FEW_ROUNDS else Verdict.WARN), f"{may} within {promise}"


def check_guard(home: Home) -> Found:
    """What keeps a few dishonest devices from carrying a model away, and how many are a few."""
    config, settings = home.config, home.config.federation
    strategy = settings.strategy(config.privacy.level)
    guard = guard_of(config.aggregation, strategy, settings.participants)
    if guard == "none":
        yield Verdict.WARN, "[aggregation] guard is 'none': one dishonest device can replace a model"
        return
    size = initial_model(settings.model, settings.seed, home.directory).layout.size
    limit = f"no update counts with more than a length of {usual_length(config, strategy, size):.3g}"
    if guard == "norm_bound":
        yield Verdict.WARN, f"{limit}; within it one dishonest device of few can still steer a model"
        return
    folded = settings.participants if strategy.buffer is None else strategy.buffer
    cut = Guarded(strategy.aggregator, guard, config.aggregation.trim).cut(folded)
    left_out = f"of {folded} updates the {cut} largest and smallest values of each weight are left out ({guard})"
    yield Verdict.OK, f"{left_out}, of a smaller cohort's fewer; {limit}"


def check_store(home: Home) -> Found:
    """The database can be opened and read, and is of this version."""
    store = home.open_store()
    try:
        devices = len(store.devices())
    finally:
        store.close()
    kind = home.config.store.url.partition(":")[0] or "sqlite"
    yield Verdict.OK, f"the database ({kind}) opens, is up to date, and knows {devices} devices"


def check_blobs(home: Home) -> Found:
    """Models and updates can be written, read and deleted."""
    blobs, name = home.open_blobs(), f"check/{time.time_ns()}"
    blobs.put(name, b"covey")
    try:
        whole = blobs.get(name) == b"covey"
    finally:
        blobs.delete(name)
    if whole:
        yield Verdict.OK, "blobs can be written, read and deleted"
    else:
        yield Verdict.FAIL, "a blob did not come back as it was written; do not trust this storage"


CHECKS: tuple[tuple[str, Check], ...] = (
    ("secrets", check_secrets),
    ("certificates", check_certificates),
    ("ports", check_ports),
    ("clock", check_clock),
    ("model", check_model),
    ("validation", check_validation),
    ("policy", check_strategy),
    ("guard", check_guard),
    ("pages", check_pages),
    ("database", check_store),
    ("database line", check_line),
    ("records", check_kept),
    ("blobs", check_blobs),
    ("checkpoints", check_checkpoints),
)


def _validation_file(path: Path) -> tuple[Verdict, str]:
    import numpy as np

    try:
        with np.load(path, allow_pickle=False) as file:
            rows, labels = len(file["x"]), len(file["y"])
    except (KeyError, ValueError, OSError):
        return Verdict.FAIL, f"{path.name} is not an .npz file with arrays x and y; write it with numpy.savez"
    if rows != labels or not rows:
        return Verdict.FAIL, f"{path.name} has {rows} rows of x and {labels} of y; they must be as many, and some"
    return Verdict.OK, f"{path.name} has {rows} records"


def _cannot_listen(address: Address) -> str | None:
    try:
        infos = socket.getaddrinfo(address.host, address.port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)
        for family, kind, protocol, _, place in infos:
            with socket.socket(family, kind, protocol) as knocking:
                knocking.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
                knocking.bind(place)
    except OSError as error:
        return error.strerror or str(error)
    return None
