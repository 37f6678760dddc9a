"""The parts that the commands of `covey privacy` share: arguments, and how terms become an error of usage."""

from __future__ import annotations

import importlib.util
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import click

from privacy.budget import NeighbouringRelation, PrivacyBudget, PrivacyUnit
from privacy.errors import InvalidTerms, LedgerError
from privacy.reporting.terminal import show

if TYPE_CHECKING:
    from privacy.release import Mechanism

Command = TypeVar("Command", bound=Callable[..., Any])


def state_argument(name: str = "state", **settings: Any) -> Callable[[Command], Command]:
    """The directory of a ledger; its database is taken for it."""
    return click.argument(
        name, type=click.Path(exists=True, path_type=Path), callback=lambda *given: _directories(given[-1]), **settings
    )


def json_option(command: Command) -> Command:
    """Print one JSON document instead of text."""
    return click.option("--json", "as_json", is_flag=True, help="Print the result as JSON.")(command)


@contextmanager
def wrong_terms_are_wrong_usage() -> Iterator[None]:
    """Terms that make no sense were typed by whoever called the command."""
    try:
        yield
    except InvalidTerms as error:
        raise click.UsageError(str(error)) from error


def verify_state(state: Path, device_key: str | None, *, recompute: bool, as_json: bool) -> None:
    """Check a ledger in full and show what was found; raise at the first thing that is wrong."""
    from privacy.reporting import verification
    from privacy.reporting.ledger_view import read_ledger

    key = _key(device_key)
    try:
        view = read_ledger(state, device_key=key, in_full=True)
    except LedgerError as error:
        broken = verification.verify_json(None, problem=str(error))
        if as_json:
            show(as_json, lambda: broken, str)
        raise
    again = verification.recompute(view) if recompute else None
    show(as_json, lambda: verification.verify_json(view, again), lambda: verification.verify_text(view, again))
    if again is not None and not again.stands:
        raise click.ClickException(again.fault)


def take_decision(
    state: Path,
    *,
    reason: str | None,
    key_file: Path | None,
    epsilon: float | None,
    delta: float | None,
    training: str | None,
    relation: str | None,
) -> None:
    """Start a broken ledger over, because a person with the device's keys says so."""
    from privacy.keys import LedgerKeys
    from privacy.ledger.recovery import start_over
    from privacy.reporting.verification import started_over_text

    if reason is None or key_file is None:
        raise click.UsageError("--start-over needs --reason and --key-file: a person decides, with the device's keys.")
    with wrong_terms_are_wrong_usage():
        budget = _lost_budget(epsilon, delta, training, relation)
        opened = start_over(state, LedgerKeys.from_file(key_file), reason, budget)
    click.echo(started_over_text(opened, reason), err=True)


@dataclass(frozen=True)
class ToAudit:
    """A mechanism under the name it was asked for, how often to run it unless told, and what cannot be tried on it."""

    name: str
    mechanism: Mechanism[Any]
    usual_trials: int
    left_out: tuple[str, ...] = ()


def chosen_mechanisms(names: Sequence[str], every: bool, delta: float, terms: dict[str, Any]) -> list[ToAudit]:
    """The mechanisms to audit: built in and shaped by `terms`, or somebody's own."""
    from privacy.auditing import BUILT_IN, load, usual_trials

    if every and names:
        raise click.UsageError("Give --mechanism or --all, not both.")
    own = [name for name in names if ":" in name]
    if own and terms:
        raise click.UsageError(f"{own[0]} sets its own terms; leave out --{next(iter(terms)).replace('_', '-')}.")
    if every and "noise_multiplier" in terms:
        raise click.UsageError("Not every built-in mechanism takes --noise-multiplier; name one with --mechanism.")
    chosen: list[ToAudit] = []
    for name in BUILT_IN if every else names or ("label_histogram",):
        if ":" in name:
            mechanism = load(_importable(name))
            chosen.append(ToAudit(name.rpartition(":")[2], mechanism, usual_trials(mechanism.name)))
        else:
            chosen += _built_in(name, delta, terms)
    return chosen


def _built_in(name: str, delta: float, terms: dict[str, Any]) -> list[ToAudit]:
    """As asked for, and under the extreme terms of its kind unless the noise was named."""
    from privacy.auditing import built_in, extremes_of, usual_trials

    trials = usual_trials(name)
    asked = built_in(name, delta=delta, **terms)
    if "noise_multiplier" in terms:
        return [ToAudit(name, asked, trials)]
    extremes = extremes_of(name, asked.cost.relation)
    others = [ToAudit(each, mechanism, trials) for each, mechanism in extremes.mechanisms.items()]
    return [ToAudit(name, asked, trials, extremes.refused), *others]


def check_can_write(out: Path) -> None:
    """Before reading a thousand ledgers, not after."""
    from privacy.reporting.plots import require_matplotlib

    require_matplotlib()
    if not out.parent.is_dir():
        raise click.UsageError(f"{out.parent} is not a directory, so the report cannot be written there.")


def _importable(name: str) -> str:
    """`module:factory` for a factory named by its file; others stay as they are.

    A folder such as examples/ may carry the name of something installed, and then has no module's name of its own.
    """
    file, _, factory = name.rpartition(":")
    if not file.endswith(".py"):
        return name
    module_name = f"audited_{Path(file).stem}"
    spec = importlib.util.spec_from_file_location(module_name, file)
    if spec is None or spec.loader is None or not Path(file).is_file():
        raise click.UsageError(f"there is no file {file}; nothing was run")
    module = importlib.util.module_from_spec(spec)
    sys.modules[module_name] = module
    try:
        spec.loader.exec_module(module)
    except Exception as error:
        raise click.UsageError(
            f"{file} could not be loaded ({type(error).__name__}: {error}); nothing was run"
        ) from error
    return f"{module_name}:{factory}"


def _directories(given: Any) -> Any:
    if isinstance(given, tuple):
        return tuple(map(_directories, given))
    if given.is_dir():
        return given
    if given.name == "ledger.db":
        return given.parent
    raise click.BadParameter(f"{given} is neither a directory with a ledger.db nor a ledger.db.")


def _key(text: str | None) -> bytes | None:
    try:
        key = None if text is None else bytes.fromhex(text)
    except ValueError:
        key = b""
    if key is not None and len(key) != 32:
        raise click.BadParameter("a device's public key is 64 hexadecimal digits.", param_hint="--device-key")
    return key


def _lost_budget(
    epsilon: float | None, delta: float | None, training: str | None, relation: str | None
) -> PrivacyBudget | None:
    if epsilon is None and delta is None and training is None and relation is None:
        return None
    if epsilon is None or delta is None:
        raise click.UsageError("A lost budget is given by --epsilon and --delta together.")
    return PrivacyBudget(
        epsilon,
        delta,
        PrivacyUnit(training or PrivacyUnit.DEVICE),
        NeighbouringRelation(relation or NeighbouringRelation.REPLACE),
    )
