"""The consumption mode of groups: this broker supports pull only."""

from __future__ import annotations

from penstock.broker.state import BrokerState
from penstock.errors import GroupNotFound, NoPermission, RequestCodeNotSupported
from penstock.model.names import RETRY_PREFIX
from penstock.protocol.bodies.common import RequestMode
from penstock.protocol.bodies.pop import RequestModes, SetRequestMode
from penstock.protocol.codes import RequestCode
from penstock.remoting.dispatch import Call, Reply, handles


@handles(RequestCode.SET_MESSAGE_REQUEST_MODE)
def set_request_mode(broker: BrokerState, call: Call) -> None:
    """Accept pull, which is the default; refuse pop."""
    ask = call.json(SetRequestMode)
    if ask.topic.startswith(RETRY_PREFIX):
        raise NoPermission("retry topic is not allowed to set mode")
    broker.topics.require(ask.topic)
    if ask.consumer_group not in broker.groups:
        raise GroupNotFound(f"subscription group [{ask.consumer_group}] does not exist")
    if ask.mode is not RequestMode.PULL:
        raise RequestCodeNotSupported(
            f"mode {ask.mode.value} for {ask.topic}: this broker does not support pop consumption "
            f"yet",
            hint="consume by push or pull",
        )


@handles(RequestCode.GET_ALL_MESSAGE_REQUEST_MODE)
def get_request_modes(broker: BrokerState) -> Reply:
    """The modes that differ from the default: none."""
    return Reply(body=RequestModes())
