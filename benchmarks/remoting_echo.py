"""Requests per second of a remoting server, against bare echoes of the same bytes.

Three servers run in separate processes and answer the same load generator (`load`) in turn:
``echo`` writes back every chunk it reads, ``framed`` splits it into frames first, ``remoting`` is
`penstock.remoting.Server` with a handler that answers at once. Rounds are interleaved and compared
one by one, so a busy machine slows all of them equally.

The target is the wall-clock ratio to ``echo``. Read it together with the CPU time per answer: an
echo of whole chunks does no work per request, so with many requests in a chunk it waits for the
generator, and the ratio compares the server with the generator. One scenario therefore has a
generator that does what every client must do: read the header of each answer.

    python -m benchmarks.remoting_echo [--full]
"""

from __future__ import annotations

import contextlib
from typing import Final

from benchmarks.effort import QUICK, Effort, Figures, at_least, median, ratio
from benchmarks.load import Measured, load
from benchmarks.processes import baseline
from benchmarks.script import main

from penstock.protocol.codes import RequestCode
from penstock.protocol.commands import Command, encode_command
from penstock.remoting.loop import run as run_loop

SERVERS: Final = ("echo", "framed", "remoting")
Scenario = tuple[int, int, bool]
SCENARIOS: Final[tuple[Scenario, ...]] = (
    (1, 1, False),
    (1, 32, False),
    (1, 256, False),
    (1, 256, True),
    (50, 1, False),
)
"""Connections, requests in flight on each, and whether the generator reads the answers' headers."""
TARGET_RATIO: Final = 0.35
TARGET_SCENARIO: Final = (1, 256, False)
_DISTINCT: Final = 512


def requests() -> list[bytes]:
    """Encoded requests of one size: queries of a consumer offset."""
    ext = {"consumerGroup": "bench-group", "topic": "bench-topic", "queueId": "3"}
    return [
        encode_command(Command(RequestCode.QUERY_CONSUMER_OFFSET, 1_000_000 + number, ext=ext))
        for number in range(_DISTINCT)
    ]


def run(effort: Effort = QUICK) -> Figures:
    """Measure; every figure is the median of interleaved rounds."""
    ring = requests()
    rounds: dict[Scenario, dict[str, list[Measured]]] = {
        scenario: {kind: [] for kind in SERVERS} for scenario in SCENARIOS
    }
    with contextlib.ExitStack() as stack:
        servers = {kind: stack.enter_context(baseline(kind)) for kind in SERVERS}
        for _ in range(effort.rounds):
            for (connections, in_flight, reads_headers), by_server in rounds.items():
                for kind, measured in by_server.items():
                    measured.append(
                        run_loop(
                            load(
                                servers[kind],
                                ring,
                                connections=connections,
                                in_flight=in_flight,
                                seconds=effort.seconds,
                                reads_headers=reads_headers,
                            )
                        )
                    )
    results = {scenario: summary(scenario, by_server) for scenario, by_server in rounds.items()}
    reached = results[TARGET_SCENARIO]["ratio_to_echo"]
    return {
        "benchmark": "remoting_echo",
        "scenarios": list(results.values()),
        "targets": [at_least("wall ratio to a bare echo, 256 in flight", TARGET_RATIO, reached)],
    }


def summary(scenario: Scenario, by_server: dict[str, list[Measured]]) -> Figures:
    rates = {kind: [one.per_second for one in rounds] for kind, rounds in by_server.items()}
    connections, in_flight, reads_headers = scenario
    figures: Figures = {
        "connections": connections,
        "in_flight": in_flight,
        "generator_reads_headers": reads_headers,
    }
    for kind, rounds in by_server.items():
        figures[kind] = {
            "per_second": median(rates[kind]),
            "server_microseconds": median([one.server_microseconds for one in rounds], 2),
            "generator_cpu": median([one.generator_cpu for one in rounds], 2),
        }
    for other in ("echo", "framed"):
        compared = ratio(rates["remoting"], rates[other])
        figures[f"ratio_to_{other}"] = compared["ratio"]
        figures[f"ratio_to_{other}_range"] = compared["ratio_range"]
    return figures


if __name__ == "__main__":
    main(run)
