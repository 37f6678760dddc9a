"""Experiments: contenders compared on the same simulated fleets, from one TOML file (`covey simulate`)."""

from __future__ import annotations

from server_kit.simulation.experiments.experiment import Experiment, Unit
from server_kit.simulation.experiments.experiment_file import ExperimentFile
from server_kit.simulation.experiments.running import Results, run_experiment

__all__ = ["Experiment", "ExperimentFile", "Results", "Unit", "run_experiment"]
