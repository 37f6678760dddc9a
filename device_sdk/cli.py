"""`covey device`: enrol a device, let it take part, see where it stands, leave.

A thin shell over `device_sdk.device`. What enrolment decided (server, budget, key store) is written to
STATE/device.toml and read by the other commands; there is no secret in it.
"""

from __future__ import annotations

import importlib
import json
import resource
import shlex
import sys
import warnings
from getpass import GetPassWarning
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from device_sdk.errors import InvalidConfig, NotEnrolled
from device_sdk.events import show_events
from device_sdk.wire.one_heap import share_one_heap

if TYPE_CHECKING:
    from device_sdk.config import DeviceConfig
    from device_sdk.device import Device, DeviceStatus
    from device_sdk.trainers.protocol import Trainer

_SETTINGS = "device.toml"
_STANDINGS = {
    "new": "not enrolled",
    "enrolled": "enrolled",
    "renewal due": "enrolled; the certificate is renewed by the next run",
    "expired": "the certificate has expired; enrol again with a new invitation",
}
_PHASES = {
    "accepted": "to be done",
    "booked": "paid for and to be done",
    "released": "to be sent",
    "uploaded": "sent, and perhaps to be judged",
}
_STATE = click.Path(file_okay=False, path_type=Path)
state_option = click.option("--state", type=_STATE, required=True, help="Directory that the device keeps.")


@click.group()
def device() -> None:
    """A device of a federation: it keeps its data, and books and noises whatever leaves it."""
    # A core dump would hold the device's keys and data.
    resource.setrlimit(resource.RLIMIT_CORE, (0, resource.getrlimit(resource.RLIMIT_CORE)[1]))
    share_one_heap()


@device.command()
@click.option("--server", required=True, metavar="HOST:PORT", help="The server to enrol at.")
@click.option("--invitation", required=True, metavar="TOKEN", help="The operator's invitation; - reads it from input.")
@state_option
@click.option("--epsilon", type=float, default=8.0, show_default=True, help="The device's budget for life.")
@click.option("--delta", type=float, default=1e-6, show_default=True, help="Its probability of failure.")
@click.option(
    "--training",
    type=click.Choice(["device", "record"]),
    default="device",
    show_default=True,
    help="Whom training protects: the whole device, or each record.",
)
@click.option(
    "--key-store",
    type=click.Choice(["os", "passphrase", "file"]),
    default="os",
    show_default=True,
    help="Where the key of the device's vault is kept.",
)
@click.option("--key-file", type=click.Path(dir_okay=False, path_type=Path), help="The file, for --key-store file.")
def enrol(
    server: str,
    invitation: str,
    state: Path,
    *,
    epsilon: float,
    delta: float,
    training: str,
    key_store: str,
    key_file: Path | None,
) -> None:
    """Enrol this device with an invitation.

    The keys are made here and never leave the device. The budget is for life and never changes.

    Exits with 0 if the device is enrolled, with 1 if it was refused.
    """
    keys: dict[str, str] = {"store": key_store, **({} if key_file is None else {"file": str(key_file.absolute())})}
    budget = {"epsilon": epsilon, "delta": delta, "training": training}
    config = _config(state, server=server, budget=budget, keys=keys)
    with _opened(config) as opened:
        opened.enrol(sys.stdin.read() if invitation == "-" else invitation)
        _write_settings(state, server, {"budget": budget, "keys": keys})
        click.echo(f"enrolled at {server} as {opened.status().device}")


@device.command()
@state_option
@click.option("--trainer", required=True, metavar="PKG.MODULE:NAME", help="Function that makes the trainer.")
@click.option("--rounds", type=click.IntRange(min=1), help="Stop after so many updates.")
@click.option("--for-seconds", type=click.FloatRange(min=0, min_open=True), help="Stop after so long.")
@click.option("--verbose", is_flag=True, help="Tell on standard error what happens, one event a line.")
def run(state: Path, trainer: str, rounds: int | None, for_seconds: float | None, verbose: bool) -> None:
    """Take part: train when asked, and send what is noised and paid for.

    Ends with Ctrl-C, after --rounds updates or after --for-seconds; what is under way is taken up by the next run.

    Exits with 0 when it ended so, with 1 if the server or the device's own state forbids going on, or if the trainer
    has failed meanwhile: the server cannot tell, so it is told at the end.
    """
    if verbose:
        show_events(sys.stderr)
    made = _trainer(trainer)
    with _opened(_known(state)) as opened:
        sent = opened.run(made, rounds=rounds, timeout_seconds=for_seconds)
        click.echo(f"sent {sent} {'update' if sent == 1 else 'updates'}")


