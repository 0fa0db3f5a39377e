"""The fast path of lingering sends puts the same bytes on the wire as the plain path."""

from __future__ import annotations

import asyncio

from hypothesis import given, settings
from hypothesis import strategies as st
from tests.support.loop_clients import Bench, on_bench

from penstock.client.producing.outgoing import make_outgoing
from penstock.client.producing.receipts import Receipt
from penstock.errors import PenstockError
from penstock.model import Message
from penstock.protocol.codes import RequestCode
from penstock.protocol.records.batches import encode_batch

text = st.text(
    st.characters(codec="utf-8", exclude_characters="\x01\x02 |"), min_size=1, max_size=9
)
bodies = st.binary(min_size=1, max_size=20)
# The first two kinds take the fast path. Few tags, so that messages of one kind are common.
messages = (
    st.builds(Message, st.just("T"), bodies)
    | st.builds(Message, st.just("T"), bodies, tag=st.sampled_from(["a", "b", "", "ä"]) | text)
    | st.builds(Message, st.just("T"), bodies, tag=text, keys=st.lists(text, max_size=2))
    | st.builds(Message, st.just("T"), bodies, flag=st.integers(-(2**31), 2**31 - 1))
)


@settings(max_examples=60, deadline=None)
@given(st.lists(messages, min_size=2, max_size=12))
def test_a_batch_has_the_bytes_that_its_messages_have_on_the_plain_path(
    sent: list[Message],
) -> None:
    @on_bench()
    async def send(bench: Bench) -> None:
        producer = bench.producer(linger=0.05)
        await producer.queues("T")
        results: list[Receipt | PenstockError] = []
        for message in sent:
            producer.send(message, results.append)
        await asyncio.sleep(1)
        receipts = [result for result in results if isinstance(result, Receipt)]
        assert len(receipts) == len(sent)
        [request] = bench.broker.asked(RequestCode.SEND_BATCH_MESSAGE)
        plain = [
            make_outgoing(message, receipt.msg_id, producer.settings)
            for message, receipt in zip(sent, receipts, strict=True)
        ]
        items = [(one.body, one.properties.encode(), one.flag) for one in plain]
        assert request.body == encode_batch(items)

    send()


@on_bench()
async def test_the_timer_of_a_full_lane_ends_with_it(bench: Bench) -> None:
    producer = bench.producer(linger=1.0, linger_bytes=1000)
    await producer.queues("T")
    results: list[Receipt | PenstockError] = []

    def send(size: int) -> None:
        producer.send(Message("T", bytes(size)), results.append)

    send(1)
    await asyncio.sleep(0.5)
    send(1000)
    await asyncio.sleep(0.1)
    assert len(results) == 2
    send(1)
    # The first lane would have been sent by now; the second has waited for a part of its time.
    await asyncio.sleep(0.7)
    assert len(results) == 2
    await asyncio.sleep(0.5)
    assert len(results) == 3
