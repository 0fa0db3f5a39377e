"""The simulation must detect faulty code: each test breaks one part and expects a failure."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from tests.simulation.plan import TRANSACTIONS_EVERY
from tests.simulation.world import SimulationFailed, run_seed

from penstock.broker.tables.offsets import Offsets
from penstock.client.consuming.flow_control import FlowLimits
from penstock.client.consuming.orderly import OrderlyRunner
from penstock.client.consuming.process_queue import ProcessQueue
from penstock.client.consuming.send_back import FailedMessages
from penstock.store import Draft
from penstock.store.appending import Appender
from penstock.store.transactions import open_halves

SEEDS = 12


async def lock_without_asking(runner: OrderlyRunner, queues: list[ProcessQueue]) -> None:
    """Treat the queues as locked without a request to the broker."""
    for queue in queues:
        queue.is_locked, queue.last_lock_at = True, runner._state.clock.monotonic()


async def report_success(*_: object) -> bool:
    return True


def do_nothing(*_: object, **__: object) -> None:
    """Apply no limit, commit nothing."""


def commit_one_too_many(commit: Callable[..., int]) -> Callable[..., int]:
    def sabotaged(queue: ProcessQueue, up_to: int | None = None) -> int:
        offset = commit(queue, up_to)
        return offset + 1 if offset >= 0 else offset

    return sabotaged


def replace_some(append: Callable[..., Any]) -> Callable[..., Any]:
    """Acknowledge every tenth message but store a different body in its place."""
    count = 0

    def sabotaged(appender: Appender, draft: Draft) -> Any:
        nonlocal count
        count += 1
        is_message = draft.topic == "orders" and count % 10 == 0
        return append(appender, draft._replace(body=b"?") if is_message else draft)

    return sabotaged


def run_seeds() -> None:
    for seed in range(SEEDS):
        run_seed(seed)


@pytest.mark.parametrize(
    ("part", "name", "sabotage", "complaint"),
    [
        (OrderlyRunner, "_lock", lambda _: lock_without_asking, "while .* does"),
        (FlowLimits, "verdict", lambda _: do_nothing, "caches"),
        (FailedMessages, "_resend", lambda _: report_success, "lost .* acknowledged"),
        (ProcessQueue, "commit", commit_one_too_many, "is unfinished|committed"),
        (Offsets, "commit", lambda _: do_nothing, "does not reach the end"),
        (Appender, "append", replace_some, "was never sent"),
    ],
    ids=["no lock", "no flow control", "failed is lost", "early commit", "no commit", "phantom"],
)
def test_the_simulation_detects_a_broken_part(
    monkeypatch: pytest.MonkeyPatch,
    part: type,
    name: str,
    sabotage: Callable[[Any], Any],
    complaint: str,
) -> None:
    monkeypatch.setattr(part, name, sabotage(getattr(part, name)))
    with pytest.raises(SimulationFailed, match=complaint) as failure:
        run_seeds()
    assert "python -m tools.soak --seed" in str(failure.value)


def run_transactions() -> None:
    for seed in range(13, 200, TRANSACTIONS_EVERY):
        run_seed(seed)


def test_the_simulation_detects_forgotten_decisions(monkeypatch: pytest.MonkeyPatch) -> None:
    """A broker that does not find its decisions after a restart commits a second time."""
    monkeypatch.setattr(open_halves, "op_offsets", lambda tag, body: [])
    monkeypatch.setattr(open_halves, "is_committed", lambda *_: False)
    with pytest.raises(SimulationFailed, match=r"payment .* is visible \d times"):
        run_transactions()
