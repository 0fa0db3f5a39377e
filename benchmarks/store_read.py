"""How fast a store returns messages, 32 per call, compared with slicing the log.

Two queues are read: one whose messages are contiguous in the log, as written by a single producer,
and one whose messages are interleaved with those of three others. The bare loop cuts the same bytes
out of a mapped file, one slice per call, without queues. The store is read from its files and, for
the last entries, from memory. Rates are per second of CPU time.

    python -m benchmarks.store_read [--full | --tiny]
"""

from __future__ import annotations

import os
import tempfile
import time
from pathlib import Path
from typing import Final

from benchmarks.effort import QUICK, Effort, Figures, at_least, median, ratio
from benchmarks.script import main

from penstock.store import OS_FILES, Draft, MessageStore, StoreConfig

MESSAGES: Final = 100_000
BODY_BYTES: Final = 128
PER_CALL: Final = 32
TARGET: Final = 1_500_000
LONE: Final = "lone"
MIXED: Final = "mixed"
QUEUES: Final = 4


def run(effort: Effort = QUICK) -> Figures:
    """Messages per second from a contiguous queue, a scattered one, and bare slices."""
    with tempfile.TemporaryDirectory(prefix="penstock-bench-") as directory:
        count = effort.scaled(MESSAGES)
        _fill(Path(directory), count)
        store = MessageStore(directory, StoreConfig())
        store.open()
        try:
            rates: dict[str, list[float]] = {LONE: [], MIXED: [], "bare": []}
            for _ in range(effort.rounds):
                rates["bare"].append(_bare_rate(Path(directory), effort))
                rates[LONE].append(_read_rate(store, LONE, effort))
                rates[MIXED].append(_read_rate(store, MIXED, effort))
        finally:
            store.abandon()
    figures: Figures = {
        "messages_in_store": 2 * count,
        "messages_per_call": PER_CALL,
        "bare_slices_messages_per_second": median(rates["bare"]),
    }
    for name, label in ((LONE, "side_by_side"), (MIXED, "scattered")):
        figures[label] = {
            "messages_per_second": median(rates[name]),
            "microseconds_per_call": round(PER_CALL * 1e6 / median(rates[name]), 2),
            **ratio(rates[name], rates["bare"]),
        }
    figures["targets"] = [
        at_least("messages a second", TARGET, figures["side_by_side"]["messages_per_second"])
    ]
    return figures


def _fill(root: Path, count: int) -> None:
    body = os.urandom(BODY_BYTES)
    with MessageStore(root, StoreConfig()) as store:
        for topic, queues in ((LONE, 1), (MIXED, QUEUES)):
            for number in range(count):
                store.append(Draft(topic, number % queues, body, b"TAGS\x01a\x02"))
                if number % 256 == 0:
                    store.write()
            store.write()


def _read_rate(store: MessageStore, topic: str, effort: Effort) -> float:
    count = offset = 0
    end = store.max_offset(topic, 0)
    started = time.process_time()
    while (spent := time.process_time() - started) < effort.seconds:
        for _ in range(64):
            if offset >= end:
                offset = 0
            result = store.read(topic, 0, offset, max_count=PER_CALL)
            count += result.count
            offset = result.next_offset
    return count / spent


def _bare_rate(root: Path, effort: Effort) -> float:
    path = sorted((root / "commitlog").iterdir())[0]
    descriptor = OS_FILES.open(str(path))
    view = OS_FILES.map(descriptor, path.stat().st_size)
    OS_FILES.close(descriptor)
    size = PER_CALL * int.from_bytes(view[:4], "big")
    limit = MESSAGES * size // PER_CALL - size
    count = position = 0
    started = time.process_time()
    while (spent := time.process_time() - started) < effort.seconds:
        for _ in range(64):
            if position >= limit:
                position = 0
            slices = [view[position : position + size]]
            position += size
            count += PER_CALL * len(slices)
    return count / spent


if __name__ == "__main__":
    main(run)
