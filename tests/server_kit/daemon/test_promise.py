"""[policy] is kept by the server too: who has given what was promised is asked for no more, whatever it would give."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from pathlib import Path

import pytest

from device_sdk.wire.messages import Blob, Dtype, ModelReference, Question, QuestionKind, TensorSpec
from privacy.accounting import BudgetLimits
from privacy.budget import NeighbouringRelation, PrivacyCost, PrivacyUnit
from privacy.receipts import Receipt
from server_kit.config import Privacy, ServerConfig, check_policy
from server_kit.daemon.promise import Promise
from tests.device_sdk.wire.devices import COST, TestDevice
from tests.server_kit.daemon.paper_server import PaperServer

ROUNDS = 3
LIMITS = BudgetLimits(NeighbouringRelation.REPLACE, pure_micro_epsilon=1_000_000, mu_squared_nano=3_500_000_000)
"""Of rounds at μ = 1 three fit and a fourth does not; of answers at ε = 1/4, four."""
DEVICE = "ab" * 16


class Forgetful(Promise):
    """A broken twin: what the store knows is not recalled."""

    def recall(self, device: str, receipts: Iterable[Receipt]) -> None:
        del receipts
        super().recall(device, ())


def paper_server(directory: Path, promise: Callable[[], Promise] | None = None) -> PaperServer:
    """Its rounds cost a device μ = 1."""
    return PaperServer(directory, privacy=Privacy("device", noise_multiplier="2", grid_bits=8), promise=promise)


def made() -> Promise:
    return Promise(LIMITS, COST)


def rounds_asked_for(server: PaperServer, *, restarting: bool) -> int:
    """In how many rounds a device must train that would go on for ever, or until we have seen enough."""
    device = server.device()
    for number in range(2 * ROUNDS):
        device.check_in()
        server.turn(60)
        if device.task is None:
            return number
        device.answer()
        server.turn(60)
        if restarting:
            device.disconnect()
            server.restart_coordinator()
            device.connect()
    return 2 * ROUNDS


@pytest.mark.parametrize("restarting", [False, True])
def test_a_device_is_asked_for_as_many_rounds_as_were_promised(tmp_path: Path, restarting: bool) -> None:
    assert rounds_asked_for(paper_server(tmp_path, promise=made), restarting=restarting) == ROUNDS


def test_a_server_that_promises_nothing_or_forgets_is_caught(tmp_path: Path) -> None:
    assert rounds_asked_for(paper_server(tmp_path / "a"), restarting=False) > ROUNDS
    forgetful = paper_server(tmp_path / "b", promise=lambda: Forgetful(LIMITS, COST))
    assert rounds_asked_for(forgetful, restarting=True) > ROUNDS


def test_others_go_on_without_the_one_that_has_given_all(tmp_path: Path) -> None:
    server = paper_server(tmp_path, promise=made)
    spent = server.device()
    for _ in range(ROUNDS):
        spent.check_in()
        server.turn(60)
        spent.answer()
        server.turn(60)
    spent.check_in()
    (fresh,) = server.devices(1)
    server.turn(60)
    assert fresh.task is not None
    assert spent.task is None


def receipts(count: int) -> list[Receipt]:
    device = TestDevice()
    return [device.receipt(bytes([number])) for number in range(count)]


def test_what_is_read_and_told_is_counted_once() -> None:
    promise, known = made(), receipts(ROUNDS)
    promise.recall(DEVICE, known[:2])
    promise.took(DEVICE, known[1])
    assert promise.allows_round(DEVICE)
    promise.took(DEVICE, known[2])
    assert not promise.allows_round(DEVICE)
    promise.recall(DEVICE, ())
    assert not promise.allows_round(DEVICE), "who comes again is as spent as before"


def question(epsilon: str) -> Question:
    model = ModelReference(1, Blob(bytes(32), 4), (TensorSpec("w", Dtype.F32, (1,)),))
    return Question("q", DEVICE, QuestionKind.ACCURACY, (model,), epsilon, 1.0)


def answered(epsilon: float) -> Receipt:
    device = TestDevice()
    cost = PrivacyCost.pure(epsilon, PrivacyUnit.DEVICE, NeighbouringRelation.REPLACE)
    return device.receipt(b"answer", cost)


def test_answers_are_counted_in_a_share_of_their_own() -> None:
    promise = made()
    promise.recall(DEVICE, [answered(0.75)])
    assert promise.allows_answer(question("1/4"))
    assert not promise.allows_answer(question("1/2"))
    assert promise.allows_round(DEVICE)


def test_more_than_was_asked_for_costs_no_other_share() -> None:
    promise = made()
    promise.recall(DEVICE, [answered(7)])
    assert not promise.allows_answer(question("1/100"))
    assert promise.allows_round(DEVICE)


def test_what_the_promise_has_no_words_for_uses_it_up() -> None:
    promise = made()
    cost = PrivacyCost.gaussian(0.001, PrivacyUnit.DEVICE, NeighbouringRelation.ADD_REMOVE)
    promise.recall(DEVICE, [TestDevice().receipt(b"update", cost)])
    assert not promise.allows_round(DEVICE)


@pytest.mark.parametrize("level", ["record", "device"])
def test_the_promise_is_what_the_policy_was_checked_for(level: str) -> None:
    config = ServerConfig.of_text(
        f'[federation]\npreset = "fedavg"\n[privacy]\nlevel = "{level}"\nnoise_multiplier = "8"'
    )
    promise, device = Promise.of(config), TestDevice()
    cost = config.privacy.round_cost(config.training)
    promise.recall(DEVICE, ())
    for number in range(check_policy(config).rounds):
        assert promise.allows_round(DEVICE)
        promise.took(DEVICE, device.receipt(number.to_bytes(4), cost))
    assert not promise.allows_round(DEVICE)
