"""The plots of an experiment, each as PNG and SVG; what there is nothing to show for is not drawn."""

from __future__ import annotations

from server_kit.simulation.experiments.plots.style import require_matplotlib
from server_kit.simulation.experiments.plots.write import write_plots

__all__ = ["require_matplotlib", "write_plots"]
