"""Every fault of the pitfall list, planted in an otherwise honest mechanism or path, is found out.

The honest ones beside them pass in test_auditing.py and below. Audits are seeded and repeat exactly.
"""

from __future__ import annotations

from fractions import Fraction
from typing import Any

import pytest

from privacy.accounting import epsilon_spent
from privacy.auditing import audit
from privacy.auditing.ledger import audit_booking, audit_resends
from privacy.auditing.worlds import worlds_of
from privacy.budget import NeighbouringRelation, PrivacyBudget
from privacy.keys import LedgerKeys
from privacy.ledger import Ledger
from privacy.mechanisms import ClippedUpdate, LabelHistogram
from privacy.release import perform
from tests.privacy import mutants

UPDATE = {"weights": (4,)}
ADD_REMOVE = NeighbouringRelation.ADD_REMOVE

# mutant, runs for each neighbour, the ε that must at least be found, and what tells the neighbours apart (any if None)
FAULTS: dict[str, tuple[Any, int, float, str | None]] = {
    "noise x 0.8": (mutants.ScaledNoise(2, 1, factor=Fraction(4, 5)), 4_000, 1.0, None),
    "noise x 0.8, add or remove": (mutants.ScaledNoise(2, 1, ADD_REMOVE, factor=Fraction(4, 5)), 3_000, 1.0, None),
    "noise x 0.5": (mutants.ScaledNoise(2, 1, factor=Fraction(1, 2)), 1_500, 1.6, None),
    "replacement forgotten": (mutants.ForgetsReplacement(2, 1), 1_500, 1.6, None),
    "features forgotten": (mutants.ForgetsFeatures(2, 2, 64, Fraction(1, 10)), 1_500, 3.0, None),
    "noise on full bins only": (mutants.NoiseOnFullBinsOnly(2, 1), 1_500, 4.0, None),
    "absent labels omitted": (mutants.OmitsAbsentLabels(2, 1), 1_500, 4.0, None),
    "absent labels omitted, add or remove": (
        mutants.OmitsAbsentLabels(2, 1, ADD_REMOVE),
        1_500,
        4.0,
        "message length",
    ),
    "fixed seed": (mutants.FixedSeed(2, 1), 1_500, 4.0, None),
    "seed is the round": (mutants.SeedIsTheRound(2, 1), 1_500, 4.0, "beside a known release"),
    "same noise for two releases": (mutants.SameNoiseForTwoReleases(2, 1), 1_500, 4.0, "beside a known release"),
    "noise added in floats": (mutants.FloatNoise(1, 1, ADD_REMOVE), 4_000, 2.0, "trailing bits"),
    "error on unknown labels": (mutants.RaisesOnUnknownLabels(2, 1), 1_500, 4.0, "error or none"),
    "answers not remembered": (mutants.AnsweredAgain(2, 1), 1_500, 1.5, None),
    "a replaced vote forgotten": (mutants.ForgetsReplacedVotes(2, 1), 1_500, 1.2, None),
    "the winner told as it is": (mutants.TellsTheWinner(3, 1), 1_500, 4.0, None),
    "no clipping": (mutants.NoClip(UPDATE, 1, 2), 800, 15.0, None),
    "NaN passes": (mutants.NanPasses(UPDATE, 1, 2), 800, 8.0, "nothing or "),
    "each coordinate clipped": (mutants.ClipsEachCoordinate(UPDATE, 1, 2), 800, 6.0, None),
    "Gaussian noise x 0.8": (mutants.ScaledGaussian(UPDATE, 1, 2, factor=Fraction(4, 5)), 3_000, 4.887, None),
    "Gaussian noise x 0.5": (mutants.ScaledGaussian(UPDATE, 1, 2, factor=Fraction(1, 2)), 800, 6.0, None),
    "clipped after averaging": (mutants.ClipsTheAverage(), 2_000, 1.5, None),
    "batches in order, claimed as random": (mutants.TakesBatchesInOrder(), 3_000, 0.3, None),
    "amplification by a server's choice": (mutants.ClaimsAmplification(UPDATE, 1, 2), 2_000, 0.3, None),
}
# Slow ones that need no search for the pair that betrays them.
FIRST_WORLD_ONLY = {
    "Gaussian noise x 0.8",
    "Gaussian noise x 0.5",
    "no clipping",
    "each coordinate clipped",
    "amplification by a server's choice",
}


@pytest.mark.parametrize("fault", FAULTS)
def test_the_audit_finds(fault):
    mutant, trials, at_least, how = FAULTS[fault]
    worlds = worlds_of(mutant)[:1] if fault in FIRST_WORLD_ONLY else None
    report = audit(mutant, worlds, trials=trials, seed=1)
    assert report.exceeds_claim, str(report)
    assert report.lower_bound > at_least
    assert how is None or how in f"{report.world} {report.statistic}"


def test_amplification_by_a_servers_choice_claims_a_fraction_of_the_accounted_truth():
    claimed = epsilon_spent([mutants.ClaimsAmplification(UPDATE, 1, 2).cost], 1e-6)
    truth = epsilon_spent([ClippedUpdate(UPDATE, 1, 2).cost], 1e-6)
    assert claimed < truth / 3


@pytest.fixture
def ledger(tmp_path):
    with Ledger.open(tmp_path / "state", LedgerKeys.generate(), PrivacyBudget(100.0, 1e-6)) as opened:
        yield opened


@pytest.fixture
def entries_on_disk(tmp_path, ledger):
    def read():
        with Ledger.read(tmp_path / "state") as seen:
            return seen.entries()

    return read


HISTOGRAM = LabelHistogram(3, Fraction(1, 10))


def test_the_path_of_a_device_keeps_its_promises(ledger, entries_on_disk):
    assert audit_resends(ledger, HISTOGRAM, [0, 1, 1]).kept
    assert audit_booking(ledger, HISTOGRAM, [0, 1, 1], entries_on_disk=entries_on_disk).kept


@pytest.mark.parametrize("path", [mutants.forgets_its_answers, mutants.books_each_retry])
def test_a_path_that_answers_anew_is_found(ledger, path):
    finding = audit_resends(ledger, HISTOGRAM, [0, 1, 1], performs=path)
    assert not finding.kept
    assert "BROKEN" in str(finding)


def test_a_path_that_books_afterwards_is_found(ledger, entries_on_disk):
    finding = audit_booking(
        ledger, HISTOGRAM, [0, 1, 1], entries_on_disk=entries_on_disk, performs=mutants.books_afterwards
    )
    assert not finding.kept


def test_a_path_that_asks_another_mechanism_is_not_called_kept(ledger, entries_on_disk):
    def asks_another(ledger, mechanism, data, request, noise):
        return perform(ledger, HISTOGRAM, data, request, noise)

    finding = audit_booking(ledger, HISTOGRAM, [0], entries_on_disk=entries_on_disk, performs=asks_another)
    assert not finding.kept
