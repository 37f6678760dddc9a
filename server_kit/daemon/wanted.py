"""Which summaries this federation takes: one histogram of a device's records, and answers to its questions.

Everything follows from the settings, before a device has said anything. A header is held against it before a byte is
taken, so that what nobody asked for is never stored. Where `server.toml` names no histogram, devices may send one of
their own choice within bounds, and it is used only if it is the one that the preset reckons with.

These are plain values: a device can be told them.
"""

from __future__ import annotations

from dataclasses import dataclass
from fractions import Fraction
from typing import TYPE_CHECKING, Self

from device_sdk.wire.messages import ChoiceBy, ErrorCode
from device_sdk.wire.question_terms import mechanism_of
from device_sdk.wire.schema import MAX_MODELS
from device_sdk.wire.summary_terms import mechanism_in, payload_bytes
from privacy.budget import NeighbouringRelation
from privacy.exact import exact_epsilon
from privacy.mechanisms.bounded_scalar import BoundedScalar
from privacy.mechanisms.feature_histogram import FeatureHistogram
from privacy.mechanisms.label_histogram import LabelHistogram
from privacy.mechanisms.randomized_response import RandomizedResponse
from privacy.mechanisms.voted_choice import VotedChoice
from server_kit.daemon.questions import LOSS_BOUND, is_name
from server_kit.daemon.refusals import Misconduct

if TYPE_CHECKING:
    from device_sdk.wire.messages import Question, SummaryHeader
    from device_sdk.wire.summary_terms import Histogram, SummaryMechanism
    from server_kit.config import Privacy
    from server_kit.layout import Layout
    from server_kit.strategy import Strategy

UNWANTED = "unwanted summary"
"""Under which name the refusal of one is counted."""
MOST_SUMMARY_BYTES = 1 << 16
_MOST_FEATURES = 1_000_000
_LEAST_EPSILON = Fraction(1, 1000)


@dataclass(frozen=True)
class WantedHistogram:
    """The one histogram that a device may send."""

    mechanism: str
    """As the preset asks for it; empty: it asks for none."""
    labels: int
    epsilon: str
    bins: int = 0
    """Of features; 0 for labels alone."""
    is_named: bool = False
    """Whether the settings name it. If so, no other is taken."""

    def is_this(self, mechanism: Histogram) -> bool:
        """Whether this is the one, under either relation."""
        bins = mechanism.num_bins if isinstance(mechanism, FeatureHistogram) else 0
        wanted = (self.mechanism or LabelHistogram.name, self.labels, exact_epsilon(self.epsilon), self.bins)
        return wanted == (mechanism.name, mechanism.num_labels, mechanism.epsilon, bins)

    def __str__(self) -> str:
        bins = f" by {self.bins} bins" if self.bins else ""
        return f"a {self.mechanism or LabelHistogram.name} of {self.labels} labels{bins} at epsilon {self.epsilon}"


@dataclass(frozen=True)
class WantedAnswers:
    """How the server's questions are answered; a kind that it never asks is absent."""

    choice_by: ChoiceBy | None = None
    choice_epsilon: str = ""
    score_bounds: tuple[float, ...] = ()
    """Scores lie between 0 and one of these."""
    score_epsilon: str = ""

    def take(self, mechanism: SummaryMechanism) -> bool:
        """Whether an answer may be told so."""
        match mechanism:
            case RandomizedResponse() | VotedChoice():
                told_by = ChoiceBy.RESPONSE if isinstance(mechanism, RandomizedResponse) else ChoiceBy.VOTES
                return (
                    told_by is self.choice_by
                    and mechanism.num_choices <= MAX_MODELS
                    and mechanism.epsilon == exact_epsilon(self.choice_epsilon)
                )
            case BoundedScalar():
                return any(
                    mechanism == BoundedScalar(0.0, bound, self.score_epsilon, relation=mechanism.relation)
                    for bound in self.score_bounds
                )
            case _:
                return False


