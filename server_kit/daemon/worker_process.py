"""The process of one cohort's worker: `python -m server_kit.daemon.worker_process COHORT DIR`."""

from __future__ import annotations

import logging
import sys
from contextlib import closing
from dataclasses import replace

import torch

from server_kit.daemon.child import Child, read_again, run_child, worker_name
from server_kit.daemon.cohort_worker import CohortWorker
from server_kit.daemon.evaluating import evaluator
from server_kit.daemon.lifeline import LeaseKeeper
from server_kit.daemon.model_shelf import ModelShelf
from server_kit.daemon.planning import plan_of
from server_kit.metrics import Meter
from server_kit.store.bell import ring

log = logging.getLogger("covey.server")


def work(child: Child, cohort: str) -> None:
    """Work for a cohort until it trains no more, or we are told to stop."""
    home = child.home
    torch.set_num_threads(1)
    with closing(home.open_store()) as store:
        plan, keeper, meter = plan_of(home), LeaseKeeper(store, child.name), Meter(child.name)
        worker = CohortWorker(
            cohort,
            store,
            home.open_checkpoints(),
            ModelShelf(home.models),
            plan,
            keeper.lease,
            meter,
            evaluator(home, plan.compute),
            loss_epsilon=str(home.config.privacy.evaluation_epsilon),
        )

        def step() -> None:
            meter.beat()
            if child.signals.reload.is_set():
                child.signals.reload.clear()
                if (result := read_again(home)) is not None:
                    worker.plan = plan_of(replace(home, config=result.config))
            if worker.step():
                ring(home.directory, "coordinator")
            elif worker.record() is None:
                log.info("this cohort trains no more", extra={"cohort": cohort})
                child.signals.stop.set()

        log.info("a worker has begun", extra={"cohort": cohort})
        with meter.publishing(home.run):
            child.work(step, worker.next_look_seconds)
        keeper.close()


def main(arguments: list[str]) -> int:
    cohort, *rest = arguments
    return run_child(worker_name(cohort), lambda child: work(child, cohort), rest)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
