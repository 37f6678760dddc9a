"""`covey privacy`: the commands of a privacy officer, each a thin shell over functions one can call.

Results go to standard output, as text or with --json as one JSON document; progress goes to standard error and
only to a terminal. What is checked and found wrong ends with 1, what was asked wrongly with 2.
"""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from privacy.budget import NeighbouringRelation, PrivacyUnit
from privacy.cli_parts import (
    check_can_write,
    chosen_mechanisms,
    json_option,
    state_argument,
    take_decision,
    verify_state,
    wrong_terms_are_wrong_usage,
)
from privacy.reporting.terminal import progress, show

if TYPE_CHECKING:
    from privacy.auditing.report import AuditReport
    from privacy.cli_parts import ToAudit

_RELATION = click.Choice([relation.value for relation in NeighbouringRelation])
_UNIT = click.Choice([unit.value for unit in PrivacyUnit])
_FILE = click.Path(exists=True, dir_okay=False, path_type=Path)


@click.group()
def privacy() -> None:
    """What was released, what it cost, and whether the record is intact."""


@privacy.command()
@state_argument()
@json_option
def status(state: Path, as_json: bool) -> None:
    """Show what a device has spent and what is left, and for whom.

    STATE is the directory of the device's ledger. Exits with 0, or with 1 if the ledger cannot be believed or read.
    """
    from privacy.reporting.ledger_view import read_ledger
    from privacy.reporting.status import status_json, status_text

    view = read_ledger(state)
    show(as_json, lambda: status_json(view), lambda: status_text(view))


@privacy.command()
@state_argument()
@click.option("--recompute", is_flag=True, help="Also replay all costs through our accountant and dp-accounting.")
@click.option("--device-key", metavar="HEX", help="The public key that the device enrolled with.")
@click.option(
    "--start-over", is_flag=True, help="Set a broken ledger aside and begin anew; what was spent stays spent."
)
@click.option("--reason", help="With --start-over: why; it stays in the ledger for good.")
@click.option("--key-file", type=_FILE, help="With --start-over: the file with the ledger's keys.")
@click.option("--epsilon", type=float, help="With --start-over, if the old budget is lost: its ε.")
@click.option("--delta", type=float, help="With --start-over, if the old budget is lost: its δ.")
@click.option("--training", type=_UNIT, help="With --start-over, if the old budget is lost: whom training protected.")
@click.option("--relation", type=_RELATION, help="With --start-over, if the old budget is lost: its neighbours.")
@json_option
def verify(
    state: Path, *, recompute: bool, device_key: str | None, start_over: bool, as_json: bool, **decision: Any
) -> None:
    """Check that no entry was altered, removed, moved or rolled back.

    STATE is the directory of the device's ledger. Exits with 0 if it is intact, with 1 at the first thing that is not,
    with 3 if --recompute lacks dp-accounting.
    """
    if start_over:
        take_decision(state, **decision)
    elif given := [name.replace("_", "-") for name, value in decision.items() if value is not None]:
        raise click.UsageError(f"--{given[0]} only goes with --start-over.")
    verify_state(state, device_key, recompute=recompute, as_json=as_json)


@privacy.command()
@state_argument()
@click.option("--all", "whole", is_flag=True, help="Show every release in the timeline, not only the newest 20.")
@json_option
def explain(state: Path, whole: bool, as_json: bool) -> None:
    """Tell in plain words what left a device, why, and what it means.

    STATE is the directory of the device's ledger. Exits with 0, or with 1 if the ledger cannot be believed or read.
    """
    from privacy.reporting.explanation import explain_json, explain_text
    from privacy.reporting.ledger_view import read_ledger

    view = read_ledger(state)
    show(as_json, lambda: explain_json(view), lambda: explain_text(view, whole=whole))


@privacy.command()
@click.option("--epsilon", type=float, help="The ε to keep; without --noise-multiplier, the noise for it is found.")
@click.option("--delta", type=float, required=True, help="The δ at which ε is stated, such as 1e-6.")
@click.option("--rounds", type=int, required=True, help="Rounds that one device takes part in, whoever chose it.")
@click.option("--unit", type=_UNIT, default="device", show_default=True, help="Whom the noise protects.")
@click.option("--relation", type=_RELATION, default="replace", show_default=True, help="Which neighbours look alike.")
@click.option("--histogram-epsilon", type=float, default=0.0, help="ε of one histogram beside the rounds.")
@click.option("--sampling-rate", type=float, help="With --unit record: the chance of a record to be in a batch.")
@click.option("--steps-per-round", type=int, help="With --unit record: steps of DP-SGD in a round.")
@click.option("--noise-multiplier", type=float, help="The noise to price: its deviation over the clip norm.")
@json_option
def plan(
    *, epsilon: float | None, delta: float, rounds: int, noise_multiplier: float | None, as_json: bool, **work: Any
) -> None:
    """Find the noise that a budget needs, or what a noise costs.

    Exits with 0, or with 1 if both are given and the noise does not keep the ε.
    """
    from privacy.accounting.planning import epsilon_for, noise_for
    from privacy.reporting.amounts import up
    from privacy.reporting.plans import plan_json, plan_text

    with wrong_terms_are_wrong_usage():
        if noise_multiplier is not None:
            found = epsilon_for(noise_multiplier, rounds, delta, **work)
        elif epsilon is not None:
            found = noise_for(epsilon, delta, rounds, **work)
        else:
            raise click.UsageError("Give --epsilon to find the noise, --noise-multiplier to find the ε, or both.")
        show(as_json, lambda: plan_json(found, epsilon), lambda: plan_text(found, epsilon))
    if epsilon is not None and found.epsilon > epsilon:
        raise click.ClickException(
            f"this plan costs ε={up(found.epsilon)}, more than ε={epsilon:g}; use more noise or fewer rounds; "
            "nothing was booked"
        )


