"""Trainers that a device is run with: a quick one, a slow one, one that fails."""

from __future__ import annotations

import threading
import time

import numpy as np

from device_sdk.trainers import NumpyTrainer

INPUTS = np.linspace(0, 1, 60, dtype=np.float32).reshape(30, 2)
LABELS = np.arange(30) % 3


def trainer():
    return NumpyTrainer(INPUTS, LABELS)


class Slow:
    """A trainer that goes on until it is stopped, and says when it has begun."""

    def __init__(self):
        self.begun = threading.Event()

    def train(self, weights, settings, between_batches):
        while True:
            between_batches()
            self.begun.set()
            time.sleep(0.005)


class Raises:
    def train(self, weights, settings, between_batches):
        raise ValueError("record 17 holds 424242")


def run_until(device, federation, wanted, trainer):
    """Let the device run until the server has seen something; returns how many updates were sent."""
    run = device.start(trainer)
    try:
        federation.server.desk.wait_for(wanted)
    finally:
        assert run.stop(20)
    if run.error is not None:
        raise run.error
    return run.updates_sent
