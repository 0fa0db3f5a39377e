"""Receipt handles of our client, made of an answer that Apache's broker gave to Java's client."""

from __future__ import annotations

import gzip
import json
from pathlib import Path

import pytest

from penstock.client.consuming.pop_receipts import batch_entries, handle_of, popped_messages
from penstock.errors import InvalidArgument
from penstock.model import MessageQueue, StoredMessage
from penstock.protocol.commands import Command, decode_command
from penstock.protocol.frames import FrameDecoder
from penstock.protocol.headers.receipts import ReceiptHandle

FRAMES = Path(__file__).parents[2] / "vectors/frames-5.5.0.jsonl.gz"


def captured(code: int) -> tuple[Command, Command]:
    """A captured request and its answer."""
    with gzip.open(FRAMES, "rt") as lines:
        frames = [json.loads(line) for line in lines]
    request = next(f for f in frames if f["step"] == "pop" and f["code"] == code)
    answer = next(
        f
        for f in frames
        if f["opaque"] == request["opaque"]
        and f["connection"] == request["connection"]
        and f["flag"] & 1
    )
    decoder = FrameDecoder()
    first, second = (
        decode_command(decoder.feed(bytes.fromhex(f["frame_hex"]))[0]) for f in (request, answer)
    )
    return first, second


@pytest.mark.spec("P20")
def test_the_handle_is_the_one_that_java_made_of_this_answer() -> None:
    request, answer = captured(200050)
    acked, _ = captured(200051)
    assert request.ext is not None
    assert acked.ext is not None
    messages = popped_messages(
        answer, request.ext["consumerGroup"], request.ext["topic"], "broker-a", None
    )
    assert len(messages) == 7
    handles = {str(handle_of(message)) for message in messages}
    assert "0 1794793936037 10000 0 0 broker-a 0 1" in handles
    assert acked.ext["extraInfo"] in handles
    assert {message.topic for message in messages} == {request.ext["topic"]}


@pytest.mark.spec("P29")
def test_a_batch_has_an_entry_for_each_pop_and_queue() -> None:
    handle = ReceiptHandle.parse("100 1700000000000 60000 2 0 broker-a 3 100")
    handles = [("T", handle._replace(queue_offset=offset)) for offset in (100, 103, 109)]
    (entry,) = batch_entries("g1", handles)
    assert (entry.bits, entry.start_offset, entry.retry) == (bytes((9, 2)), 100, "0")
    other = handle._replace(flag=1, pop_time=1)
    assert len(batch_entries("g1", [*handles, ("T", other)])) == 2


def test_a_message_that_was_not_popped_has_no_handle() -> None:
    with pytest.raises(InvalidArgument, match="no receipt handle"):
        handle_of(StoredMessage("T", b"x", {}, MessageQueue("T", "broker-a", 0), 0))
