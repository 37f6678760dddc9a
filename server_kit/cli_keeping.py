"""Commands of `covey server` about what is kept: models and receipts as files, backups, keys."""

from __future__ import annotations

from collections import Counter
from pathlib import Path

import click

from server_kit.cli_parts import directory_argument

_FILE = click.Path(dir_okay=False, path_type=Path)


@click.command()
@directory_argument
@click.option("--cohort", required=True, metavar="ID", help="Whose model, such as 0 or 0.1.")
@click.option("-o", "--out", type=_FILE, required=True, help="Where to write it.")
def export(directory: Path, cohort: str, out: Path) -> None:
    """Write the newest model of a cohort as safetensors.

    Exits with 0 if it was written, with 1 if not.
    """
    from server_kit.commands.exporting import export_cohort
    from server_kit.commands.opened import opened

    with opened(directory) as federation:
        record = export_cohort(federation, cohort, out)
    click.echo(f"wrote version {record.version} of cohort {cohort} to {click.format_filename(out)}")


@click.command()
@directory_argument
@click.option("-o", "--out", type=_FILE, required=True, help="Where to write them.")
def receipts(directory: Path, out: Path) -> None:
    """Write the receipts of all releases, for covey privacy report.

    Exits with 0 if they were written, with 1 if not.
    """
    from server_kit.commands.exporting import export_receipts
    from server_kit.commands.opened import opened

    left_out: Counter[str] = Counter()
    with opened(directory) as federation:
        count = export_receipts(federation, out, lambda device: left_out.update([device]))
    click.echo(f"wrote {count} {'receipt' if count == 1 else 'receipts'} to {click.format_filename(out)}")
    for device, number in sorted(left_out.items()):
        click.echo(f"left out {number} of device {device}: they cannot be read", err=True)


@click.command()
@directory_argument
@click.option("--store-key", is_flag=True, help="Also replace secrets/store.key; no daemon may run.")
@click.option("--certificate", is_flag=True, help="Also give the server a new key and certificate.")
def rotate(directory: Path, store_key: bool, certificate: bool) -> None:
    """Seal what the store keeps under a new key, while the server runs.

    Exits with 0 if it was done, with 1 if not; stopped in the middle, run it again.
    """
    from server_kit.commands import rotating
    from server_kit.daemon.federation_home import Home

    home = Home.open(directory)
    if store_key:
        rotating.replace_store_key(home)
        click.echo("secrets/store.key is new; back it up, the old one opens nothing any more")
    if certificate:
        rotating.replace_certificate(home)
        click.echo("the server has a new certificate; devices need not do anything")
    click.echo(f"sealed {rotating.reseal(home)} values under a new key")


@click.command()
@directory_argument
@click.argument("target", type=click.Path(path_type=Path))
@click.option("--without-secrets", is_flag=True, help="Leave secrets/ out; keep a copy of it elsewhere.")
def backup(directory: Path, target: Path, without_secrets: bool) -> None:
    """Copy the federation to TARGET while it runs.

    The copy is itself a federation that can run. It holds secrets, unless told otherwise: keep it as safe as DIR.

    Exits with 0 if it was copied, with 1 if not; then nothing is left behind.
    """
    from server_kit.commands.backing_up import back_up
    from server_kit.daemon.federation_home import Home

    done = back_up(Home.open(directory), target, with_secrets=not without_secrets)
    what = "settings, secrets" if done.secrets else "settings"
    click.echo(f"copied {what}, database and {done.blobs} blobs to {click.format_filename(target)}")
