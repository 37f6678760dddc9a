"""`covey server`: the commands of an operator, each a thin shell over functions one can call.

All but `run` read the store themselves, so they work whether or not a daemon runs, and say which.
"""

from __future__ import annotations

import resource
import sys
import time
from pathlib import Path
from typing import Any

import click

from privacy.reporting.terminal import show
from server_kit.cli_keeping import backup, export, receipts, rotate
from server_kit.cli_parts import directory_argument, json_option


@click.group()
def server() -> None:
    """Make a federation, run it, see how it does, let devices in and out."""
    # A core dump would hold the server's keys.
    resource.setrlimit(resource.RLIMIT_CORE, (0, resource.getrlimit(resource.RLIMIT_CORE)[1]))


@server.command()
@directory_argument
@click.option("--name", default="covey", show_default=True, help="What the federation is called.")
@click.option(
    "--model",
    default="server_kit.models:digits_softmax",
    show_default=True,
    metavar="PKG.MODULE:BUILD",
    help="Function that makes the model; its code is run.",
)
@click.option("--preset", default="covey", show_default=True, help="How it is trained.")
@click.option(
    "--level",
    type=click.Choice(["record", "device"]),
    default="record",
    show_default=True,
    help="What is hidden: each record of a device, or all that it holds.",
)
@click.option(
    "--host", "hosts", multiple=True, help="Name or address that devices use; without one, this machine only."
)
@click.option(
    "--port",
    type=click.IntRange(1, 65534),
    default=8443,
    show_default=True,
    help="Of the gateway; enrolment takes the next.",
)
@click.option(
    "--status-port",
    type=click.IntRange(1, 65535),
    default=8480,
    show_default=True,
    help="Of health and metrics, on loopback.",
)
def init(directory: Path, **choices: Any) -> None:
    """Make a federation: authority, keys, settings, database.

    DIR must be empty or not exist; whatever fails, nothing is left behind.

    Exits with 0 if it was made, with 1 if not, with 2 if an option makes no sense.
    """
    from server_kit.commands.making import made_text, make_federation
    from server_kit.errors import InvalidSetting

    try:
        home, allowance = make_federation(directory, **choices)
    except InvalidSetting as error:
        raise click.UsageError(str(error)) from error
    click.echo(made_text(home, allowance, click.format_filename(directory)))


@server.command()
@directory_argument
@click.option("--lifeline", type=int, metavar="FD", help="A pipe; when it is closed, the server ends at once.")
def run(directory: Path, lifeline: int | None) -> None:
    """Run the federation until SIGTERM or Ctrl-C.

    The first signal lets rounds come to rest, the second stops at once. SIGHUP reads server.toml again; SIGUSR1 logs
    everything and SIGUSR2 as the settings say.

    Exits with 0 when it was told to stop, with 1 if it cannot start or go on.
    """
    from server_kit.daemon.federation_home import Home
    from server_kit.daemon.lifeline import end_with
    from server_kit.daemon.supervisor import run as supervise
    from server_kit.dashboard.announcing import announced

    if lifeline is not None:
        end_with(lifeline)
    home = Home.open(directory)
    click.get_current_context().exit(supervise(home, announce=lambda: click.echo(announced(home))))


@server.command()
@directory_argument
@json_option
def dashboard(directory: Path, as_json: bool) -> None:
    """Print an address that opens the dashboard in a browser.

    The token in it lets whoever has it read what the dashboard shows; treat the address as a secret.

    Exits with 0, with 1 if the token cannot be used.
    """
    from server_kit.daemon.federation_home import Home
    from server_kit.dashboard.announcing import entrance

    address = entrance(Home.open(directory))
    show(as_json, lambda: {"format": "covey-server-dashboard-1", "address": address}, lambda: address)


