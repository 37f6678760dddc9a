"""What each kind of process puts away, and what it takes up again.

    a worker      its cohort's model, version and round, what aggregation and selection remember, refusals
    coordinator   the tree, what structure and selection remember about the whole and each cohort, claims, suggestions
    between them  what a step showed (`Folded`), since one makes it and the other learns from it

Who is out, what has arrived and what is known about each device is the store's to remember, because it changes
between checkpoints.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import fields, replace
from typing import TYPE_CHECKING, Any

from server_kit.checkpoints.packing import Packed, pack, unpack
from server_kit.cohort_tree import CohortTree
from server_kit.errors import CorruptCheckpoint
from server_kit.federation_state import FederationState
from server_kit.folding import Folded
from server_kit.interfaces import CheckIn, CohortId, RoundOutcome, Seen
from server_kit.round import CohortState

if TYPE_CHECKING:
    import torch

_OF_A_WORKER = ("cohort", "model", "version", "round", "aggregation", "selection")
_OF_THE_COORDINATOR = ("clustering", "selection")


def pack_cohort(state: CohortState) -> Packed:
    """What a worker keeps of its cohort."""
    kept = {name: getattr(state, name) for name in _OF_A_WORKER}
    return pack({**kept, "refusals": dict(state.refusals)})


def unpack_cohort(packed: Packed, device: torch.device | str = "cpu") -> CohortState:
    """The cohort between two rounds: nobody is asked, nothing has arrived, no structure is remembered."""
    with _reading():
        kept = unpack(packed, device)
        return CohortState(**{**kept, "refusals": Counter(kept["refusals"])})


def pack_federation(state: FederationState) -> Packed:
    """What the coordinator keeps: all that looks beyond one cohort, and what it remembers of each.

    Selection is in both: a worker tells it how a round went, the coordinator has it choose, and whoever is asked last
    is the coordinator.
    """
    return pack(
        {
            "children": {cohort: list(children) for cohort, children in state.tree.children.items()},
            "born": dict(state.tree.born),
            "memory": state.memory,
            "claims": {device: vars(claim) for device, claim in state.claims.items()},
            "suggested": state.suggested,
            "steps": state.steps,
            "sated": sorted(state.sated),
            "cohorts": {
                cohort: {name: getattr(each, name) for name in _OF_THE_COORDINATOR}
                for cohort, each in state.cohorts.items()
            },
        }
    )


def unpack_federation(
    packed: Packed, cohorts: Mapping[CohortId, CohortState], device: torch.device | str = "cpu"
) -> FederationState:
    """The federation of these cohorts, which get back what it remembers of them; nothing is out, no view is known."""
    with _reading():
        kept = unpack(packed, device)
        if kept["cohorts"].keys() != cohorts.keys():
            raise CorruptCheckpoint(
                "the federation's checkpoint is about other cohorts than there are; restore files and store from one "
                "backup; nothing was started"
            )
        return FederationState(
            CohortTree({cohort: tuple(children) for cohort, children in kept["children"].items()}, kept["born"]),
            {cohort: replace(cohorts[cohort], **remembered) for cohort, remembered in kept["cohorts"].items()},
            memory=kept["memory"],
            claims={device_id: CheckIn(**claim) for device_id, claim in kept["claims"].items()},
            suggested=kept["suggested"],
            steps=kept["steps"],
            sated=set(kept["sated"]),
        )


def pack_folded(folded: Folded) -> Packed:
    """What a worker tells the coordinator about a step; what devices claimed, the coordinator knows."""
    seen = _plain(folded.seen, without="claims")
    return pack({"outcome": _plain(folded.outcome), "seen": seen})


def unpack_folded(packed: Packed, device: torch.device | str = "cpu") -> Folded:
    with _reading():
        kept = unpack(packed, device)
        return Folded(RoundOutcome(**_tuples(kept["outcome"])), Seen(**_tuples(kept["seen"])))


def _plain(value: Any, without: str = "") -> dict[str, Any]:
    """The fields of a dataclass, tuples as lists."""
    named = ((each.name, getattr(value, each.name)) for each in fields(value) if each.name != without)
    return {name: list(held) if isinstance(held, tuple) else held for name, held in named}


def _tuples(kept: dict[str, Any]) -> dict[str, Any]:
    return {name: tuple(held) if isinstance(held, list) else held for name, held in kept.items()}


@contextmanager
def _reading() -> Iterator[None]:
    """Whatever a document lacks, or has beyond what it should, is one error."""
    try:
        yield
    except (AttributeError, IndexError, KeyError, RuntimeError, TypeError, ValueError) as error:
        raise CorruptCheckpoint(
            f"a checkpoint does not hold what it should ({type(error).__name__}); restore the one before or a backup; "
            "nothing of it was used"
        ) from error
