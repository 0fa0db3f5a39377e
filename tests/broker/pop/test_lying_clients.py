"""Invented receipt handles: each is refused or has no effect, and nothing moves."""

from __future__ import annotations

import json
import os
import tempfile
from pathlib import Path
from typing import Any, NamedTuple

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.support.asking import put_topic
from tests.support.popping import Got, pop
from tests.support.stage import Stage
from tests.support.wire import Wire

from penstock.broker.broker import Broker
from penstock.protocol.codes import RequestCode
from penstock.protocol.headers.pop import AckMessage, ChangeInvisibleTime
from penstock.testing.virtual_time.loop import run_virtual

ANSWERS = {0, 1, 13, 17, 29, 208}
"""Success of what has no effect, and the refusals."""
HANDED_OUT = 4

numbers = st.one_of(
    st.integers(-2, 8),
    st.sampled_from([999, 60_000, 2**31, 2**63 - 1, -(2**63), 2**64, 10**40]),
    st.integers(-(2**63), 2**63 - 1),
)
words = st.text("a9 -.x\u2603\n", max_size=8)


class Lie(NamedTuple):
    """A request about a message that this client was not given."""

    kind: str
    topic: str
    queue_id: int
    offset: int
    handle: tuple[Any, ...]
    """The items of a handle; its pop time is never a real one."""
    number: int


def shifted(number: int) -> int:
    """A pop time that was never given out: the broker's clock is at 1.7e12."""
    return number if abs(number) < 10**11 else number * 3 + 1


lies = st.builds(
    Lie,
    st.sampled_from(["ack", "change", "batch", "of others"]),
    st.sampled_from(["T", "T", "T", "%RETRY%g_T", "unknown", ""]),
    st.one_of(st.sampled_from([0, 1]), st.integers(-3, 5)),
    st.one_of(st.integers(0, 5), st.integers(-(2**31), 2**31)),
    st.one_of(
        st.tuples(
            numbers, numbers.map(shifted), numbers, numbers, numbers, words, numbers, numbers
        ),
        st.lists(st.one_of(numbers, words), max_size=12).map(tuple),
    ),
    numbers,
)


async def tell(wire: Wire, lie: Lie, got: Got) -> int:
    text = " ".join(map(str, lie.handle))
    if lie.kind == "of others":
        # A real handle, but another group or a message that was not handed out.
        header = AckMessage("others", "T", got.queue_id, got.handle, got.offset)
        if lie.number % 2:
            header = AckMessage("g", "T", got.queue_id, got.handle, HANDED_OUT + 1)
        return (await wire.request(RequestCode.ACK_MESSAGE, header)).code
    if lie.kind == "batch":
        entry = {
            **{"c": "g", "t": lie.topic, "r": "0", "so": lie.offset, "q": lie.queue_id},
            **{"rq": lie.number, "pt": shifted(lie.number), "it": lie.number, "b": text},
        }
        body = json.dumps({"brokerName": "broker-a", "acks": [entry]}).encode()
        return (await wire.request(RequestCode.BATCH_ACK_MESSAGE, body=body)).code
    if lie.kind == "change":
        change = ChangeInvisibleTime(
            "g", lie.topic, lie.queue_id, text, lie.offset, min(lie.number, 2**63 - 1)
        )
        return (await wire.request(RequestCode.CHANGE_MESSAGE_INVISIBLETIME, change)).code
    ack = AckMessage("g", lie.topic, lie.queue_id, text, lie.offset)
    return (await wire.request(RequestCode.ACK_MESSAGE, ack)).code


def state_of(broker: Broker) -> tuple[object, ...]:
    """All that an acknowledgement could move."""
    queue = broker.state.pop.points.queue("g", "T", 0)
    return (
        sorted(queue.receipts),
        broker.state.offsets.of_group("g"),
        broker.state.pop.journal.end,
        broker.state.pop.orders.blocked(),
    )


async def check_lies(root: Path, sent: list[Lie]) -> None:
    async with Stage(root) as stage:
        broker = await stage.broker()
        wire = await stage.connect(broker)
        await put_topic(wire, "T", 2)
        for number in range(6):
            await wire.send("T", b"%d" % number)
        got = await pop(wire, count=HANDED_OUT, queue_id=0, invisible=30)
        assert len(got) == HANDED_OUT
        before = state_of(broker)
        for lie in sent:
            code = await tell(wire, lie, got[abs(lie.number) % HANDED_OUT])
            assert code in ANSWERS, (lie, code)
            assert state_of(broker) == before, lie
        await stage.clock.sleep(30.5)
        again = await pop(wire)
        assert sorted(one.body for one in again) == [b"%d" % number for number in range(6)]


@pytest.mark.spec("P21", "P24", "P29")
@settings(max_examples=max(8, int(os.environ.get("PENSTOCK_EXAMPLES", "0")) // 16))
@given(st.lists(lies, min_size=1, max_size=24))
def test_invented_handles_move_nothing(sent: list[Lie]) -> None:
    with tempfile.TemporaryDirectory() as root:
        run_virtual(lambda _: check_lies(Path(root), sent))
