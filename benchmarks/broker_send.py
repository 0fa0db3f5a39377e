"""Sends per second of `penstock up`, one message each, against a bare echo of the same bytes.

The load generator (`load`) runs in this process, on the other core. The broker flushes
asynchronously, which is the default.

    python -m benchmarks.broker_send [--full]
"""

from __future__ import annotations

from typing import Final

from benchmarks.effort import QUICK, Effort, Figures, at_least, median, ratio
from benchmarks.load import Measured, ask_successfully, load
from benchmarks.processes import ServerProcess, baseline, broker
from benchmarks.requests import send, sends
from benchmarks.script import main

from penstock.protocol.commands import encode_command
from penstock.remoting.loop import run as run_loop

TOPIC: Final = "bench-sends"
QUEUES: Final = (0, 1, 2, 3)
Scenario = tuple[int, int, int]
SCENARIOS: Final[tuple[Scenario, ...]] = (
    (128, 1, 1),
    (128, 1, 32),
    (128, 1, 256),
    (128, 50, 1),
    (128, 50, 32),
    (1024, 1, 32),
    (1024, 50, 32),
)
"""Bytes per body, connections, requests in flight on each."""
TARGET_PER_SECOND: Final = 60_000
TARGET_SCENARIO: Final = (128, 1, 256)
_DISTINCT: Final = 1024


def run(effort: Effort = QUICK) -> Figures:
    """Measure; every figure is the median of interleaved rounds."""
    rings = {
        size: [encode_command(command) for command in sends(TOPIC, QUEUES, size, _DISTINCT)]
        for size in {scenario[0] for scenario in SCENARIOS}
    }
    with broker() as ours, baseline("echo") as echo:
        run_loop(ask_successfully(ours.port, [send(TOPIC, 0, 128, 0)]))
        rounds: dict[Scenario, tuple[list[Measured], list[Measured]]] = {
            scenario: ([], []) for scenario in SCENARIOS
        }
        for _ in range(effort.rounds):
            for scenario, (of_broker, of_echo) in rounds.items():
                ring = rings[scenario[0]]
                of_broker.append(_measure(ours, ring, scenario, effort))
                of_echo.append(_measure(echo, ring, scenario, effort))
        resident = ours.resident_bytes()
    results = {scenario: _summary(scenario, *both) for scenario, both in rounds.items()}
    return {
        "benchmark": "broker_send",
        "scenarios": list(results.values()),
        "resident_bytes_after": resident,
        "targets": [
            at_least(
                "single sends/s, 128 B, pipelined",
                TARGET_PER_SECOND,
                results[TARGET_SCENARIO]["per_second"],
            )
        ],
    }


def _measure(server: ServerProcess, ring: list[bytes], at: Scenario, effort: Effort) -> Measured:
    _, connections, in_flight = at
    return run_loop(
        load(server, ring, connections=connections, in_flight=in_flight, seconds=effort.seconds)
    )


def _summary(scenario: Scenario, ours: list[Measured], echo: list[Measured]) -> Figures:
    body_bytes, connections, in_flight = scenario
    compared = ratio([one.per_second for one in ours], [one.per_second for one in echo])
    return {
        "body_bytes": body_bytes,
        "connections": connections,
        "in_flight": in_flight,
        "per_second": median([one.per_second for one in ours]),
        "broker_microseconds": median([one.server_microseconds for one in ours], 2),
        "generator_cpu": median([one.generator_cpu for one in ours], 2),
        "echo_per_second": median([one.per_second for one in echo]),
        "ratio_to_echo": compared["ratio"],
        "ratio_to_echo_range": compared["ratio_range"],
    }


if __name__ == "__main__":
    main(run)
