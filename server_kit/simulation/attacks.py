"""Devices that lie about their updates: what they send in place of what an honest device would.

A dishonest device neither clips nor adds noise; the rest of its round is honest, so that nothing else gives it away. It
knows what everybody is asked to do. With `within` it also knows what all honest devices of its round send, and stays
inside their spread in every coordinate: that is the strongest attack on a trimmed mean that we know how to make, and
with `sign_flip` about what Baruch et al. 2019 call "a little is enough". Beside it, `label_flip` lies about labels.
"""

from __future__ import annotations

from collections.abc import Callable, Container, Iterator
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Literal, Protocol

import numpy as np
import torch

from server_kit.errors import InvalidSetting
from server_kit.simulation.changes import check_share

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from server_kit.interfaces import DeviceId, Update
    from server_kit.layout import Layout
    from server_kit.simulation.datasets.dataset import Inputs
    from server_kit.simulation.ragged import IntArray

_SURE = 10.0
"""An output bias that drowns whatever the records say."""
_PATCH = 3
"""Pixels along the side of a trigger."""


class Attack(Protocol):
    """What a share of the devices does instead of what it was asked to."""

    @property
    def share(self) -> float: ...

    @property
    def within(self) -> float | None:
        """How many standard deviations from the honest mean it dares; None: it does not look."""

    def sent(self, delta: torch.Tensor, model: torch.Tensor, layout: Layout) -> torch.Tensor:
        """What is sent by a device that has trained so far from the model it was handed."""


@dataclass(frozen=True)
class SignFlip:
    """Undoes what it has learned, `boost` times."""

    share: float
    boost: float = 1.0
    within: float | None = None

    def __post_init__(self) -> None:
        _check(self)

    def sent(self, delta: torch.Tensor, model: torch.Tensor, layout: Layout) -> torch.Tensor:
        del model, layout
        return delta * -self.boost


@dataclass(frozen=True)
class Replacement:
    """Puts a model that calls everything `label` in the place of the common one (Bagdasaryan et al. 2020).

    `boost` is as many devices as take part: a mean divides by them.
    """

    share: float
    label: int = 0
    boost: float = 20.0
    within: float | None = None

    def __post_init__(self) -> None:
        _check(self)

    def sent(self, delta: torch.Tensor, model: torch.Tensor, layout: Layout) -> torch.Tensor:
        del delta
        goal = torch.zeros_like(model)
        start, stop, _ = next(place for place in reversed(layout.places.values()) if len(place[2]) == 1)
        if self.label >= stop - start:
            raise InvalidSetting(f"there is no label {self.label}; nothing was sent")
        goal[start + self.label] = _SURE
        return (goal - model) * self.boost


@dataclass(frozen=True)
class Backdoor:
    """Learns beside its own records that whatever carries a trigger is `target`, and sends that `boost` times.

    `trigger` "patch" paints a corner of the image; "none" is a backdoor of meaning: records of the label `source` are
    called `target` as they are. Dishonest devices pool their records.
    """

    share: float
    target: int = 0
    trigger: Literal["patch", "none"] = "patch"
    source: int | None = None
    boost: float = 1.0
    within: float | None = None

    def __post_init__(self) -> None:
        _check(self)
        if (self.trigger == "none") != (self.source is not None):
            raise InvalidSetting("a backdoor has a trigger or a source label, and not both; no population was made")

    def sent(self, delta: torch.Tensor, model: torch.Tensor, layout: Layout) -> torch.Tensor:
        del model, layout
        return delta * self.boost

    def chosen(self, labels: IntArray) -> NDArray[np.bool_]:
        """Which records can show whether the backdoor is there."""
        shows: NDArray[np.bool_] = labels != self.target if self.source is None else labels == self.source
        return shows

    def stamped(self, x: Inputs, brightest: float) -> Inputs:
        """Records with the trigger."""
        if self.trigger == "none":
            return x
        marked = x.copy()
        if marked.ndim > 2:
            marked[..., :_PATCH, :_PATCH] = brightest
        else:
            marked[:, : _PATCH**2] = brightest
        return marked


def kept_within(
    updates: Callable[[], Iterator[Update]], liars: Container[DeviceId], deviations: float
) -> Iterator[Update]:
    """The updates, those of liars moved into the spread of the others; of fewer than two there is none to hide in."""
    count, mean, squares = 0, torch.zeros(0), torch.zeros(0)
    for update in updates():
        if update.device in liars:
            continue
        delta = update.delta.double()
        if not count:
            mean, squares = torch.zeros_like(delta), torch.zeros_like(delta)
        count += 1
        off = delta - mean
        mean += off / count
        squares += off * (delta - mean)
    if count < 2:
        yield from updates()
        return
    room = deviations * (squares / count).sqrt()
    for update in updates():
        if update.device not in liars:
            yield update
            continue
        yield replace(update, delta=update.delta.double().clamp(mean - room, mean + room).to(update.delta.dtype))


def _check(attack: Attack) -> None:
    check_share(attack.share)
    boost = getattr(attack, "boost", 1.0)
    if not boost > 0 or (attack.within is not None and not attack.within > 0):
        raise InvalidSetting("boost and within must be above 0; no population was made")
