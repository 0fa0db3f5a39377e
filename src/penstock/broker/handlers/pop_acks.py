"""What becomes of popped messages: ACK_MESSAGE, BATCH_ACK_MESSAGE, CHANGE_MESSAGE_INVISIBLETIME."""

from __future__ import annotations

from penstock.broker.pop.acknowledging import (
    Receipt,
    acknowledge,
    acknowledge_all,
    change_invisible_time,
)
from penstock.broker.pop.checks import check_invisible_time
from penstock.broker.pop.storing import when_stored
from penstock.broker.state import BrokerState
from penstock.errors import ProtocolError, RequestRefused
from penstock.model.names import pop_retry_topic, pop_retry_topic_v2
from penstock.protocol.bodies.pop import MAX_BITS, BatchAck, BatchAckEntry
from penstock.protocol.codes import RequestCode, ResponseCode
from penstock.protocol.commands import Command
from penstock.protocol.headers.codec import encode_header
from penstock.protocol.headers.pop import (
    AckMessage,
    ChangeInvisibleTime,
    ChangeInvisibleTimeResult,
)
from penstock.protocol.headers.receipts import (
    NORMAL_TOPIC,
    RETRY_TOPIC_V1,
    RETRY_TOPIC_V2,
    ReceiptHandle,
)
from penstock.remoting import Promise
from penstock.remoting.dispatch import Call, handles


def _receipt(ask: AckMessage | ChangeInvisibleTime) -> Receipt:
    """Topic, queue and offset come from the request, the rest from its handle."""
    handle = ReceiptHandle.parse(ask.extra_info)
    return Receipt(
        ask.consumer_group,
        ask.topic,
        ask.queue_id,
        ask.offset,
        handle.pop_time,
        handle.invisible_time,
        handle.revive_queue_id,
    )


@handles(RequestCode.ACK_MESSAGE)
def ack_message(broker: BrokerState, ask: AckMessage) -> Command | Promise:
    """A popped message is done."""
    return when_stored(broker, acknowledge(broker, _receipt(ask)), Command(0))


@handles(RequestCode.BATCH_ACK_MESSAGE)
def batch_ack_message(broker: BrokerState, call: Call) -> Command | Promise:
    """Several popped messages are done."""
    entries = call.json(BatchAck).acks if call.body else ()
    if not entries:
        raise RequestRefused(
            "acknowledgement without messages", code=ResponseCode.NO_MESSAGE, expected="one or more"
        )
    bits = 8 * sum(len(entry.bits) for entry in entries)
    if bits > MAX_BITS:
        raise ProtocolError(
            f"acknowledgements with {bits} bits in one request", expected=f"at most {MAX_BITS}"
        )
    wanted = [(_shared(entry), entry.offsets()) for entry in entries]
    end = 0
    for receipt, offsets in wanted:
        end = max(end, acknowledge_all(broker, receipt, offsets))
    return when_stored(broker, end, Command(0))


def _shared(entry: BatchAckEntry) -> Receipt:
    """What the messages of an entry share; the entry names the subscribed topic."""
    group, topic = entry.consumer_group, entry.topic
    names = {
        str(NORMAL_TOPIC): topic,
        str(RETRY_TOPIC_V1): pop_retry_topic(group, topic),
        str(RETRY_TOPIC_V2): pop_retry_topic_v2(group, topic),
    }
    name = names.get(entry.retry)
    if name is None:
        raise ProtocolError(f"retry flag {entry.retry[:20]!r}", expected="0, 1 or 2")
    return Receipt(
        group,
        name,
        entry.queue_id,
        entry.start_offset,
        entry.pop_time,
        entry.invisible_time,
        entry.revive_queue_id,
    )


@handles(RequestCode.CHANGE_MESSAGE_INVISIBLETIME)
def change_message_invisible_time(
    broker: BrokerState, ask: ChangeInvisibleTime
) -> Command | Promise:
    """Let a popped message become visible sooner or later; the answer makes a new handle."""
    check_invisible_time(ask.invisible_time)
    changed = change_invisible_time(
        broker, _receipt(ask), ask.invisible_time, is_suspended=bool(ask.suspend)
    )
    header = ChangeInvisibleTimeResult(
        changed.pop_time, changed.invisible_ms, changed.revive_queue_id
    )
    return when_stored(broker, changed.log_end, Command(0, ext=encode_header(header)))
