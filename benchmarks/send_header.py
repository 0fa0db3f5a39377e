"""How fast a send request becomes a record, compared with bare JSON parsing.

The minimum is one ``orjson.loads`` of the same header. ``header`` adds the typed header,
``header_and_record`` the record for the log, ``whole`` also the splitting into frames and the
encoded answer: everything a broker computes for a send except the store.

    python -m benchmarks.send_header [--full]
"""

from __future__ import annotations

import time
from collections.abc import Callable
from statistics import median

import orjson
from benchmarks.effort import QUICK, Effort, Figures
from benchmarks.script import main

from penstock.model.hosts import pack_host
from penstock.protocol.codes import RequestCode
from penstock.protocol.commands import Command, decode_command, encode_command, encode_head, reply
from penstock.protocol.frames import Frame, FrameDecoder
from penstock.protocol.headers.codec import encode_header
from penstock.protocol.headers.send import (
    SendMessage,
    SendMessageResult,
    decode_send_v2,
    encode_send_v2,
)
from penstock.protocol.records.codec import encode_record

BODY_BYTES = 128
SENDS_PER_CHUNK = 32
CHUNKS_PER_ROUND = 300
STORED_AT = 1_700_000_000_123

_BORN_HOST, _STORE_HOST = pack_host("10.0.0.7", 51234), pack_host("10.0.0.5", 10911)
_encode_result = encode_header


def run(effort: Effort = QUICK) -> Figures:
    """Sends per second of CPU time, medians of interleaved rounds."""
    chunk = _chunk()
    frames = FrameDecoder().feed(chunk)
    rates: dict[str, list[float]] = {"json": [], "header": [], "header_and_record": [], "whole": []}
    chunks = effort.scaled(CHUNKS_PER_ROUND)
    for _ in range(effort.rounds):
        rates["json"].append(_rate(lambda: _json(frames), chunks))
        rates["header"].append(_rate(lambda: _headers(frames), chunks))
        rates["header_and_record"].append(_rate(lambda: _records(frames), chunks))
        rates["whole"].append(_rate(lambda: _whole(chunk), chunks))
    medians = {name: median(values) for name, values in rates.items()}
    return {
        "benchmark": "send_header",
        "body_bytes": BODY_BYTES,
        "header_bytes": len(frames[0].header),
        **{f"{name}_per_second": round(rate) for name, rate in medians.items()},
        **{
            f"{name}_ratio_to_json": round(rate / medians["json"], 3)
            for name, rate in medians.items()
            if name != "json"
        },
    }


def _chunk() -> bytes:
    """Requests as pipelined by a Java producer."""
    properties = (
        "KEYS\x01order-4711\x02UNIQ_KEY\x010A000005123418B4AAC2075BCD150007\x02WAIT\x01true\x02"
        "TAGS\x01created\x02"
    )
    header = SendMessage(
        *("shop", "orders", "TBW102", 4, 3, 0, STORED_AT - 1, 0),
        properties=properties,
        broker_name="broker-a",
    )
    ext = encode_send_v2(header)
    code, body = RequestCode.SEND_MESSAGE_V2, bytes(BODY_BYTES)
    return b"".join(
        encode_command(Command(code, number, ext=ext, body=body))
        for number in range(1, SENDS_PER_CHUNK + 1)
    )


def _json(frames: list[Frame]) -> None:
    for frame in frames:
        orjson.loads(frame.header)


def _headers(frames: list[Frame]) -> None:
    for frame in frames:
        decode_send_v2(decode_command(frame).ext or {})


def _records(frames: list[Frame]) -> None:
    for frame in frames:
        _record(decode_command(frame), 0, 0)


def _whole(chunk: bytes) -> None:
    answers: list[bytes] = []
    log_position = 0
    for queue_offset, frame in enumerate(FrameDecoder().feed(chunk)):
        request = decode_command(frame)
        record = _record(request, queue_offset, log_position)
        log_position += len(record)
        result = SendMessageResult(
            *("0A00000500002A9F0000000000000400", 3, queue_offset),
            transaction_id="0A000005123418B4AAC2075BCD150007",
            region="DefaultRegion",
            trace_on="true",
        )
        answers.append(encode_head(reply(request, 0, _encode_result(result)), 0))
    b"".join(answers)


def _record(request: Command, queue_offset: int, log_position: int) -> bytes:
    header = decode_send_v2(request.ext or {})
    body = request.body
    assert isinstance(body, bytes)
    return encode_record(
        header.topic.encode(),
        body,
        (header.properties or "").encode(),
        header.queue_id,
        queue_offset,
        log_position,
        STORED_AT,
        header.born_timestamp,
        _BORN_HOST,
        _STORE_HOST,
        header.flag,
        header.sys_flag,
        header.reconsume_times,
    )


def _rate(work: Callable[[], None], chunks: int) -> float:
    # CPU time: the work never waits, so wall time would only add other processes.
    started = time.process_time()
    for _ in range(chunks):
        work()
    return SENDS_PER_CHUNK * chunks / (time.process_time() - started)


if __name__ == "__main__":
    main(run)
