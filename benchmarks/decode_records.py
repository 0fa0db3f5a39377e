"""How fast the body of a pull answer is decoded into messages, compared with the minimum.

The minimum is a loop that unpacks the fixed head of each record and steps to the next: no body, no
topic, no properties, no checks. Rates are per second of CPU time, which on an idle core equals wall
time and on a busy one excludes other processes.

    python -m benchmarks.decode_records [--full]
"""

from __future__ import annotations

import struct
import time
from collections.abc import Callable
from statistics import median

from benchmarks.effort import QUICK, Effort, Figures, at_least
from benchmarks.script import main

from penstock.model.hosts import pack_host
from penstock.model.properties import encode_properties
from penstock.protocol.records.codec import encode_record
from penstock.protocol.records.pulled import messages_from_pull

MESSAGES_PER_PULL = 32
TARGET_PER_SECOND = 300_000
PULLS_PER_ROUND = 300
_HEAD = struct.Struct(">iIIiiqqiq8sq8siqi")


def run(effort: Effort = QUICK) -> Figures:
    """Records per second for bodies of 200 bytes and 1 KiB, medians of interleaved rounds."""
    results: Figures = {"benchmark": "decode_records", "messages_per_pull": MESSAGES_PER_PULL}
    pulls = effort.scaled(PULLS_PER_ROUND)
    for label, size in (("200B", 200), ("1KiB", 1024)):
        body = _pull_body(size)
        lazy: list[float] = []
        touched: list[float] = []
        minimum: list[float] = []
        for _ in range(effort.rounds):
            minimum.append(_rate(_heads_only, body, pulls))
            lazy.append(_rate(_messages, body, pulls))
            touched.append(_rate(_messages_with_properties, body, pulls))
        results[label] = {
            "records_per_second": round(median(lazy)),
            "records_per_second_properties_read": round(median(touched)),
            "heads_only_per_second": round(median(minimum)),
            "ratio_to_heads_only": round(median(lazy) / median(minimum), 3),
        }
    slowest = min(results[label]["records_per_second"] for label in ("200B", "1KiB"))
    results["targets"] = [at_least("records decoded/s", TARGET_PER_SECOND, slowest)]
    return results


def _pull_body(body_bytes: int) -> bytes:
    born, store = pack_host("10.0.0.7", 51234), pack_host("10.0.0.5", 10911)
    records: list[bytes] = []
    position = 0
    for index in range(MESSAGES_PER_PULL):
        properties = encode_properties(
            {
                "KEYS": f"order-{index}",
                "UNIQ_KEY": f"0A000005123418B4AAC2075BCD15{index:04X}",
                "CLUSTER": "DefaultCluster",
                "MSG_REGION": "DefaultRegion",
                "TRACE_ON": "true",
                "WAIT": "true",
                "TAGS": "created",
            }
        )
        body = bytes([index]) * body_bytes
        now = 1700000000000 + index
        record = encode_record(
            b"orders", body, properties, 3, index, position, now, now, born, store
        )
        records.append(record)
        position += len(record)
    return b"".join(records)


def _messages(body: bytes) -> None:
    messages_from_pull(body, "broker-a")


def _messages_with_properties(body: bytes) -> None:
    for message in messages_from_pull(body, "broker-a"):
        _ = message.tag, message.msg_id


def _heads_only(body: bytes) -> None:
    position, heads = 0, []
    unpack = _HEAD.unpack_from
    while position < len(body):
        head = unpack(body, position)
        heads.append(head)
        position += head[0]


def _rate(decode: Callable[[bytes], None], body: bytes, pulls: int) -> float:
    started = time.process_time()
    for _ in range(pulls):
        decode(body)
    return MESSAGES_PER_PULL * pulls / (time.process_time() - started)


if __name__ == "__main__":
    main(run)
