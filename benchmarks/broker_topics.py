"""Send rates with 1, 100 and 10,000 topics: the same broker, the same load, other names.

All topics are made first, by sending to each of them. Then rounds are interleaved in which the
sends go to one of them, to a hundred, to all in turn. The baseline is the round with one topic.

    python -m benchmarks.broker_topics [--full]
"""

from __future__ import annotations

from typing import Final

from benchmarks.effort import QUICK, Effort, Figures, at_least, median, ratio
from benchmarks.load import Measured, ask_successfully, load
from benchmarks.processes import broker
from benchmarks.requests import send
from benchmarks.script import main

from penstock.protocol.commands import encode_command
from penstock.remoting.loop import run as run_loop

COUNTS: Final = (1, 100, 10_000)
IN_FLIGHT: Final = 256
TARGET_RATIO: Final = 0.9


def run(effort: Effort = QUICK) -> Figures:
    """Measure; every figure is the median of interleaved rounds."""
    counts = sorted({effort.scaled(count) for count in COUNTS})
    commands = [send(f"bench-topic-{n}", 0, 128, n) for n in range(counts[-1])]
    rounds: dict[int, list[Measured]] = {count: [] for count in counts}
    with broker() as ours:
        # Many at a time: a new topic is answered when the table of all topics is on the disk.
        run_loop(ask_successfully(ours.port, commands, in_flight=1024))
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
        "resident_bytes_after": resident,
        "targets": [
            at_least(
                f"send rate with {counts[-1]} topics to that with one",
                TARGET_RATIO,
                scenarios[-1]["ratio"],
            )
        ],
    }


if __name__ == "__main__":
    main(run)
