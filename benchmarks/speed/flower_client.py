# mypy: disable-error-code="import-not-found, misc"
"""What a Flower client does; imported by name, so that Ray's workers find it."""

from __future__ import annotations

from functools import lru_cache
from pathlib import Path

import torch
from flwr.app import ArrayRecord, Context, Message, MetricRecord, RecordDict
from flwr.clientapp import ClientApp

from benchmarks.speed import workload


@lru_cache(maxsize=1)
def kept(folder: str, name: str) -> tuple[torch.Tensor, torch.Tensor, torch.nn.Module]:
    torch.set_num_threads(1)
    return *workload.read_data(Path(folder)), workload.build_model(name)


def client_app(folder: str, name: str, epochs: int) -> ClientApp:
    app = ClientApp()

    @app.train()
    def train(message: Message, context: Context) -> Message:
        inputs, labels, model = kept(folder, name)
        model.load_state_dict(message.content["arrays"].to_torch_state_dict())
        device = int(context.node_config["partition-id"])
        own = slice(device * workload.SAMPLES, (device + 1) * workload.SAMPLES)
        workload.train_locally(model, inputs[own], labels[own], epochs)
        content = RecordDict(
            {"arrays": ArrayRecord(model.state_dict()), "metrics": MetricRecord({"num-examples": workload.SAMPLES})}
        )
        return Message(content=content, reply_to=message)

    return app
