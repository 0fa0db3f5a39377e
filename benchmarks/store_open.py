"""How long a store takes to open: after a clean stop, after another program, after a crash.

The cost of opening after our own clean stop does not depend on the content of the store; two stores
show this, one with ten times the messages. ``--full`` gives the large one ten million messages.
Recovery is reported in megabytes of log per second, compared with a bare loop that computes the
checksums of the same bytes, in pieces of the same size.

    python -m benchmarks.store_open [--full | --tiny]
"""

from __future__ import annotations

import os
import tempfile
import time
import zlib
from pathlib import Path
from typing import Final

from benchmarks.effort import FULL, QUICK, Effort, Figures, at_least, at_most, median
from benchmarks.script import main

from penstock.store import Draft, MessageStore, StoreConfig

MESSAGES: Final = 200_000
FULL_MESSAGES: Final = 10_000_000
CRASH_MESSAGES: Final = 60_000
CRASH_BODY_BYTES: Final = 1024
QUEUES: Final = 16
OPEN_TARGET_SECONDS: Final = 1.0
RECOVERY_TARGET: Final = 200.0


def run(effort: Effort = QUICK) -> Figures:
    """Seconds to open, and megabytes per second of recovery."""
    count = FULL_MESSAGES if effort is FULL else effort.scaled(MESSAGES)
    with tempfile.TemporaryDirectory(prefix="penstock-bench-") as directory:
        root = Path(directory)
        small = _clean_open(root / "small", max(1, count // 10), effort)
        large = _clean_open(root / "large", count, effort)
        recovery = _recovery(root / "crash", effort)
    return {
        "messages": count,
        "clean_open_seconds": large,
        "clean_open_seconds_of_a_tenth": small,
        "ratio_to_a_tenth": round(large / small, 2),
        **recovery,
        "targets": [
            at_most("seconds to open after a clean stop", OPEN_TARGET_SECONDS, large),
            at_least(
                "megabytes a second of recovery",
                RECOVERY_TARGET,
                recovery["recovery_megabytes_per_second"],
            ),
        ],
    }


def _fill(store: MessageStore, count: int, body: bytes) -> None:
    for number in range(count):
        key = b"UNIQ_KEY\x017F00000112340000%016X\x02" % number
        store.append(Draft("bench", number % QUEUES, body, key))
        if number % 256 == 255:
            store.write()
    store.write()


def _clean_open(root: Path, count: int, effort: Effort) -> float:
    """Seconds from nothing to the first message read, as a median."""
    with MessageStore(root) as store:
        _fill(store, count, os.urandom(128))
    times: list[float] = []
    for _ in range(effort.rounds):
        started = time.perf_counter()
        store = MessageStore(root)
        recovery = store.open()
        found = store.read("bench", 0, store.max_offset("bench", 0) - 1)
        times.append(time.perf_counter() - started)
        store.close()
        assert (recovery.kind, found.count) == ("clean", 1)
    return median(times, 4)


def _recovery(root: Path, effort: Effort) -> Figures:
    """Recovery of a log segment that was never flushed, in CPU time."""
    body = os.urandom(CRASH_BODY_BYTES)
    count = effort.scaled(CRASH_MESSAGES)
    store = MessageStore(root, StoreConfig())
    store.open()
    _fill(store, count, body)
    megabytes = store.max_position / 1e6
    store.abandon()
    state = (root / "penstock.state").read_bytes()
    rates: list[float] = []
    bare: list[float] = []
    for _ in range(effort.rounds):
        started = time.process_time()
        for _ in range(count):
            zlib.crc32(body)
        bare.append(count * CRASH_BODY_BYTES / 1e6 / (time.process_time() - started))
        # Undo the state saved by the previous round: each round recovers the whole log.
        (root / "penstock.state").write_bytes(state)
        store = MessageStore(root, StoreConfig())
        started = time.process_time()
        recovery = store.open()
        rates.append(megabytes / (time.process_time() - started))
        store.abandon()
        assert recovery.records == count
    return {
        "recovery_messages": count,
        "recovery_megabytes_per_second": median(rates, 1),
        "bare_checksum_megabytes_per_second": median(bare, 1),
        "ratio_to_bare_checksum": round(median(rates, 3) / median(bare, 3), 3),
    }


if __name__ == "__main__":
    main(run)