@privacy.command()
@state_argument("states", metavar="STATE...", nargs=-1, required=True)
@click.option("--receipts", type=_FILE, help="What a server received, as JSON lines.")
@click.option(
    "-o", "--out", type=click.Path(dir_okay=False, path_type=Path), help="Write the report here, as one HTML page."
)
@json_option
def report(states: tuple[Path, ...], receipts: Path | None, out: Path | None, as_json: bool) -> None:
    """Report on a fleet: who spent what, and what does not reconcile.

    STATE... are directories of ledgers. Exits with 0 if every ledger is intact and reconciles with the receipts,
    with 1 if one does not, with 3 if --out lacks matplotlib.
    """
    from privacy.reporting.fleet import read_fleet
    from privacy.reporting.fleet_summary import fleet_json, fleet_text

    if out is not None:
        check_can_write(out)
    fleet = read_fleet(states, receipts, progress)
    show(as_json, lambda: fleet_json(fleet), lambda: fleet_text(fleet))
    if out is not None:
        from privacy.reporting.page import page_of

        out.write_text(page_of(fleet), encoding="utf-8")
        click.echo(f"The report is in {click.format_filename(out)}", err=True)
    if fleet.findings:
        raise click.ClickException(fleet.verdict)


@privacy.command()
@click.option(
    "--mechanism",
    "names",
    multiple=True,
    metavar="NAME",
    help="Built in, or package.module:factory or file.py:factory, whose code is run.  [default: label_histogram]",
)
@click.option("--all", "every", is_flag=True, help="Audit all built-in mechanisms.")
@click.option("--epsilon", type=float, help="What a built-in mechanism claims.  [default: 1]")
@click.option(
    "--delta", type=float, default=1e-6, show_default=True, help="Where ε of a claim that is not pure is read."
)
@click.option("--noise-multiplier", type=float, help="Noise of a Gaussian mechanism, in place of --epsilon.")
@click.option("--relation", type=_RELATION, help="Neighbours of a built-in mechanism.  [default: replace]")
@click.option("--trials", type=int, help="Runs for each of two neighbours.  [default: 20000, 3000 for dp_sgd]")
@click.option("--confidence", type=float, default=0.999, show_default=True, help="Of each lower bound.")
@json_option
def audit(
    *,
    names: tuple[str, ...],
    every: bool,
    delta: float,
    trials: int | None,
    confidence: float,
    as_json: bool,
    **terms: Any,
) -> None:
    """Try to catch a mechanism that spends more than it claims.

    Looks at how large the numbers of a release are, which values occur, what they end with and on which grid they lie.

    Exits with 0 if no evidence was found, which proves nothing, with 1 if a bound exceeds the claim,
    with 3 if SciPy is missing.
    """
    from privacy.auditing import audit as run_audit
    from privacy.reporting.audits import audit_json, audit_text

    def audited(asked: ToAudit) -> AuditReport:
        runs = asked.usual_trials if trials is None else trials
        with progress(f"auditing {asked.name}") as advance:
            found = run_audit(asked.mechanism, trials=runs, confidence=confidence, delta=delta, progress=advance)
        # By the name it was asked for: a dishonest mechanism calls itself like the honest one.
        return replace(found, mechanism=asked.name, left_out=(*found.left_out, *asked.left_out))

    with wrong_terms_are_wrong_usage():
        chosen = chosen_mechanisms(
            names, every, delta, {name: term for name, term in terms.items() if term is not None}
        )
        reports = [audited(asked) for asked in chosen]
    show(as_json, lambda: audit_json(reports), lambda: audit_text(reports))
    exceeding = ", ".join(report.mechanism for report in reports if report.exceeds_claim)
    if exceeding:
        raise click.ClickException(f"more is spent than is claimed by {exceeding}; release nothing through it")
