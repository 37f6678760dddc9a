"""All that the notebook has to do with Covey: join, learn together in the background, leave."""

from __future__ import annotations

from typing import Any

from device_sdk import BackgroundRun, Conditions, Device, LocalUpdate, PrivacyBudget
from device_sdk.trainers import NumpyTrainer
from examples.edge_app.notebook import TAGS, Notebook, on_mains


class Sharing:
    """A notebook's part in a federation. It is also the trainer: each round it reads the notes anew."""

    def __init__(self, notebook: Notebook, server: str) -> None:
        keys = {"store": "file", "file": notebook.folder / "covey.key"}  # on a phone: {"store": "os"}
        budget = PrivacyBudget(epsilon=8, delta=1e-6)  # for life, whatever the server asks
        conditions = Conditions(charging=on_mains)
        state = notebook.folder / "covey"
        self.device = Device.open(state, server=server, budget=budget, conditions=conditions, keys=keys)
        self._notebook = notebook
        self.run: BackgroundRun | None = None

    def join(self, invitation: str) -> None:
        self.device.enrol(invitation)
        _, tags = self._notebook.examples()
        self.device.share_label_histogram(tags, num_labels=len(TAGS), epsilon=0.5, timeout_seconds=30)

    def start(self) -> None:
        self.run = self.device.start(self)

    def train(self, weights: Any, settings: Any, between_batches: Any) -> LocalUpdate:
        self._notebook.keep_model(weights)  # what all of them have learned so far
        return NumpyTrainer(*self._notebook.examples()).train(weights, settings, between_batches)

    def leave(self) -> None:
        if self.run is not None:
            self.run.stop()
        self.device.leave()
