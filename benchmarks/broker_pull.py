"""Messages per second that `penstock up` serves in pulls of 32, against canned answers.

One queue has contiguous messages, as written by a single producer; four others were filled in turn,
so theirs are scattered. The generator pulls from one end of a queue to the other, repeatedly. The
baseline answers each request with the same number of prepared bytes and does nothing else.

    python -m benchmarks.broker_pull [--full]
"""

from __future__ import annotations

from typing import Final

from benchmarks.effort import QUICK, Effort, Figures, at_least, median, ratio
from benchmarks.load import Measured, ask_successfully, load
from benchmarks.processes import ServerProcess, baseline, broker
from benchmarks.requests import MESSAGES_PER_PULL, pull, send, sends
from benchmarks.script import main

from penstock.protocol.commands import Command, encode_command
from penstock.remoting.loop import run as run_loop

LONE: Final = "bench-lone"
SHARED: Final = "bench-shared"
QUEUES: Final = (0, 1, 2, 3)
MESSAGES: Final = 16_384
"""Messages in each queue."""
BODIES: Final = (128, 1024)
Scenario = tuple[str, int, int, int]
SCENARIOS: Final[tuple[Scenario, ...]] = (
    (LONE, 128, 1, 1),
    (LONE, 128, 1, 16),
    (LONE, 1024, 1, 16),
    (SHARED, 128, 1, 16),
    (LONE, 128, 50, 1),
)
"""Topic, bytes per body, connections, pulls in flight on each."""
TARGET_PER_SECOND: Final = 400_000
TARGET_SCENARIO: Final = (LONE, 128, 1, 16)


def run(effort: Effort = QUICK) -> Figures:
    """Measure; every figure is the median of interleaved rounds."""
    with broker() as ours:
        count = max(MESSAGES_PER_PULL, effort.scaled(MESSAGES) // 32 * 32)
        sizes = run_loop(_fill(ours, count))
        results = {one: _compare(ours, one, sizes[one[:2]], count, effort) for one in SCENARIOS}
    return {
        "benchmark": "broker_pull",
        "messages_per_pull": MESSAGES_PER_PULL,
        "scenarios": list(results.values()),
        "targets": [
            at_least(
                "messages/s in pulls of 32, 128 B",
                TARGET_PER_SECOND,
                results[TARGET_SCENARIO]["messages_per_second"],
            )
        ],
    }


async def _fill(server: ServerProcess, count: int) -> dict[tuple[str, int], int]:
    """Fill all queues; return the size of one pull answer in bytes, by topic and body."""
    sizes = {}
    for body_bytes in BODIES:
        lone, shared = f"{LONE}-{body_bytes}", f"{SHARED}-{body_bytes}"
        await ask_successfully(server.port, [send(lone, 0, 1, 0), send(shared, 0, 1, 0)])
        await ask_successfully(server.port, sends(lone, (1,), body_bytes, count))
        await ask_successfully(server.port, sends(shared, QUEUES, body_bytes, count))
        for topic in (LONE, SHARED):
            (answer,) = await ask_successfully(server.port, [_pull(topic, body_bytes, 0)])
            sizes[topic, body_bytes] = len(encode_command(answer))
    return sizes


def _pull(topic: str, body_bytes: int, queue_offset: int) -> Command:
    return pull(f"{topic}-{body_bytes}", 1, queue_offset)


def _compare(
    ours: ServerProcess, scenario: Scenario, answer_bytes: int, count: int, effort: Effort
) -> Figures:
    topic, body_bytes, connections, in_flight = scenario
    in_queue = count if topic == LONE else count // len(QUEUES)
    offsets = range(0, max(1, in_queue - MESSAGES_PER_PULL + 1), MESSAGES_PER_PULL)
    ring = [encode_command(_pull(topic, body_bytes, offset)) for offset in offsets]
    served: list[Measured] = []
    canned: list[Measured] = []
    with baseline("canned", answer_bytes) as other:
        for _ in range(effort.rounds):
            for server, measured in ((ours, served), (other, canned)):
                measured.append(
                    run_loop(
                        load(
                            server,
                            ring,
                            connections=connections,
                            in_flight=in_flight,
                            seconds=effort.seconds,
                        )
                    )
                )
    compared = ratio([one.per_second for one in served], [one.per_second for one in canned])
    pulls = median([one.per_second for one in served])
    return {
        "messages_are": "side by side" if topic == LONE else "scattered",
        "body_bytes": body_bytes,
        "connections": connections,
        "in_flight": in_flight,
        "answer_bytes": answer_bytes,
        "messages_per_second": round(pulls * MESSAGES_PER_PULL),
        "pulls_per_second": pulls,
        "broker_microseconds_per_pull": median([one.server_microseconds for one in served], 2),
        "canned_per_second": median([one.per_second for one in canned]),
        "ratio_to_canned": compared["ratio"],
        "ratio_to_canned_range": compared["ratio_range"],
    }


if __name__ == "__main__":
    main(run)
