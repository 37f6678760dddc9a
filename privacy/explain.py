"""Plain words for what left a device: what it was, how it was hidden, whom that protects, and what it cost.

Written for the person whose data they are. A technical word stands here only beside its meaning, and
nothing is promised that the mechanism does not promise.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from privacy.budget import NeighbouringRelation, PrivacyUnit
from privacy.reporting.amounts import counted, moment, odds_percent, one_in, printable, up
from privacy.reporting.ledger_view import Booking, LedgerView
from privacy.reporting.spending import epsilon_so_far, epsilon_together, promise_unit


@dataclass(frozen=True)
class Words:
    """How one kind of release is told."""

    singular: str
    plural: str
    what: str
    hidden_by: str


_WORDS = {
    "label_histogram": Words(
        "label histogram",
        "label histograms",
        "how many of your records carry each label",
        "random noise was added to every count, also to those of labels that do not occur on this device",
    ),
    "feature_histogram": Words(
        "feature histogram",
        "feature histograms",
        "for each label, how the values of your records are spread over a few broad bins",
        "random noise was added to every count of the table, whether or not the bin was empty",
    ),
    "clipped_update": Words(
        "model update",
        "model updates",
        "what training on this device would change in the shared model",
        "the whole change was cut to a fixed size, and random noise was added to every number of it",
    ),
    "dp_sgd": Words(
        "privately trained update",
        "privately trained updates",
        "what training on this device changed in the shared model",
        "each step of the training used a secret random part of the records, cut each record's influence to a fixed "
        "size and added random noise",
    ),
    "discrete_gaussian": Words(
        "noised sketch",
        "noised sketches",
        "a short list of numbers that summarises this device's data or its training",
        "the list was cut to a fixed size, and random noise was added to every number of it",
    ),
    "randomized_response": Words(
        "randomised answer",
        "randomised answers",
        "one choice out of a fixed list, such as the group that suits this device best",
        "by the throw of dice the device told either the truth or one of the other choices",
    ),
    "voted_choice": Words(
        "voted choice",
        "voted choices",
        "one choice out of a fixed list, the one that suits most records of this device",
        "each record had one vote, and by the throw of dice a choice with fewer votes could be told instead",
    ),
    "bounded_scalar": Words(
        "noised number",
        "noised numbers",
        "a single number, such as how well the model does on this device",
        "the number was limited to a fixed range, and random noise of the size of that range was added",
    ),
}


def in_words(mechanism: str) -> tuple[str, str]:
    """What a mechanism's releases are called, one and many; an unknown one keeps its name."""
    words = _WORDS.get(mechanism)
    name = printable(mechanism)
    return (words.singular, words.plural) if words else (f"{name} release", f"{name} releases")


def introduction(view: LedgerView) -> list[str]:
    """What is counted here, and how to read the numbers."""
    budget = view.budget
    reading = (
        "The Greek letter ε (epsilon) measures how much a release can reveal. ε=0 reveals nothing. Somebody who thinks "
        f"{_claim(view)} as likely as not can, after a release of ε=0.5, be at most "
        f"{odds_percent(0.5)} sure of it; after ε=1 {odds_percent(1)}, after ε=3 {odds_percent(3)}. This is the worst "
        "case: it holds for somebody who knows everything else."
    )
    limit = (
        f"This device may reveal ε={budget.epsilon:g} in its life, to all servers together; then it declines. The "
        f"promise may fail with a probability δ (delta) of {budget.delta:g}: {one_in(budget.delta)}."
    )
    return [reading, limit, *_earlier(view)]


def nothing_yet(view: LedgerView) -> str:
    """For a ledger without a booking of its own."""
    if view.started_over:
        return "Nothing was released since the ledger was started over; what was spent before still counts."
    return "Nothing has left this device yet: the whole budget is left."


def together(view: LedgerView) -> str:
    """What all releases mean together, for a person."""
    epsilon = epsilon_so_far(view)
    return (
        f"All of this together comes to ε={up(epsilon)}: somebody who thought {_claim(view)} as likely as not can "
        f"be at most {odds_percent(epsilon)} sure of it now. The figures of single releases do not add up to it, "
        "because their noise partly hides them behind one another."
    )


