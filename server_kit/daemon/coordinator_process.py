"""The process of coordinator and gateway: `python -m server_kit.daemon.coordinator_process DIR`. All wiring is here."""

from __future__ import annotations

import logging
import math
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import replace
from typing import TYPE_CHECKING

import torch

from device_sdk.wire.messages import Question, UpdateHeader
from device_sdk.wire.one_heap import share_one_heap
from server_kit import event_log
from server_kit.config import check_policy
from server_kit.daemon.child import Child, read_again, run_child, worker_name
from server_kit.daemon.coordinator import Bells, Coordinator
from server_kit.daemon.device_reports import DeviceReports
from server_kit.daemon.enrolment import EnrolmentDesk, EnrolmentServer
from server_kit.daemon.evaluating import check_evaluation
from server_kit.daemon.event_loop import EventLoop
from server_kit.daemon.gateway import Gateway
from server_kit.daemon.gathering import Patience
from server_kit.daemon.handshakes import HandshakeWatch
from server_kit.daemon.intake_checks import IntakeChecks
from server_kit.daemon.invitations import Invitations
from server_kit.daemon.lifeline import LeaseKeeper
from server_kit.daemon.live_desk import Identity, LiveDesk
from server_kit.daemon.live_fleet import LiveFleet
from server_kit.daemon.model_shelf import ModelShelf
from server_kit.daemon.planning import plan_of, wanted_of
from server_kit.daemon.pretraining import Pretraining
from server_kit.daemon.promise import Promise
from server_kit.daemon.questions import Questions
from server_kit.daemon.refusal_counts import RefusalCounts
from server_kit.daemon.server_certificate import expires_at
from server_kit.daemon.spool import Spool
from server_kit.daemon.task_writer import TaskWriter
from server_kit.errors import InvalidSetting, StoreError
from server_kit.metrics import Meter
from server_kit.store.bell import ring

if TYPE_CHECKING:
    from device_sdk.wire.messages import DeviceId, ServerMessage
    from server_kit.daemon.authority import ServerCertificate
    from server_kit.daemon.federation_home import Home
    from server_kit.federation_state import Plan
    from server_kit.store.protocol import Arrival, Store

log = logging.getLogger("covey.server")

NAME = "coordinator"
_CERTIFICATE_LOOK_SECONDS = 3600.0
_COUNT_SECONDS = 0.5
_SWEEP_SECONDS = 1800.0


class Wiring:
    """Coordinator, desk and gateway of one federation, put together."""

    def __init__(self, child: Child, store: Store, plan: Plan, keeper: LeaseKeeper, loop: EventLoop) -> None:
        home = child.home
        self.home, self.child, self.store, self.plan, self.loop = home, child, store, plan, loop
        self.meter = Meter(NAME)
        self.authority = home.authority()
        self.models = ModelShelf(home.models)
        self.enrolment: EnrolmentServer | None = None
        self.questions = Questions(store, self.push)
        config, seal = home.config, home.feedback_seal()
        self.promise = Promise.of(config)
        checks = IntakeChecks(wanted_of(config, plan), config.guards.summaries_a_day)
        self.desk = LiveDesk(
            store,
            Identity(self.authority.server, home.signing_key()),
            seal,
            self.models,
            checks,
            wake=self.wake,
            arrived=self.arrived,
            on_silence=self.questions.settled,
            leniency=config.guards.leniency(),
            promise=self.promise,
            most_records=config.aggregation.most_records,
        )
        self.refusals = RefusalCounts(store)
        settings = config.guards.gateway()
        self.gateway = Gateway(
            self.desk,
            store.register,
            self.authority,
            Spool(home.spool),
            loop,
            settings=settings,
            prompt=self.desk,
            on_refusal=self.refusals.count,
        )
        bells = Bells(
            lambda cohort: ring(home.directory, worker_name(cohort)), lambda: ring(home.directory, "supervisor")
        )
        self.coordinator = Coordinator(
            store,
            home.open_checkpoints(),
            plan,
            self.desk,
            self.push,
            bells,
            self.meter,
            keeper.lease,
            _patience(home),
        )
        self.coordinator.loss_epsilon = str(config.privacy.evaluation_epsilon)
        deadline = config.federation.deadline_seconds
        writer = TaskWriter(plan.layout, self.models, config.privacy.terms(), deadline, config.training.steps)
        self.pretraining = Pretraining(
            store,
            writer,
            plan.layout,
            self.desk.presence.here,
            self.coordinator.hand_out,
            self.desk.give_up,
            deadline,
        )
        self.fleet = LiveFleet(
            store,
            self.desk,
            self.questions,
            writer,
            seal,
            config.privacy,
            self.coordinator.book,
            self.pretraining,
            self.coordinator.round_of,
        )

        if config.evaluation.validation is None:
            self.coordinator.reports = DeviceReports(
                store, self.push, str(config.privacy.evaluation_epsilon), config.evaluation.every, deadline
            )

    def push(self, device: DeviceId, message: ServerMessage) -> bool:
        if isinstance(message, Question) and not self.promise.allows_answer(message):
            return False
        if isinstance(message, Question):
            self.desk.checks.asking(message)
        return self.gateway.push(device, message)

    def wake(self) -> None:
        """A device has said something."""
        ring(self.home.directory, NAME)
        self.pretraining.notice()

    def arrived(self, arrival: Arrival) -> None:
        """A release is durable: whoever waits for it is woken."""
        header = arrival.header
        if isinstance(header, UpdateHeader):
            if self.desk.may_be_due(header):
                ring(self.home.directory, worker_name(header.cohort))
            if self.plan.strategy.is_asynchronous:
                ring(self.home.directory, NAME)
        else:
            self.questions.settled(arrival.device, header.subject)
        self.pretraining.notice()

    def show(self, certificate: ServerCertificate) -> None:
        """Show this certificate from the next handshake on."""
        self.gateway.show(certificate)
        if self.enrolment is not None:
            self.enrolment.show(certificate)
        self.expires(certificate)

    def expires(self, certificate: ServerCertificate) -> None:
        """Publish how long what we show is good."""
        self.meter.gauge("covey_certificate_expires_at_seconds", expires_at(certificate).timestamp())

    def reload(self) -> None:
        """Take up what may change while the server runs, and say what may not."""
        result = read_again(self.home)
        if result is None:
            return
        self.home = replace(self.home, config=result.config)
        self.desk.blacklist.leniency = result.config.guards.leniency()
        self.fleet.writer.deadline_seconds = result.config.federation.deadline_seconds
        self.plan = plan_of(self.home)
        self.coordinator.adopt(self.plan, _patience(self.home))
        log.info("settings were read again", extra={"changed": ", ".join(result.changed) or "nothing"})
        for refused in result.refused:
            log.warning("this setting cannot change while the server runs; restart it", extra={"setting": refused})