@server.command()
@directory_argument
@json_option
def check(directory: Path, as_json: bool) -> None:
    """Find what would fail before it does.

    Looks at secrets, certificates, ports, clock, model, disk, policy, database and blobs, and reads all that is kept:
    pages, sealed records, updates, checkpoints.

    Exits with 0 if nothing is wrong, warnings included, with 1 if something is.
    """
    from server_kit.commands.check_report import check_json, check_text
    from server_kit.daemon.check import Verdict, check_home
    from server_kit.daemon.checks import CHECKS
    from server_kit.daemon.federation_home import Home

    findings = check_home(Home.open(directory), CHECKS)
    show(as_json, lambda: check_json(findings), lambda: check_text(findings))
    failed = sum(finding.verdict is Verdict.FAIL for finding in findings)
    if failed:
        raise click.ClickException(f"{failed} of {len(findings)} findings would stop the server; see to them first")


@server.command()
@directory_argument
@click.option("--once", is_flag=True, help="Show it once, on a terminal too.")
@json_option
def status(directory: Path, once: bool, as_json: bool) -> None:
    """Show processes, cohorts, devices, privacy spent; live on a terminal.

    Ctrl-C ends the live view.

    Exits with 0, or with 1 if the federation cannot be opened.
    """
    from server_kit.commands.opened import opened
    from server_kit.commands.texts import overview_text
    from server_kit.commands.watching_status import Watching, watch

    with opened(directory) as federation:
        if sys.stdout.isatty() and not (once or as_json):
            watch(federation)
            return
        found = Watching(federation).look()
    show(as_json, found.document, lambda: overview_text(found))


@server.command()
@directory_argument
@click.option("--all", "every", is_flag=True, help="Also those that have split or were merged.")
@json_option
def cohorts(directory: Path, every: bool, as_json: bool) -> None:
    """List cohorts: round, model, accuracy, what is under way.

    Exits with 0, or with 1 if the federation cannot be opened.
    """
    from server_kit.commands.listing import cohorts_json
    from server_kit.commands.opened import opened
    from server_kit.commands.overview import History, cohort_lines
    from server_kit.commands.texts import cohorts_text

    with opened(directory) as federation:
        store = federation.store
        chosen = store.all_cohorts() if every else store.cohorts()
        lines = cohort_lines(store, chosen, History().read_on(store), time.time())
    show(as_json, lambda: cohorts_json(lines), lambda: cohorts_text(lines) or "no cohort yet: no round was opened")


@server.command()
@directory_argument
@json_option
def devices(directory: Path, as_json: bool) -> None:
    """List devices: since when, last seen, releases, refusals.

    Exits with 0, or with 1 if the federation cannot be opened.
    """
    from server_kit.commands.listing import devices_json
    from server_kit.commands.opened import opened
    from server_kit.commands.texts import devices_text

    with opened(directory) as federation:
        found = federation.store.devices()
    show(
        as_json,
        lambda: devices_json(found),
        lambda: devices_text(found, time.time()) or "no device yet: covey server invite",
    )


@server.command()
@directory_argument
@click.option("--count", type=click.IntRange(1, 100_000), default=1, show_default=True, help="How many.")
@click.option(
    "--days",
    type=click.FloatRange(0, 3650, min_open=True),
    default=7.0,
    show_default=True,
    help="How long each is good.",
)
@json_option
def invite(directory: Path, count: int, days: float, as_json: bool) -> None:
    """Mint invitations, one line each; each lets one device in.

    An invitation is as secret as a password, and is shown only now.

    Exits with 0, or with 1 if the federation cannot be opened.
    """
    from server_kit.commands.inviting import invite as mint
    from server_kit.commands.opened import opened

    with opened(directory) as federation:
        invited = mint(federation, count, days)
    show(as_json, invited.document, invited.text)
    if not as_json:
        click.echo(invited.advice, err=True)


@server.command()
@directory_argument
@click.argument("device")
def revoke(directory: Path, device: str) -> None:
    """Keep DEVICE out from now on; its certificate no longer helps.

    DEVICE is its name, or the first digits of it. A running daemon cuts it off within seconds; what it sent stays.

    Exits with 0 if it is out, with 1 if there is no such device.
    """
    from server_kit.commands.opened import opened

    with opened(directory) as federation:
        record, changed = federation.revoke(device)
        running = federation.home.is_running()
    when = "within seconds" if running else "from the daemon's next start on"
    click.echo(f"{record.device} is kept out {when}" if changed else f"{record.device} was revoked before")


for command in (backup, export, receipts, rotate):
    server.add_command(command)