def paragraphs(view: LedgerView) -> list[tuple[str, str]]:
    """A title and a paragraph for each kind of release, in the order of their first appearance."""
    kinds: dict[tuple[str, PrivacyUnit], list[Booking]] = {}
    for booking in view.bookings:
        kinds.setdefault((booking.mechanism, booking.cost.unit), []).append(booking)
    return [_one_kind(view, mechanism, unit, bookings) for (mechanism, unit), bookings in kinds.items()]


def _one_kind(view: LedgerView, mechanism: str, unit: PrivacyUnit, bookings: Sequence[Booking]) -> tuple[str, str]:
    made = [booking for booking in bookings if booking.release is not None]
    singular, plural = in_words(mechanism)
    sentences = [_what(mechanism), _when(bookings, made), _why(bookings), _price(view, bookings), _who(unit)]
    if len(made) < len(bookings):
        missing = len(bookings) - len(made)
        sentences.append(
            f"{counted(missing, 'of these was', 'of these were')} booked, then interrupted: nothing left the device, "
            "but it is counted as if it had."
        )
    if any(booking.seeded for booking in made):
        sentences.append("Some were noised from a seed, for a test; such releases may never leave the device.")
    return counted(len(bookings), singular, plural), " ".join(sentences)


def _what(mechanism: str) -> str:
    words = _WORDS.get(mechanism)
    if words is None:
        return (
            "This version of Covey has no words for this kind of release; whoever wrote it can say what it contains. "
            "Its cost is counted like any other."
        )
    return f"What left: {words.what}. It did not leave as it is: {words.hidden_by}."


def _when(bookings: Sequence[Booking], made: Sequence[Booking]) -> str:
    first, last = moment(bookings[0].at), moment(bookings[-1].at)
    when = f"on {first} UTC" if first == last else f"between {first} and {last} UTC"
    return f"{counted(len(made), 'release was', 'releases were')} made {when}."


def _why(bookings: Sequence[Booking]) -> str:
    servers = _listed({printable(booking.server) for booking in bookings})
    purposes = _listed({printable(booking.purpose) for booking in bookings})
    return f"Asked for by {servers}, for: {purposes}."


def _price(view: LedgerView, bookings: Sequence[Booking]) -> str:
    each = sorted({epsilon_together(view, [booking]) for booking in bookings})
    price = f"ε={up(each[0])}" if len(each) == 1 else f"ε={up(each[0])} to {up(each[-1])}"
    if len(bookings) == 1:
        return f"It cost {price}: at most {odds_percent(each[0])} sure instead of 50 %."
    all_of_them = epsilon_together(view, bookings)
    return (
        f"Each cost {price}; all of them together ε={up(all_of_them)}: at most {odds_percent(all_of_them)} sure "
        "instead of 50 %."
    )


def _who(unit: PrivacyUnit) -> str:
    if unit is PrivacyUnit.RECORD:
        return (
            "This hides any single record of yours. It does not hide what your records have in common: that this "
            "device holds mostly one label, say, can show."
        )
    return "This hides everything that the device holds, not only single records."


def _earlier(view: LedgerView) -> list[str]:
    """What is known of the time before a person started the ledger over."""
    if not view.started_over:
        return []
    reasons = _listed({printable(decision.reason) for decision in view.decisions} or {"no reason was recorded"})
    words = (
        f"The record of this device was broken and was started over at entry {view.first} ({reasons}). What left "
        "before cannot be told in detail any more. Its cost is known as a sum, counts, and is part of every total here."
    )
    return [words]


def _claim(view: LedgerView) -> str:
    """What somebody may guess about, and the budget limits how well."""
    if promise_unit(view.status.limits) is PrivacyUnit.RECORD:
        return "a claim about one of your records"
    if view.budget.relation is NeighbouringRelation.REPLACE:
        return "a claim about what this device holds"
    return "the claim that this device took part"


def _listed(names: set[str]) -> str:
    *most, last = sorted(names)
    return f"{', '.join(most)} and {last}" if most else last