@dataclass(frozen=True)
class WantedSummaries:
    """All that is taken beside updates."""

    histogram: WantedHistogram
    answers: WantedAnswers
    most_labels: int
    """Of a histogram that the settings do not name: as many as there can be to tell apart."""
    most_epsilon: float
    most_bytes: int = MOST_SUMMARY_BYTES

    @classmethod
    def of(
        cls,
        privacy: Privacy,
        strategy: Strategy,
        layout: Layout,
        *,
        asks_for_accuracy: bool,
        most_epsilon: float,
        most_bytes: int = MOST_SUMMARY_BYTES,
    ) -> Self:
        """What these settings ask for."""
        wants = strategy.formation.wants
        chooses = wants.choices or getattr(strategy.matcher, "asks_for_choices", False)
        bounds = [1.0] * asks_for_accuracy + [LOSS_BOUND] * strategy.reports_loss
        histogram = WantedHistogram(
            wants.summary,
            privacy.histogram.labels,
            str(privacy.histogram.epsilon),
            wants.summary_bins,
            privacy.names_histogram,
        )
        answers = WantedAnswers(
            privacy.chosen_by if chooses else None,
            str(privacy.choice_epsilon),
            tuple(bounds),
            str(privacy.evaluation_epsilon),
        )
        return cls(histogram, answers, max(histogram.labels, _outputs(layout)), most_epsilon, most_bytes)

    def mechanism_of(self, header: SummaryHeader, question: Question | None) -> SummaryMechanism:
        """How an announced summary was noised, if it is one that is taken; `question` is the one that it answers.

        None: no question of this name is open. It may have been asked before this process began.
        """
        mechanism = mechanism_in(header)
        if mechanism is None or not self._takes(mechanism, header, question):
            raise Misconduct(
                UNWANTED, ErrorCode.NOT_ASKED, f"this server does not ask for this summary; {self}; nothing was taken"
            )
        size = payload_bytes(mechanism)
        if header.payload.size_bytes != size or size > self.most_bytes:
            most = min(size, self.most_bytes)
            raise Misconduct(
                "another size", ErrorCode.MALFORMED, f"a summary under these terms has {most} bytes; none were taken"
            )
        return mechanism

    def uses(self, mechanism: SummaryMechanism | None) -> bool:
        """Whether a histogram tells the preset what it reckons with; any other is kept and says nothing."""
        if not isinstance(mechanism, LabelHistogram | FeatureHistogram):
            return False
        return bool(self.histogram.mechanism) and self.histogram.is_this(mechanism)

    def __str__(self) -> str:
        if self.histogram.is_named or self.histogram.mechanism:
            return f"it asks for {self.histogram} and for answers to its own questions"
        return f"it takes a histogram of at most {self.most_labels} labels, and answers to its own questions"

    def _takes(self, mechanism: SummaryMechanism, header: SummaryHeader, question: Question | None) -> bool:
        if isinstance(mechanism, LabelHistogram | FeatureHistogram):
            return self.histogram.is_this(mechanism) if self.histogram.is_named else self._is_in_bounds(mechanism)
        if question is None:
            return is_name(header.subject) and self.answers.take(mechanism)
        return any(mechanism == mechanism_of(question, relation) for relation in NeighbouringRelation)

    def _is_in_bounds(self, mechanism: Histogram) -> bool:
        features = mechanism.features_per_record if isinstance(mechanism, FeatureHistogram) else 1
        return (
            mechanism.num_labels <= self.most_labels
            and features <= _MOST_FEATURES
            and _LEAST_EPSILON <= exact_epsilon(mechanism.epsilon) <= self.most_epsilon
        )


def _outputs(layout: Layout) -> int:
    """No model tells apart more labels than its widest layer has outputs."""
    return max((shape[0] for _, shape in layout.tensors if shape), default=1)
