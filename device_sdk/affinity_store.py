"""The affinity record at rest: sealed, changed by feedback alone, and missed without harm when it is lost.

With each cohort the last feedback is kept as the server sent it. Its `mac` means nothing to the device; shown with
the next request it lets the server see that it said so itself, without keeping it. A record that does not open is
reported as an event and counts as empty: the device explores again.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from functools import lru_cache
from typing import TYPE_CHECKING

from device_sdk.affinity import Affinity, AffinityRecord, CohortId, Feedback
from device_sdk.errors import FeedbackRefused, VaultBroken
from device_sdk.events import emit, error_name
from device_sdk.wire import messages

if TYPE_CHECKING:
    from device_sdk.vault import Vault

MOST_COHORTS = 4096
_LONGEST_MAC = 256
_MOST_CHANGE = 1e6
"""An honest server says at most 1, and rarely less than a few below 0; a comparison with NaN is false."""
_RECORD = "current"


@dataclass(frozen=True)
class _Kept:
    affinities: AffinityRecord = field(default_factory=AffinityRecord)
    evidence: Mapping[CohortId, messages.Feedback] = field(default_factory=dict)


class AffinityStore:
    """The affinities of one device at one server."""

    def __init__(self, vault: Vault, server: str) -> None:
        self._vault = vault
        self._table = vault.table(server, "affinity")

    def load(self) -> AffinityRecord:
        """The record; an empty one if there is none or it does not open."""
        return self._load().affinities

    def learn(self, feedback: messages.Feedback, leaves: Iterable[CohortId]) -> AffinityRecord:
        """Learn from a server's feedback, by Auxo's rules, and keep it as evidence; stale feedback changes nothing."""
        _check(feedback)
        with self._vault.changing():
            kept = self._load()
            before = kept.affinities
            said = Feedback(feedback.cohort, feedback.round, feedback.reward_change, feedback.sub_cluster)
            learned = before.learned(said, leaves, tree_distance)
            if learned is not before:
                self._save(learned, {**kept.evidence, feedback.cohort: feedback})
        return learned

    def follow(self, splits: Iterable[messages.Split]) -> AffinityRecord:
        """Let the children of cohorts that have split inherit what is known of their parents."""
        with self._vault.changing():
            kept = self._load()
            record = kept.affinities
            for split in splits:
                record = record.after_split(split.parent, split.children)
            if record != kept.affinities:
                self._save(record, kept.evidence)
        return record

    def claim(self, cohort: CohortId) -> messages.AffinityClaim:
        """What to say when asking for `cohort`: the reward there, and the nearest feedback that proves a history.

        A child that was never trained in is claimed by the feedback of the cohort it descends from.
        """
        kept = self._load()
        evidence = next((kept.evidence[known] for known in lineage(cohort) if known in kept.evidence), None)
        return messages.AffinityClaim(cohort, kept.affinities.reward(cohort), evidence)

    def _load(self) -> _Kept:
        try:
            document = self._table.get(_RECORD)
            return _Kept() if document is None else _parsed(document)
        except (VaultBroken, ValueError, LookupError, TypeError) as error:
            emit("affinity_unreadable", error=error_name(error))
            return _Kept()

    def _save(self, record: AffinityRecord, evidence: Mapping[CohortId, messages.Feedback]) -> None:
        known = record.affinities
        if len(known) > MOST_COHORTS:
            # A server that invents cohorts must not fill the disk: the longest untouched go first.
            newest = sorted(known, key=lambda cohort: known[cohort].round, reverse=True)[:MOST_COHORTS]
            emit("affinity_forgotten", cohorts=len(known) - len(newest))
            known = {cohort: known[cohort] for cohort in newest}
        self._table.put(_RECORD, _document(known, {c: said for c, said in evidence.items() if c in known}))


def tree_distance(one: CohortId, other: CohortId) -> int:
    """The greater depth of the two above their common ancestor, by their paths: siblings 1, nephew and uncle 2."""
    paths = one.split("."), other.split(".")
    common = 0
    while common < min(map(len, paths)) and paths[0][common] == paths[1][common]:
        common += 1
    return max(map(len, paths)) - max(1, common)


def lineage(cohort: CohortId) -> Iterable[CohortId]:
    """The cohort, and those that it descends from."""
    while cohort:
        yield cohort
        cohort = cohort.rpartition(".")[0]


def _check(feedback: messages.Feedback) -> None:
    change, sub_cluster = feedback.reward_change, feedback.sub_cluster
    sound = (
        (change is None or abs(change) <= _MOST_CHANGE)
        and (sub_cluster is None or sub_cluster >= 0)
        and feedback.round >= 0
        and len(feedback.mac) <= _LONGEST_MAC
    )
    if not sound:
        emit("feedback_refused", error=FeedbackRefused.__name__)
        raise FeedbackRefused("this feedback is out of bounds; the affinity record was left as it is")


def _document(known: Mapping[CohortId, Affinity], evidence: Mapping[CohortId, messages.Feedback]) -> bytes:
    rows = [[cohort, one.reward, one.sub_cluster, one.round] for cohort, one in known.items()]
    proofs = [[c, said.round, said.mac.hex(), said.reward_change, said.sub_cluster] for c, said in evidence.items()]
    return json.dumps({"affinities": rows, "evidence": proofs}, allow_nan=False).encode()


@lru_cache(maxsize=8)  # read for every check-in, and changed by feedback
def _parsed(document: bytes) -> _Kept:
    fields = json.loads(document)
    known = {cohort: Affinity(reward, sub, number) for cohort, reward, sub, number in fields["affinities"]}
    evidence = {
        cohort: messages.Feedback(cohort, number, bytes.fromhex(mac), change, sub)
        for cohort, number, mac, change, sub in fields["evidence"]
    }
    return _Kept(AffinityRecord(known), evidence)
