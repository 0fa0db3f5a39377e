"""Send rates with 1, 100 and 10,000 topics: the same broker and the same load, different names.

All topics are created first, by a send to each. Then interleaved rounds send to one topic, to a
hundred, and to all in turn. The baseline is the round with one topic.

Some topics are created one at a time: this shows the cost of one more topic for a broker (and the
name server in the same process) that already has many.

    python -m benchmarks.broker_topics [--full]
"""

from __future__ import annotations

from typing import Final

from benchmarks.effort import QUICK, Effort, Figures, at_least, median, ratio
from benchmarks.load import Measured, ask_successfully, load
from benchmarks.processes import ServerProcess, broker
from benchmarks.requests import send
from benchmarks.script import main

from penstock.protocol.commands import Command, encode_command
from penstock.remoting.loop import run as run_loop

COUNTS: Final = (1, 100, 10_000)
IN_FLIGHT: Final = 256
TARGET_RATIO: Final = 0.9
MADE_ALREADY: Final = (100, 1_000, 10_000)
MADE_ONE_BY_ONE: Final = 20


def run(effort: Effort = QUICK) -> Figures:
    """Measure; every figure is the median of interleaved rounds."""
    counts = sorted({effort.scaled(count) for count in COUNTS})
    commands = [send(f"bench-topic-{n}", 0, 128, n) for n in range(counts[-1])]
    rounds: dict[int, list[Measured]] = {count: [] for count in counts}
    with broker() as ours:
        made = _make_topics(ours, commands, sorted({effort.scaled(n) for n in MADE_ALREADY}))
        ring = [encode_command(command) for command in commands]
        for _ in range(effort.rounds):
            for count, measured in rounds.items():
                measured.append(
                    run_loop(load(ours, ring[:count], in_flight=IN_FLIGHT, seconds=effort.seconds))
                )
        resident = ours.resident_bytes()
    alone = [one.per_second for one in rounds[counts[0]]]
    scenarios = [
        {
            "topics": count,
            "per_second": median([one.per_second for one in measured]),
            "broker_microseconds": median([one.server_microseconds for one in measured], 2),
            **ratio([one.per_second for one in measured], alone),
        }
        for count, measured in rounds.items()
    ]
    return {
        "benchmark": "broker_topics",
        "scenarios": scenarios,
        "new_topics": made,
        "resident_bytes_after": resident,
        "targets": [
            at_least(
                f"send rate with {counts[-1]} topics to that with one",
                TARGET_RATIO,
                scenarios[-1]["ratio"],
            )
        ],
    }


def _make_topics(ours: ServerProcess, commands: list[Command], steps: list[int]) -> list[Figures]:
    """Create all topics; return the cost of one, measured just before each step."""
    figures: list[Figures] = []
    done = 0
    for step in [min(step, len(commands)) for step in steps]:
        alone = max(done, step - MADE_ONE_BY_ONE)
        # Many at a time: a new topic is acknowledged after the table of all topics is on the disk.
        run_loop(ask_successfully(ours.port, commands[done:alone], in_flight=1024))
        before = ours.cpu_seconds()
        run_loop(ask_successfully(ours.port, commands[alone:step], in_flight=1))
        spent = ours.cpu_seconds() - before
        if step > alone:
            each = round(spent * 1e3 / (step - alone), 2)
            figures.append({"topics": step, "broker_milliseconds": each})
        done = max(done, step)
    run_loop(ask_successfully(ours.port, commands[done:], in_flight=1024))
    return figures


if __name__ == "__main__":
    main(run)