@device.command()
@state_option
@click.option("--json", "as_json", is_flag=True, help="Print the result as JSON.")
def status(state: Path, as_json: bool) -> None:
    """Where the device stands with its server, and what is in progress.

    `covey privacy status STATE` says what it has spent.

    Exits with 0, or with 1 if the state cannot be opened.
    """
    with _opened(_known(state)) as opened:
        found = opened.status()
    click.echo(json.dumps(_document(found), indent=2) if as_json else _text(found, state))


@device.command()
@state_option
def leave(state: Path) -> None:
    """Leave the federation and shred what is kept for its server.

    The ledger stays: what was spent is spent at every server.

    Exits with 0 if the device has left, with 1 if it was not enrolled.
    """
    with _opened(_known(state)) as opened:
        opened.leave()
    click.echo("left; the keys for this server are destroyed, what was spent stays in the ledger")


def _opened(config: DeviceConfig) -> Device:
    from device_sdk.device import Device

    return Device.of(config, passphrase=lambda: _passphrase(new=not (config.state / _SETTINGS).is_file()))


def _passphrase(*, new: bool) -> str:
    """Asked for on the terminal, a new one twice; where there is no terminal, the first line of the input."""
    with warnings.catch_warnings():
        warnings.simplefilter("error", GetPassWarning)
        try:
            return str(click.prompt("Passphrase", hide_input=True, confirmation_prompt=new, err=True))
        except GetPassWarning:
            line = sys.stdin.readline().rstrip("\n")
    if not line:
        raise click.Abort
    return line


def _config(state: Path, **settings: Any) -> DeviceConfig:
    from device_sdk.config import DeviceConfig

    try:
        return DeviceConfig.of(state=state, **settings)
    except InvalidConfig as error:
        raise click.UsageError(str(error)) from error


def _known(state: Path) -> DeviceConfig:
    """The configuration of a device that was enrolled here."""
    from device_sdk.config import DeviceConfig

    path = state / _SETTINGS
    if not path.is_file():
        raise NotEnrolled(f"there is no {_SETTINGS} in {state}; enrol the device with: covey device enrol")
    return DeviceConfig.read(path, state=state)


def _write_settings(state: Path, server: str, tables: dict[str, dict[str, Any]]) -> None:
    from privacy.durable import write_durably

    # A JSON string or number is one of TOML too.
    lines = [f"server = {json.dumps(server)}"]
    for name, table in tables.items():
        lines += ["", f"[{name}]", *(f"{key} = {json.dumps(value)}" for key, value in table.items())]
    write_durably(state / _SETTINGS, ("\n".join(lines) + "\n").encode())


def _trainer(target: str) -> Trainer:
    module, _, name = target.partition(":")
    if not (module and name):
        raise click.BadParameter("expected PKG.MODULE:NAME.", param_hint="--trainer")
    # As `python -m` does: an app is often started from its own folder, and not installed.
    sys.path.insert(0, str(Path.cwd()))
    try:
        make = getattr(importlib.import_module(module), name)
    except (ModuleNotFoundError, AttributeError) as error:
        if isinstance(error, ModuleNotFoundError) and error.name not in {module, module.split(".")[0]}:
            raise  # something that the app needs is missing
        raise click.BadParameter(f"there is no {target}.", param_hint="--trainer") from error
    trainer: Trainer = make()
    return trainer


def _document(found: DeviceStatus) -> dict[str, Any]:
    return {
        "format": "covey-device-status-1",
        "server": found.server,
        "standing": found.standing.value,
        "device": found.device,
        "rounds": found.rounds,
        "ledger_sequence": found.ledger.sequence,
    }


def _text(found: DeviceStatus, state: Path) -> str:
    rounds = ", ".join(f"{found.rounds[phase]} {what}" for phase, what in _PHASES.items() if phase in found.rounds)
    lines = {
        "server": found.server,
        "standing": _STANDINGS[found.standing.value],
        "name there": found.device or "none",
        "rounds": rounds or "none in progress",
        "spent": f"see covey privacy status {shlex.quote(str(state))}",
    }
    return "\n".join(f"{name:<12}{value}" for name, value in lines.items())
