"""Where devices are trained: on a graphics card if there is one, else on the processor.

Models and records go there, updates and scores come back to main memory: nobody outside this package needs to
know. Random draws are made on the processor, so that they are the same everywhere.
"""

from __future__ import annotations

from typing import Literal

import torch

from server_kit.errors import InvalidSetting

Hardware = Literal["auto", "cpu", "cuda"]


def torch_device(hardware: Hardware) -> torch.device:
    """The device of that name; "auto" is a graphics card where torch finds one."""
    if hardware not in {"auto", "cpu", "cuda"}:
        raise InvalidSetting(f"device is 'auto', 'cpu' or 'cuda', not {hardware!r}; nothing was trained")
    found = torch.cuda.is_available()
    if hardware == "cuda" and not found:
        raise InvalidSetting(
            "device is 'cuda', but torch finds no graphics card here; choose 'auto' or 'cpu'; nothing was trained"
        )
    return torch.device("cuda" if found and hardware != "cpu" else "cpu")
