"""Requests for the ceilings of the client benchmarks, in addition to those of `requests`."""

from __future__ import annotations

from benchmarks.requests import BORN

from penstock.protocol.codes import RequestCode
from penstock.protocol.commands import Command
from penstock.protocol.headers.send import SendMessage, encode_send_v2
from penstock.protocol.records.batches import BatchItem, encode_batch


def send_batch(topic: str, queue_id: int, body: bytes, number: int, size: int) -> Command:
    """``size`` messages with unique ids and a tag, in one request."""
    items = [
        BatchItem(
            body,
            b"WAIT\x01true\x02UNIQ_KEY\x017F0000013A2218B4AAC2%012X\x02TAGS\x01t\x02"
            % (number * size + n),
            0,
        )
        for n in range(size)
    ]
    header = SendMessage(
        *("bench-producers", topic, "TBW102", 8, queue_id, 0, BORN, 0),
        properties="WAIT\x01true\x02",
        batch=True,
        broker_name="broker-a",
    )
    ext = encode_send_v2(header)
    return Command(RequestCode.SEND_BATCH_MESSAGE, number + 1, ext=ext, body=encode_batch(items))
