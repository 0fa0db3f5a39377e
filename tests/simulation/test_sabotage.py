"""A checker that never complains proves nothing: here parts are broken, and it must."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from tests.simulation.world import SimulationFailed, run_seed

from penstock.broker.storage import Storage
from penstock.broker.tables.offsets import Offsets
from penstock.client.consuming.flow_control import FlowLimits
from penstock.client.consuming.orderly import OrderlyRunner
from penstock.client.consuming.process_queue import ProcessQueue
from penstock.client.consuming.send_back import FailedMessages
from penstock.store import Draft

SEEDS = 12


async def trust_yourself(runner: OrderlyRunner, queues: list[ProcessQueue]) -> None:
    """Take a lock without asking."""
    for queue in queues:
        queue.is_locked, queue.last_lock_at = True, runner._state.clock.monotonic()


async def believe_it_was_sent(*_: object) -> bool:
    return True


def always_room(*_: object, **__: object) -> None:
    """No limit is ever reached."""


def one_too_far(commit: Callable[..., int]) -> Callable[..., int]:
    def sabotaged(queue: ProcessQueue, up_to: int | None = None) -> int:
        offset = commit(queue, up_to)
        return offset + 1 if offset >= 0 else offset

    return sabotaged


def forget_some(append: Callable[..., Any]) -> Callable[..., Any]:
    """Acknowledge every tenth message and store another body under its name."""
    count = 0

    def sabotaged(storage: Storage, draft: Draft) -> Any:
        nonlocal count
        count += 1
        is_message = draft.topic == "orders" and count % 10 == 0
        return append(storage, draft._replace(body=b"?") if is_message else draft)

    return sabotaged


def run_seeds() -> None:
    for seed in range(SEEDS):
        run_seed(seed)


@pytest.mark.parametrize(
    ("part", "name", "sabotage", "complaint"),
    [
        (OrderlyRunner, "_lock", lambda _: trust_yourself, "while .* does"),
        (FlowLimits, "verdict", lambda _: always_room, "caches"),
        (FailedMessages, "_resend", lambda _: believe_it_was_sent, "lost .* acknowledged"),
        (ProcessQueue, "commit", one_too_far, "is unfinished|committed"),
        (Offsets, "commit", lambda _: always_room, "does not reach the end"),
        (Storage, "append", forget_some, "never sent"),
    ],
    ids=["no lock", "no flow control", "failed is gone", "early commit", "no commit", "phantom"],
)
def test_a_broken_part_is_noticed(
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
