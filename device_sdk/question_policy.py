"""Which questions about models a device answers, and what answers may cost; decided before any server asks.

    [questions]
    accuracy = false
    epsilon_in_all = 1.0

Answers are paid from the budget's pure-ε share, so no flood of questions takes anything from training. Histograms
are paid from the same share: `epsilon_in_all` leaves them the rest.
"""

from __future__ import annotations

from dataclasses import dataclass

from privacy.exact import positive


@dataclass(frozen=True)
class QuestionPolicy:
    """By default a device tells which model suits it and how often one is right, while its budget lasts."""

    best_model: bool = True
    accuracy: bool = True
    loss: bool = False
    epsilon_per_answer: float | None = None
    """The most for one answer; None: what the budget has left."""
    epsilon_in_all: float | None = None
    """The most for all answers of a ledger, to whomever; None: what the budget has left."""
    most_download_bytes: int = 1 << 30
    """For the models of one question together; they are in memory one at a time."""
    most_answers_per_day: int = 10_000
    most_answers: int = 100_000
    """For one server, as long as the device stays enrolled there."""

    def __post_init__(self) -> None:
        for name in ("epsilon_per_answer", "epsilon_in_all"):
            if getattr(self, name) is not None:
                positive(getattr(self, name), name)
        for name in ("most_download_bytes", "most_answers_per_day", "most_answers"):
            positive(getattr(self, name), name)
