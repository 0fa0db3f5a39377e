"""How fast messages are appended to a store, compared with a bare ``os.pwritev`` of the bytes.

Every message has a unique id and a key, so each append makes a record, a queue entry and two index
entries. The bare loop writes the same records, in the same portions, to its own file and does
nothing else. Both are measured in turn, round by round, per second of CPU time, which on an idle
core equals wall time and on a busy one excludes other processes.

    python -m benchmarks.store_append [--full | --tiny]
"""

from __future__ import annotations

import os
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Final

from benchmarks.effort import QUICK, Effort, Figures, at_least, median, ratio
from benchmarks.script import main

from penstock.model.hosts import pack_host
from penstock.protocol.records.codec import encode_record
from penstock.store import Draft, MessageStore, StoreConfig

CASES: Final = ((128, 1), (128, 32), (1024, 1), (1024, 32))
"""Bytes per body, messages per write."""
HOST: Final = pack_host("127.0.0.1", 10911)
SINGLE_TARGET: Final = 100_000
BATCH_RATIO_TARGET: Final = 0.5
_CHUNK: Final = 64
"""Writes between two readings of the clock."""


def run(effort: Effort = QUICK) -> Figures:
    """Appends per second for small and larger messages, alone and in portions of 32."""
    figures: Figures = {}
    for body_bytes, batch in CASES:
        ours: list[float] = []
        bare: list[float] = []
        for number in range(effort.rounds):
            with tempfile.TemporaryDirectory(prefix="penstock-bench-") as directory:
                drafts = _drafts(body_bytes, number)
                bare.append(_bare_rate(Path(directory) / "bare", drafts, batch, effort))
                ours.append(_store_rate(Path(directory) / "store", drafts, batch, effort))
        record_bytes = len(_record(_drafts(body_bytes, 0)[0]))
        figures[f"{body_bytes}B_x{batch}"] = {
            "messages_per_second": median(ours),
            "megabytes_per_second": median([rate * record_bytes / 1e6 for rate in ours], 1),
            "bare_messages_per_second": median(bare),
            **ratio(ours, bare),
        }
    figures["targets"] = [
        at_least(
            "appends of 128 B, one a write",
            SINGLE_TARGET,
            figures["128B_x1"]["messages_per_second"],
        ),
        at_least(
            "bytes of 32 x 1 KiB against bare pwritev",
            BATCH_RATIO_TARGET,
            figures["1024B_x32"]["ratio"],
        ),
    ]
    return figures


def _drafts(body_bytes: int, seed: int) -> list[Draft]:
    """One portion of messages of one producer, to be written repeatedly."""
    return [
        Draft(
            "bench",
            0,
            os.urandom(body_bytes),
            b"UNIQ_KEY\x017F00000112340000%08X%08X\x02KEYS\x01order-%d\x02WAIT\x01true\x02"
            % (seed, number, number),
            born_timestamp=1_700_000_000_000,
            born_host=HOST,
            store_host=HOST,
        )
        for number in range(_CHUNK * 32)
    ]


def _record(draft: Draft) -> bytes:
    return encode_record(
        draft.topic.encode(), draft.body, draft.properties, 0, 0, 0, 0, 0, HOST, HOST
    )


def _rate(write: Callable[[int], int], effort: Effort) -> float:
    """Messages per second of CPU time; ``write`` writes some and returns how many."""
    write(0)  # creates files and touches pages
    count = chunk = 0
    started = time.process_time()
    while (spent := time.process_time() - started) < effort.seconds:
        chunk += 1
        count += write(chunk)
    return count / spent


def _bare_rate(path: Path, drafts: list[Draft], batch: int, effort: Effort) -> float:
    records = [_record(draft) for draft in drafts]
    portions = [records[at : at + batch] for at in range(0, _CHUNK * batch, batch)]
    descriptor = os.open(path, os.O_RDWR | os.O_CREAT)
    position = 0

    def write(_: int) -> int:
        nonlocal position
        for portion in portions:
            position += os.pwritev(descriptor, portion, position)
        return _CHUNK * batch

    try:
        return _rate(write, effort)
    finally:
        os.close(descriptor)


def _store_rate(root: Path, drafts: list[Draft], batch: int, effort: Effort) -> float:
    portions = [drafts[at : at + batch] for at in range(0, _CHUNK * batch, batch)]
    store = MessageStore(root, StoreConfig())
    store.open()

    def write(_: int) -> int:
        for portion in portions:
            for draft in portion:
                store.append(draft)
            store.write()
        return _CHUNK * batch

    try:
        return _rate(write, effort)
    finally:
        store.abandon()


if __name__ == "__main__":
    main(run)
