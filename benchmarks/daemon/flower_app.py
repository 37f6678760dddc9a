# mypy: disable-error-code="import-not-found, misc"
"""Flower's apps for a round without training, from its public interface: clients send back what they were sent."""

from __future__ import annotations

import json
import time
from pathlib import Path

import numpy as np
from flwr.app import ArrayRecord, Context, Message, MetricRecord, RecordDict
from flwr.clientapp import ClientApp
from flwr.serverapp import Grid, ServerApp
from flwr.serverapp.strategy import FedAvg

client = ClientApp()
server = ServerApp()


@client.train()
def train(message: Message, context: Context) -> Message:
    del context
    answer = RecordDict({"arrays": message.content["arrays"], "metrics": MetricRecord({"num-examples": 1})})
    return Message(content=answer, reply_to=message)


@server.main()
def main(grid: Grid, context: Context) -> None:
    settings, ended = context.run_config, []
    devices = settings["devices"]
    strategy = FedAvg(fraction_train=1.0, fraction_evaluate=0.0, min_train_nodes=devices, min_available_nodes=devices)
    strategy.start(
        grid=grid,
        initial_arrays=ArrayRecord([np.zeros(settings["weights"], np.float32)]),
        num_rounds=settings["rounds"],
        evaluate_fn=lambda _, __: ended.append(time.time()),
    )
    Path(settings["out"]).write_text(json.dumps(ended))
