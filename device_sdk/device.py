"""The facade that an app embeds: open a device, enrol it once, let it take part, leave.

    device = Device.open("state", server="fl.example.com:8443", budget=PrivacyBudget(epsilon=8, delta=1e-6))
    device.enrol(invitation)
    device.share_label_histogram(labels, num_labels=10, epsilon=0.5)
    device.run(trainer)

Blocking calls take `timeout_seconds`, and `stop` ends them from any thread. One call at a time works for a device,
in one process. Whatever ends it, the next one goes on where it was: that costs time, never budget or data.
"""

from __future__ import annotations

import threading
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Self

from device_sdk.conditions import Conditions
from device_sdk.config import DeviceConfig
from device_sdk.errors import AlreadyEnrolled, NotEnrolled
from device_sdk.failures import Failures
from device_sdk.identity import Identity, Standing
from device_sdk.kept import Kept
from device_sdk.ledger_access import open_ledger
from device_sdk.policy import Abilities, Policy
from device_sdk.run_lock import running
from device_sdk.state import RoundJournal
from device_sdk.vault import Vault
from device_sdk.wire.cancelling import Deadline, Stop
from device_sdk.wire.errors import Cancelled, DeadlinePassed, InvalidInvitation, WireError
from device_sdk.wire.invitation import Address, Invitation
from device_sdk.wire.messages import GoodbyeReason

if TYPE_CHECKING:
    from device_sdk.background import BackgroundRun
    from device_sdk.runtime import Runtime
    from device_sdk.trainers.protocol import Evaluate, RecordLosses, Trainer
    from device_sdk.trainers.task_in_hand import TaskInHand
    from device_sdk.wire.channel import Channel
    from privacy.budget import PrivacyBudget
    from privacy.exact import Number
    from privacy.ledger import Ledger, LedgerStatus
    from privacy.release import Mechanism

_GOODBYE_SECONDS = 5.0
_CLOSING_SECONDS = 30.0
_NOT_YET = 0
"""In place of the thread that will make a call; no thread has this number."""


@dataclass(frozen=True)
class DeviceStatus:
    """Where a device stands; for its owner, not for the wire."""

    server: str
    standing: Standing
    device: str | None
    """Its name at the server; none before enrolment."""
    rounds: dict[str, int]
    """How many rounds are in progress, by how far they have come."""
    ledger: LedgerStatus


