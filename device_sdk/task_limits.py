"""How much one server may ask of a device, beside what it costs of the budget; decided before any server asks.

    [limits]
    most_steps = 500
    longest_task_seconds = 600

A budget alone bounds neither work nor the number of tasks: with enough noise a task costs next to nothing. What goes
beyond these limits is declined before a model is downloaded. That follows from the task, from these settings, and from
how many tasks this very server has given, so the server may hear it.
"""

from __future__ import annotations

from dataclasses import dataclass

from privacy.exact import positive


@dataclass(frozen=True)
class TaskLimits:
    """The defaults leave room for every plan that we know of, and none for a task that is meant to harm."""

    most_record_noise: float = 100.0
    """The largest noise multiplier of a step at record level."""
    most_record_grid_bits: int = 8
    """The finest grid at record level."""
    most_device_noise: float = 10_000.0
    """The same at device level, where a thousand cheap rounds may need much of it."""
    most_device_grid_bits: int = 24
    most_steps: int = 10_000
    most_epochs: int = 100
    longest_deadline_seconds: float = 86_400.0
    """A task or a question that may take longer is declined."""
    longest_task_seconds: float = 3_600.0
    """For one task or question; work that takes longer is stopped, and answered for without its data."""
    most_tasks_per_day: int = 10_000
    most_tasks: int = 100_000
    """For one server, as long as the device stays enrolled there."""

    def __post_init__(self) -> None:
        for name, value in vars(self).items():
            positive(value, name)
