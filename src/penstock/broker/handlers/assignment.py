"""QUERY_ASSIGNMENT: the broker tells a member which queues it has, and whether to pull or pop."""

from __future__ import annotations

from penstock.broker.pop.assignment import STRATEGIES, assigned
from penstock.broker.state import BrokerState
from penstock.broker.tables.clients import BROADCASTING
from penstock.model import MessageQueue
from penstock.model.names import RETRY_PREFIX
from penstock.protocol.bodies.codec import encode_body
from penstock.protocol.bodies.common import MessageModel, RequestMode
from penstock.protocol.bodies.pop import QueryAssignment, QueueAssignment, QueueAssignments
from penstock.protocol.codes import RequestCode
from penstock.protocol.commands import Command
from penstock.remoting import Promise
from penstock.remoting.dispatch import Call, handles


@handles(RequestCode.QUERY_ASSIGNMENT)
def query_assignment(broker: BrokerState, call: Call) -> Promise:
    """The queues of a member over all brokers; without a valid answer it keeps what it has."""
    ask = call.json(QueryAssignment)
    promise = Promise()

    def answer(queues: tuple[MessageQueue, ...]) -> None:
        found = _assignments(broker, ask, queues)
        body = QueueAssignments(None if found is None else tuple(found))
        promise.resolve(Command(0, body=encode_body(body)))

    broker.pop.routes.queues(ask.topic, answer)
    return promise


def _assignments(
    broker: BrokerState, ask: QueryAssignment, queues: tuple[MessageQueue, ...]
) -> list[QueueAssignment] | None:
    """None: no valid answer."""
    if not queues:
        return None
    mode, share = request_mode(broker, ask.topic, ask.consumer_group)
    members = broker.clients.consumer_group(ask.consumer_group)
    if ask.message_model is MessageModel.BROADCASTING or (
        members is not None and members.message_model == BROADCASTING
    ):
        return [QueueAssignment(queue, mode) for queue in queues]
    strategy = STRATEGIES.get(ask.strategy_name or "AVG")
    if members is None or strategy is None:
        return None
    ids = sorted(set(members.client_ids()))
    return assigned(strategy, ask.client_id, ids, sorted(queues), mode, share)


def request_mode(broker: BrokerState, topic: str, group: str) -> tuple[RequestMode, int]:
    """The mode of a group in a topic, and how many members share a queue with its owner."""
    known = broker.pop.modes.get(topic, group)
    if known is not None:
        return known.mode, known.pop_share_queue_num
    if topic.startswith(RETRY_PREFIX):
        return RequestMode.PULL, 0
    config = broker.config
    return RequestMode(config.default_message_request_mode), config.default_pop_share_queue_num