class Device:
    """One device at one server. Close it, or use it in a `with` block."""

    def __init__(
        self, config: DeviceConfig, vault: Vault, ledger: Ledger, policy: Policy, conditions: Conditions
    ) -> None:
        self._config, self._vault, self._ledger = config, vault, ledger
        self._policy, self._conditions = policy, conditions
        self._failures = Failures()
        self._calls: dict[Stop, int] = {}
        """What is under way, and in which thread."""
        self._changed = threading.Condition()

    @classmethod
    def open(
        cls,
        state: str | Path,
        *,
        server: str,
        budget: PrivacyBudget,
        policy: Policy | None = None,
        conditions: Conditions | None = None,
        passphrase: Callable[[], str] | None = None,
        **settings: Any,
    ) -> Self:
        """The device kept in the directory `state`; a new one, with this budget for life, where there is none.

        `settings` are those of `DeviceConfig`, e.g. `keys={"store": "file", "file": "device.key"}`.
        """
        config = DeviceConfig.of(server=server, state=Path(state), budget=budget, **settings)
        return cls.of(config, policy=policy, conditions=conditions, passphrase=passphrase)

    @classmethod
    def of(
        cls,
        config: DeviceConfig,
        *,
        policy: Policy | None = None,
        conditions: Conditions | None = None,
        passphrase: Callable[[], str] | None = None,
    ) -> Self:
        """The device that a configuration describes."""
        vault = Vault.open(config.state, config.keys.open(passphrase))
        try:
            ledger = open_ledger(vault, config.budget).shown_at(config.server)
        except BaseException:
            vault.close()
            raise
        policy = policy or Policy(
            most_model_bytes=config.rounds.most_model_bytes, limits=config.limits, questions=config.questions
        )
        conditions = conditions or Conditions(least_battery_level=config.conditions.least_battery_level)
        return cls(config, vault, ledger, policy, conditions)

    def enrol(self, invitation: str, *, timeout_seconds: float = 30.0) -> None:
        """Join the federation that an invitation is for. The keys are made here and never leave the device."""
        from device_sdk.wire.channel import enrol

        asked = Invitation.from_text(invitation)
        if asked.address.host != Address.from_text(self._config.server).host:
            raise InvalidInvitation(
                f"this invitation is to {asked.address.host}, and this device was opened for {self._config.server}; "
                "open it for that server, or ask for another invitation; nothing was sent"
            )
        with self._calling(timeout_seconds) as stop:
            identity = self._identity()
            if identity.standing in {Standing.ENROLLED, Standing.RENEWAL_DUE}:
                raise AlreadyEnrolled(
                    f"this device is enrolled at {self._config.server}; leave first; nothing was sent"
                )
            keys = (identity.signing_key, identity.ledger_key)
            reply = enrol(asked, identity.certificate_request, *keys, timeout_seconds=timeout_seconds, stop=stop)
            identity.enrol(reply)

    def share_label_histogram(
        self,
        labels: Any,
        *,
        num_labels: int,
        epsilon: Number,
        subject: str = "1",
        timeout_seconds: float | None = None,
    ) -> bool:
        """Tell the server how often each label occurs, noised and paid for once for each `subject`.

        `subject` names what the histogram is about, e.g. a month: chosen by schedule, never by looking at data. False
        if that was shared before; nothing is noised or paid for twice.
        """
        from privacy.mechanisms import LabelHistogram

        mechanism = LabelHistogram(num_labels, epsilon, self._config.budget.relation)
        return self._share(mechanism, labels, (), subject, timeout_seconds)

    def share_feature_histogram(
        self,
        features: Any,
        labels: Any,
        *,
        num_labels: int,
        num_bins: int,
        epsilon: Number,
        low: float = 0.0,
        high: float = 1.0,
        features_per_record: int,
        subject: str = "1",
        timeout_seconds: float | None = None,
    ) -> bool:
        """The same for one table of labels by bins, in which every record has `features_per_record` values."""
        import numpy as np

        from privacy.mechanisms import FeatureHistogram

        mechanism = FeatureHistogram(
            num_labels, num_bins, features_per_record, epsilon, low, high, self._config.budget.relation
        )
        no_records = (np.empty((0, features_per_record)), np.empty(0, np.int64))
        return self._share(mechanism, (features, labels), no_records, subject, timeout_seconds)

    def tasks(
        self,
        *,
        rounds: int | None = None,
        timeout_seconds: float | None = None,
        evaluate: Evaluate | None = None,
        record_losses: RecordLosses | None = None,
    ) -> Iterator[TaskInHand]:
        """Tasks for a training loop of the app's own; one that is neither submitted nor declined is declined.

        `evaluate(weights, between_batches)` says how a model does on the app's records, as an `Evaluation`. With it
        the device answers the server's questions about models, noised and paid for, as far as its policy allows; for
        a model that is not the app's it raises `ModelMismatch`. `record_losses(weights, between_batches)` says the same
        for each record, in one order (`RecordEvaluator`): then records can vote for models.
        """
        with self._runtime(timeout_seconds) as runtime:
            yield from runtime.tasks(Abilities(evaluate=evaluate, record_losses=record_losses), rounds)

    def run(self, trainer: Trainer, *, rounds: int | None = None, timeout_seconds: float | None = None) -> int:
        """Take part with `trainer`, until stopped, for a time or some rounds; returns how many updates were sent.

        A trainer that is an `Evaluator` also answers questions about models, as far as the policy allows. What the
        app's own code or data do wrong does not end the run, for the server would notice: see `failures`.
        """
        with self._runtime(timeout_seconds) as runtime:
            return runtime.run(trainer, rounds)

    def start(self, trainer: Trainer, *, rounds: int | None = None) -> BackgroundRun:
        """The same in a thread of its own."""
        from device_sdk.background import BackgroundRun

        stop = Stop()
        with self._changed:
            self._calls[stop] = _NOT_YET  # so that `stop` and `close` reach a thread that has not begun

        def run() -> int:
            with self._runtime(None, stop) as runtime:
                return runtime.run(trainer, rounds)

        return BackgroundRun(run, stop)

    def stop(self) -> None:
        """End every blocking call of this device, from any thread; training ends with its batch."""
        with self._changed:
            calls = list(self._calls)
        for call in calls:
            call.set()

    def status(self) -> DeviceStatus:
        """Where the device stands; needs no connection."""
        known = self._config.server in self._vault.servers()
        identity = self._identity() if known else None
        rounds = RoundJournal(self._vault, self._ledger, self._config.server).rounds() if known else []
        return DeviceStatus(
            server=self._config.server,
            standing=Standing.NEW if identity is None else identity.standing,
            device=None if identity is None or identity.enrolment is None else identity.enrolment.device,
            rounds=dict(Counter(entry.phase.value for entry in rounds)),
            ledger=self._ledger.status(),
        )

    def leave(self, *, timeout_seconds: float = 10.0) -> None:
        """Leave the federation: say goodbye if the server can be reached, and shred what is kept for it.

        The ledger stays: what was spent is spent, here and at every other server.
        """
        with self._calling(timeout_seconds) as stop:
            if self._config.server not in self._vault.servers():
                raise NotEnrolled(f"this device is not enrolled at {self._config.server}; nothing was changed")
            identity = self._identity()
            if identity.enrolment is not None:
                with suppress(WireError):  # without its keys the device is gone, whether or not the server knows
                    self._say_goodbye(identity, stop)
            self._vault.shred(self._config.server)

    def rotate_keys(self) -> None:
        """Seal all that is kept under new keys, and destroy the old ones: an old copy of the vault opens no more."""
        with self._calling(None):
            self._vault.rotate()

    @property
    def failures(self) -> Counter[str]:
        """What the app's own code or data did wrong while this device was open, by the name of the error, how often.

        The server cannot tell; `close` raises the first of them.
        """
        return self._failures.counts

    def close(self) -> None:
        """Stop what is under way, wait until it has ended, and let go of the files; closing twice is harmless.

        Then the app hears of its own `failures`: the first is raised, once, with its cause.
        """
        self._let_go()
        failure = self._failures.untold()
        if failure is not None:
            raise failure

    def _let_go(self) -> None:
        self.stop()
        here = threading.get_ident()
        with self._changed:
            self._changed.wait_for(lambda: set(self._calls.values()) <= {here}, _CLOSING_SECONDS)
        self._ledger.close()
        self._vault.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, _kind: object, error: BaseException | None, _traceback: object) -> None:
        if error is None:
            self.close()
            return
        self._let_go()
        failure = self._failures.untold()
        if failure is not None:
            error.add_note(f"the app's own code or data had failed before: {failure}")  # which must not hide the error

    def _identity(self) -> Identity:
        return Identity.of(self._vault, self._config.server)

    def _share(
        self, mechanism: Mechanism[Any], data: object, nothing: object, subject: str, timeout_seconds: float | None
    ) -> bool:
        with self._runtime(timeout_seconds) as runtime:
            return runtime.share(mechanism, data, subject, nothing)

    def _say_goodbye(self, identity: Identity, stop: Stop) -> None:
        with self._channel(identity, stop) as channel, channel.attend(_GOODBYE_SECONDS) as session:
            session.close(GoodbyeReason.LEAVING)
            while True:  # until the server has ended the stream, so that it has heard
                session.receive(_GOODBYE_SECONDS)

    def _channel(self, identity: Identity, stop: Stop) -> Channel:
        from device_sdk.wire.channel import Channel

        return Channel(identity.enrolled.gateway, identity.credentials, stop=stop)

    @contextmanager
    def _runtime(self, timeout_seconds: float | None, given: Stop | None = None) -> Iterator[Runtime]:
        from device_sdk.runtime import Runtime

        with self._calling(timeout_seconds, given) as stop:
            if self._config.server not in self._vault.servers():
                raise NotEnrolled(f"this device is not enrolled at {self._config.server}; enrol it; nothing was sent")
            kept = Kept.of(self._vault, self._ledger, self._config.server)
            with self._channel(kept.identity, stop) as channel:
                yield Runtime(
                    kept,
                    channel,
                    self._config,
                    policy=self._policy,
                    conditions=self._conditions,
                    stop=stop,
                    failures=self._failures,
                )

    @contextmanager
    def _calling(self, timeout_seconds: float | None, given: Stop | None = None) -> Iterator[Stop]:
        """One call that `stop`, or the time, can end; no other may run meanwhile."""
        stop, deadline = given or Stop(), Deadline(timeout_seconds)
        with self._changed:
            self._calls[stop] = threading.get_ident()
        try:
            with running(self._config.state), _after(timeout_seconds, stop.set):
                yield stop
        except Cancelled as error:
            if deadline.left_seconds() == 0.0:
                raise DeadlinePassed("the time for this call is over; it can be taken up again") from error
            raise
        finally:
            with self._changed:
                del self._calls[stop]
                self._changed.notify_all()


@contextmanager
def _after(seconds: float | None, deed: Callable[[], None]) -> Iterator[None]:
    """Do `deed` if the block takes longer than `seconds`."""
    if seconds is None:
        yield
        return
    timer = threading.Timer(seconds, deed)
    timer.daemon = True
    timer.start()
    try:
        yield
    finally:
        timer.cancel()
