# mypy: disable-error-code="import-not-found, misc"
"""Flower's simulation, in an environment of its own: `python -m benchmarks.speed.run_flower DATA MODEL ROUNDS EPOCHS`.

Written from Flower's public interface (message apps, FedAvg, the Ray backend). Each Ray worker keeps the data
and one model; a client costs what Flower makes it cost.
"""

from __future__ import annotations

import sys

from flwr.app import ArrayRecord, Context
from flwr.serverapp import Grid, ServerApp
from flwr.serverapp.strategy import FedAvg
from flwr.simulation import run_simulation

from benchmarks.speed import workload
from benchmarks.speed.flower_client import client_app, kept


def server_app(clock: workload.Clock, folder: str, name: str, rounds: int) -> ServerApp:
    app = ServerApp()

    @app.main()
    def main(grid: Grid, context: Context) -> None:
        inputs, labels, model = kept(folder, name)

        def after_round(number: int, arrays: ArrayRecord) -> None:
            def loss() -> float:
                model.load_state_dict(arrays.to_torch_state_dict())
                return workload.loss_of(model, inputs, labels)

            if number > 0:
                clock.round_ended(loss)

        share = workload.PER_ROUND / workload.DEVICES
        strategy = FedAvg(fraction_train=share, fraction_evaluate=0.0, min_available_nodes=workload.DEVICES)
        start = ArrayRecord(workload.build_model(name).state_dict())
        strategy.start(grid=grid, initial_arrays=start, num_rounds=rounds + 1, evaluate_fn=after_round)
        clock.measurement().tell()  # while Ray's processes are there to be asked what they have spent

    return app


def main(folder: str, name: str, rounds: int, epochs: int) -> None:
    clock = workload.Clock("flower")
    run_simulation(
        server_app=server_app(clock, folder, name, rounds),
        client_app=client_app(folder, name, epochs),
        num_supernodes=workload.DEVICES,
        backend_config={"client_resources": {"num_cpus": 1, "num_gpus": 0.0}},
    )


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2], int(sys.argv[3]), int(sys.argv[4]))