@contextmanager
def listening(wiring: Wiring) -> Iterator[None]:
    """Be open for devices and strangers."""
    home, listen = wiring.home, wiring.home.config.listen
    certificate = home.server_certificate()
    port = _opened(wiring.gateway, "gateway", listen.gateway, certificate)
    desk = EnrolmentDesk(
        wiring.authority,
        Invitations(wiring.store.invitations),
        wiring.store.register,
        home.signing_key().public_key,
        listen.gateway_address,
    )
    wiring.enrolment = enrolment = EnrolmentServer(
        desk, wiring.loop, home.config.enrolment.settings(), wiring.refusals.count
    )
    _opened(enrolment, "enrolment", listen.enrolment, certificate)
    wiring.expires(certificate)
    log.info("devices can connect", extra={"port": port})
    wiring.meter.fact("listening", value=True)
    try:
        yield
    finally:
        enrolment.close(grace_seconds=0)
        wiring.gateway.close(grace_seconds=2.0)
        wiring.desk.close()
        wiring.refusals.flush()


def _opened(server: Gateway | EnrolmentServer, door: str, address: str, certificate: ServerCertificate) -> int:
    try:
        return server.start(address, certificate)
    except (OSError, RuntimeError) as error:
        # gRPC's own words say no more.
        raise InvalidSetting(
            f"[listen] {door}: {address} cannot be listened at; another process has it, or it is not this machine's; "
            "nothing was started"
        ) from error


def coordinate(child: Child) -> None:
    """Run the federation until told to stop."""
    home = child.home
    share_one_heap()
    torch.set_num_threads(1)
    plan = plan_of(home)
    check_policy(home.config, plan.strategy)
    check_evaluation(home, plan.compute)
    with ExitStack() as stack:
        store = home.open_store()
        stack.callback(store.close)
        keeper = LeaseKeeper(store, NAME)
        stack.callback(keeper.close)
        stack.enter_context(HandshakeWatch(home.run / "native.log"))
        event_log.set_up(home.config.log, NAME)  # past the watch
        loop = stack.enter_context(EventLoop())
        wiring = Wiring(child, store, plan, keeper, loop)
        wiring.coordinator.begin(wiring.fleet, wiring.pretraining)
        ring(home.directory, "supervisor")
        stack.enter_context(listening(wiring))
        stack.enter_context(wiring.meter.publishing(home.run, every_seconds=1.0))
        _Loop(wiring, store.sweep).run()


class _Loop:
    """Everything that is done again and again."""

    def __init__(self, wiring: Wiring, sweep: Callable[[], int]) -> None:
        self._wiring, self._sweep_store = wiring, sweep
        self._shown_at = time.monotonic()
        self._counted_at = -math.inf
        self._swept_at = time.monotonic()

    def run(self) -> None:
        self._wiring.child.work(self._step, self._wiring.coordinator.next_look_seconds)

    def _step(self) -> None:
        wiring = self._wiring
        if wiring.child.signals.reload.is_set():
            wiring.child.signals.reload.clear()
            wiring.reload()
        if time.monotonic() - self._shown_at > _CERTIFICATE_LOOK_SECONDS:
            self._shown_at = time.monotonic()
            wiring.show(wiring.home.server_certificate())
        self._count_devices()
        self._sweep()
        wiring.meter.beat()
        wiring.refusals.flush()
        wiring.coordinator.step()

    def _sweep(self) -> None:
        """Now and then delete what processes that were killed have left of updates and checkpoints."""
        if time.monotonic() - self._swept_at < _SWEEP_SECONDS:
            return
        self._swept_at = time.monotonic()
        try:
            self._sweep_store()
        except StoreError as error:
            log.warning("could not sweep the store; trying again later", extra={"reason": error})

    def _count_devices(self) -> None:
        """Not at every step: with thousands of devices there are many, and each count takes a while."""
        if time.monotonic() - self._counted_at < _COUNT_SECONDS:
            return
        self._counted_at = time.monotonic()
        presence, meter = self._wiring.desk.presence, self._wiring.meter
        meter.gauge("covey_devices_connected", len(presence.here()))
        meter.gauge("covey_devices_waiting", presence.num_waiting())


def _patience(home: Home) -> Patience:
    federation = home.config.federation
    return Patience(federation.waiting_needed, rounds=federation.rounds)


if __name__ == "__main__":
    sys.exit(run_child(NAME, coordinate, sys.argv[1:]))
