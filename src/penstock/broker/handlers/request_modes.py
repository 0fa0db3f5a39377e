"""Whether groups pull or pop a topic: set by an operator, asked by clients."""

from __future__ import annotations

import logging

from penstock.broker.handlers.table_requests import answer_when_saved
from penstock.broker.pop.request_modes import REQUEST_MODES_FILE
from penstock.broker.state import BrokerState
from penstock.errors import GroupNotFound, NoPermission
from penstock.model.names import RETRY_PREFIX
from penstock.protocol.bodies.pop import SetRequestMode
from penstock.protocol.codes import RequestCode
from penstock.remoting import Promise
from penstock.remoting.dispatch import Call, Reply, handles

log = logging.getLogger(__name__)


@handles(RequestCode.SET_MESSAGE_REQUEST_MODE)
def set_request_mode(broker: BrokerState, call: Call) -> Promise:
    """Let a group pull or pop a topic; its members ask for the mode when they rebalance."""
    ask = call.json(SetRequestMode)
    if ask.topic.startswith(RETRY_PREFIX):
        raise NoPermission("retry topic is not allowed to set mode")
    broker.topics.require(ask.topic)
    if ask.consumer_group not in broker.groups:
        raise GroupNotFound(f"subscription group [{ask.consumer_group}] does not exist")
    broker.pop.modes.put(ask)
    log.info(
        "mode set group=%s topic=%s mode=%s share=%d by=%s",
        ask.consumer_group,
        ask.topic,
        ask.mode.value,
        ask.pop_share_queue_num,
        call.peer.remote,
    )
    return answer_when_saved(broker, REQUEST_MODES_FILE)


@handles(RequestCode.GET_ALL_MESSAGE_REQUEST_MODE)
def get_request_modes(broker: BrokerState) -> Reply:
    """The modes that were set."""
    return Reply(body=broker.pop.modes.table())
