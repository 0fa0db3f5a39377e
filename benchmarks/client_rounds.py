"""The result of one round with a client, and the summary of several rounds.

A busy machine slows any process, so each rate comes with the CPU time per message on both sides;
its minimum over the rounds hardly depends on other processes.
"""

from __future__ import annotations

import contextlib
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from benchmarks.effort import Figures, median, ratio
from benchmarks.processes import ServerProcess


@dataclass(slots=True)
class ClientRound:
    """One round; inside `round_of` set only ``messages``."""

    messages: int = 0
    per_second: float = 0.0
    client_microseconds: float = 0.0
    """CPU time of this process per message, all threads."""
    broker_microseconds: float = 0.0


@contextlib.contextmanager
def round_of(server: ServerProcess) -> Iterator[ClientRound]:
    """Time the block, which sets the number of messages."""
    done = ClientRound()
    broker_cpu, cpu, begin = server.cpu_seconds(), time.process_time(), time.perf_counter()
    yield done
    elapsed = time.perf_counter() - begin
    count = max(1, done.messages)
    done.per_second = count / elapsed
    done.client_microseconds = (time.process_time() - cpu) / count * 1e6
    done.broker_microseconds = (server.cpu_seconds() - broker_cpu) / count * 1e6


def summary(clients: Sequence[ClientRound], ceilings: Sequence[ClientRound]) -> Figures:
    """A client's rounds together with those of the ceiling."""
    rates = [one.per_second for one in clients]
    raw = [one.per_second for one in ceilings]
    compared = ratio(rates, raw)
    return {
        "messages_per_second": median(rates),
        "best_messages_per_second": round(max(rates)),
        "client_microseconds": round(min(one.client_microseconds for one in clients), 2),
        "broker_microseconds": round(min(one.broker_microseconds for one in clients), 2),
        "ceiling_per_second": median(raw),
        "ceiling_client_microseconds": round(min(one.client_microseconds for one in ceilings), 2),
        "ratio_to_ceiling": compared["ratio"],
        "ratio_to_ceiling_range": compared["ratio_range"],
    }


def nameserver(server: ServerProcess) -> str:
    """The name server address of a `penstock up`."""
    return server.ready_line.partition("namesrv=")[2].split()[0]
