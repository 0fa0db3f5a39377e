"""Requests of an operator that the broker forwards to a consumer.

A client can be reached only over the connection that it opened, so tools go through the broker.
"""

from __future__ import annotations

import contextlib
from typing import Final

from penstock.broker.state import BrokerState
from penstock.broker.tables.clients import ClientChannel
from penstock.errors import (
    InvalidArgument,
    ProtocolError,
    RemotingError,
    RequestRefused,
    RequestTimeout,
)
from penstock.model import MessageQueue
from penstock.protocol.acl import unsigned
from penstock.protocol.bodies.codec import decode_body, encode_body
from penstock.protocol.bodies.offsets import ConsumerStatus
from penstock.protocol.codes import RequestCode, ResponseCode, request_name
from penstock.protocol.commands import Command
from penstock.protocol.headers.clients import (
    ConsumeMessageDirectly,
    GetConsumerRunningInfo,
    GetConsumerStatus,
)
from penstock.protocol.headers.codec import encode_header
from penstock.protocol.records.message_ids import parse_offset_message_id
from penstock.remoting import Promise
from penstock.remoting.dispatch import Call, handles

RELAY_SECONDS: Final = 10.0
STATUS_SECONDS: Final = 5.0
MAX_MEMBERS_ASKED: Final = 1000

FIRST_VERSION_WITH_RELAY: Final = 62
"""V3_1_8_SNAPSHOT: the first release that answers forwarded requests."""
FIRST_VERSION_WITH_STATUS: Final = 28
"""V3_0_7_SNAPSHOT: the first release that reports its offsets and accepts new ones."""


@handles(RequestCode.GET_CONSUMER_RUNNING_INFO)
def get_running_info(broker: BrokerState, ask: GetConsumerRunningInfo, call: Call) -> Promise:
    """The running state of a consumer."""
    ext = unsigned(call.command.ext)
    return _relay(
        broker, ask.consumer_group, ask.client_id, Command(call.command.code, ext=ext, body=b"")
    )


@handles(RequestCode.CONSUME_MESSAGE_DIRECTLY)
def consume_directly(broker: BrokerState, ask: ConsumeMessageDirectly, call: Call) -> Promise:
    """Have a consumer process one stored message now, and return its result."""
    if not ask.msg_id:
        raise InvalidArgument("no msgId", expected="the offset message id of a stored message")
    record = broker.storage.record_at(parse_offset_message_id(ask.msg_id).log_position)
    if record is None:
        raise RequestRefused(
            f"can not find message by the id, {ask.msg_id}",
            expected="the offset message id of a message of this broker that is still there",
        )
    ext = {**unsigned(call.command.ext), "brokerName": broker.config.broker_name}
    group = broker.groups.get(ask.consumer_group)
    topic = broker.topics.get(ask.topic or "")
    if group is not None:
        ext["groupSysFlag"] = str(group.group_sys_flag or 0)
    if topic is not None:
        ext["topicSysFlag"] = str(topic.topic_sys_flag)
    request = Command(call.command.code, ext=ext, body=bytes(record))
    return _relay(broker, ask.consumer_group, ask.client_id or "", request)


def _relay(broker: BrokerState, group: str, client_id: str, request: Command) -> Promise:
    """Forward a request to one member of a group and return its answer."""
    who = f"<{group}> <{client_id}>"
    members = broker.clients.consumer_group(group)
    channel = None if members is None else members.channel_of(client_id)
    if channel is None:
        raise RequestRefused(
            f"The Consumer {who} not online", expected="a client id that is connected to the group"
        )
    if channel.version < FIRST_VERSION_WITH_RELAY:
        raise RequestRefused(
            f"The Consumer {who} Version <{channel.version}> too low to finish, please upgrade it "
            f"to V3_1_8_SNAPSHOT"
        )
    promise = Promise()

    def answered(answer: Command | RemotingError) -> None:
        promise.resolve(_relayed(who, request.code, answer))

    try:
        channel.peer.start_request(request, RELAY_SECONDS, answered)
    except RemotingError as error:
        raise RequestRefused(f"invoke consumer {who} Exception: {error}") from error
    return promise


def _relayed(who: str, code: int, answer: Command | RemotingError) -> Command:
    if isinstance(answer, Command):
        return Command(answer.code, ext=answer.ext, body=answer.body, remark=answer.remark)
    if isinstance(answer, RequestTimeout):
        return Command(
            ResponseCode.CONSUME_MSG_TIMEOUT,
            remark=f"consumer {who} Timeout: no answer to {request_name(code)} "
            f"within {RELAY_SECONDS:g} s",
        )
    return Command(ResponseCode.SYSTEM_ERROR, remark=f"invoke consumer {who} Exception: {answer}")


@handles(RequestCode.INVOKE_BROKER_TO_GET_CONSUMER_STATUS)
def get_consumer_status(broker: BrokerState, ask: GetConsumerStatus) -> Promise:
    """The offsets that one member of a group, or all of them, report for a topic."""
    members = broker.clients.consumer_group(ask.group)
    if members is None:
        raise RequestRefused(f"No Any Consumer online in the consumer group: [{ask.group}]")
    channels = [
        channel
        for channel in members.channels.values()
        if not ask.client_addr or channel.client_id == ask.client_addr
    ]
    for channel in channels:
        if channel.version < FIRST_VERSION_WITH_STATUS:
            raise RequestRefused(
                f"the client does not support this feature. version={channel.version}"
            )
    gathering = _StatusGathering(len(channels[:MAX_MEMBERS_ASKED]))
    for channel in channels[:MAX_MEMBERS_ASKED]:
        gathering.ask(channel, ask)
    return gathering.promise


class _StatusGathering:
    """Gathers the answers of several members, without those that do not answer."""

    def __init__(self, expected: int) -> None:
        self.promise = Promise()
        self._missing = expected
        self._table: dict[str, dict[MessageQueue, int]] = {}
        if not expected:
            self._finish()

    def ask(self, channel: ClientChannel, ask: GetConsumerStatus) -> None:
        request = Command(
            RequestCode.GET_CONSUMER_STATUS_FROM_CLIENT,
            ext=encode_header(GetConsumerStatus(ask.topic, ask.group)),
        )

        def answered(answer: Command | RemotingError) -> None:
            self._take(channel.client_id, answer)

        try:
            channel.peer.start_request(request, STATUS_SECONDS, answered)
        except RemotingError as error:
            self._take(channel.client_id, error)

    def _take(self, client_id: str, answer: Command | RemotingError) -> None:
        if isinstance(answer, Command) and answer.code == ResponseCode.SUCCESS:
            body = answer.body
            assert isinstance(body, bytes), "a received body is bytes"
            # A member whose answer cannot be read counts as one that did not answer.
            with contextlib.suppress(ProtocolError):
                self._table[client_id] = decode_body(ConsumerStatus, body).message_queue_table
        self._missing -= 1
        if not self._missing:
            self._finish()

    def _finish(self) -> None:
        self.promise.resolve(
            Command(ResponseCode.SUCCESS, body=encode_body(ConsumerStatus({}, self._table)))
        )
