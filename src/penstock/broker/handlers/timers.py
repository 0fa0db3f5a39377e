"""Timer messages: recall, and what tools ask about them."""

from __future__ import annotations

from penstock.broker.handlers.fast_send import born_host
from penstock.broker.state import BrokerState
from penstock.broker.timers.recall import check_recall, delete_mark, is_marked
from penstock.errors import IllegalMessage, RequestRefused, StoreError
from penstock.protocol.codes import RequestCode
from penstock.protocol.commands import Command
from penstock.protocol.headers.codec import encode_header
from penstock.protocol.headers.send import RecallMessage, RecallMessageResult
from penstock.remoting import Promise
from penstock.remoting.dispatch import Call, Reply, handles


@handles(RequestCode.RECALL_MESSAGE)
def recall_message(broker: BrokerState, ask: RecallMessage, call: Call) -> Command | Promise:
    """Take a timer message back; success means that it is not delivered."""
    handle = check_recall(broker, ask)
    header = RecallMessageResult(handle.unique_id, broker.config.region_id)
    answer = Command(0, ext=encode_header(header))
    if is_marked(broker, handle):
        return answer
    draft = delete_mark(broker, ask, handle, born_host(call.peer))
    try:
        appended = broker.storage.append(draft)
    except (StoreError, IllegalMessage) as error:
        raise RequestRefused(f"recall failed, execute error: {error}") from error
    broker.timers.parked()
    if not broker.storage.is_sync_flush:
        return answer
    promise = Promise()
    broker.storage.when_on_disk(appended.log_position + appended.size, promise, answer)
    return promise


@handles(RequestCode.GET_TIMER_CHECK_POINT)
def get_timer_check_point(broker: BrokerState) -> Reply:
    """How far timer messages were enqueued and delivered, as it is saved."""
    return Reply(body=broker.timers.checkpoint.encode())


@handles(RequestCode.GET_TIMER_METRICS)
def get_timer_metrics(broker: BrokerState) -> Reply:
    """How many timer messages wait for each topic."""
    return Reply(body=broker.timers.metrics.table())
