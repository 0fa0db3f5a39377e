"""Request-reply: pushes a reply to its requester.

The reply names its requester by client id (REPLY_TO_CLIENT). The broker pushes it over the
connection of the requester's producer, waits for the acknowledgement, and then answers the replier.
A copy is stored in the cluster's reply topic.
"""

from __future__ import annotations

import logging
from typing import Final

from penstock.broker.handlers.fast_send import SENDER_FLAGS, born_host
from penstock.broker.handlers.send_checks import checked_body, queue_of_send, refuse_if_slave
from penstock.broker.state import BrokerState
from penstock.errors import (
    IllegalMessage,
    PenstockError,
    RemotingError,
    StoreError,
)
from penstock.model.hosts import offset_message_id
from penstock.model.names import Property
from penstock.model.properties import format_properties, parse_properties
from penstock.protocol.codes import RequestCode, ResponseCode, response_name
from penstock.protocol.commands import Command
from penstock.protocol.headers.codec import decode_header, encode_header
from penstock.protocol.headers.send import PushReply, SendMessage, decode_send_v2
from penstock.remoting import Peer, Promise
from penstock.store import Appended, Draft

log = logging.getLogger(__name__)

PUSH_SECONDS: Final = 10.0
"""How long the broker waits for the acknowledgement of the requester."""


class Replying:
    """SEND_REPLY_MESSAGE in its two spellings."""

    def __init__(self, broker: BrokerState) -> None:
        self._broker = broker
        self._region = {
            Property.REGION: broker.config.region_id,
            Property.TRACE_ON: "true" if broker.config.trace_on else "false",
        }

    def reply_v1(self, peer: Peer, command: Command) -> Command | Promise:
        """SEND_REPLY_MESSAGE: the header with whole names."""
        return self._reply(peer, command, decode_header(SendMessage, command.ext))

    def reply_v2(self, peer: Peer, command: Command) -> Command | Promise:
        """SEND_REPLY_MESSAGE_V2: the header in single letters."""
        return self._reply(peer, command, decode_send_v2(command.ext))

    def _reply(self, peer: Peer, command: Command, ask: SendMessage) -> Command | Promise:
        try:
            draft = self._draft(peer, command, ask)
        except PenstockError as error:
            return Command(error.code, ext=dict(self._region), remark=str(error))
        properties = parse_properties(draft.properties)
        client_id = properties.get(Property.REPLY_TO_CLIENT)
        if client_id is None:
            return self._answer(draft, f"{Property.REPLY_TO_CLIENT} is null, can not reply message")
        requester = self._broker.clients.producer_by_client_id(client_id)
        if requester is None:
            return self._answer(
                draft, f"push reply message fail, channel of <{client_id}> not found."
            )
        promise = Promise()

        def pushed(answer: Command | RemotingError) -> None:
            trouble = _trouble(answer)
            if trouble is not None:
                trouble = f"push reply message to {client_id} fail: {trouble}"
            promise.resolve(self._answer(draft, trouble))

        push = self._push(peer, ask, draft, properties)
        try:
            requester.peer.start_request(push, PUSH_SECONDS, pushed)
        except RemotingError as error:
            return self._answer(draft, f"push reply message to {client_id} fail: {error}")
        return promise

    def _draft(self, peer: Peer, command: Command, ask: SendMessage) -> Draft:
        """Check a reply as a send is checked, and make it ready for the store."""
        broker = self._broker
        refuse_if_slave(broker)
        body = checked_body(broker, command)
        text, _, _ = broker.broker_properties.stamp(ask.properties or "")
        return Draft(
            ask.topic,
            queue_of_send(broker, ask),
            body,
            text.encode(),
            ask.flag,
            ask.sys_flag & SENDER_FLAGS,
            ask.born_timestamp,
            born_host(peer),
            broker.store_host,
            ask.reconsume_times,
            0,
        )

    def _push(
        self, peer: Peer, ask: SendMessage, draft: Draft, properties: dict[str, str]
    ) -> Command:
        now = self._broker.clock.time_ms()
        header = PushReply(
            producer_group=ask.producer_group,
            topic=ask.topic,
            default_topic=ask.default_topic,
            default_topic_queue_nums=ask.default_topic_queue_nums,
            queue_id=draft.queue_id,
            sys_flag=draft.sys_flag,
            born_timestamp=ask.born_timestamp,
            flag=ask.flag,
            born_host=peer.remote,
            store_host=self._broker.address,
            store_timestamp=now,
            properties=format_properties({**properties, Property.PUSH_REPLY_TIME: str(now)}),
            reconsume_times=ask.reconsume_times,
            unit_mode=ask.unit_mode,
        )
        return Command(
            RequestCode.PUSH_REPLY_MESSAGE_TO_CLIENT, ext=encode_header(header), body=draft.body
        )

    def _answer(self, draft: Draft, trouble: str | None) -> Command:
        """The answer to the replier; a copy is stored whether the requester was reached or not."""
        appended = self._store(draft)
        ext = dict(self._region)
        if trouble is None or appended is not None:
            ext["msgId"] = (
                "0"
                if appended is None
                else offset_message_id(draft.store_host, appended.log_position)
            )
            ext["queueId"] = str(draft.queue_id)
            ext["queueOffset"] = "0" if appended is None else str(appended.queue_offset)
        code = ResponseCode.SUCCESS if trouble is None else ResponseCode.SYSTEM_ERROR
        return Command(code, ext=ext, remark=trouble)

    def _store(self, draft: Draft) -> Appended | None:
        if not self._broker.config.store_reply_message_enable:
            return None
        try:
            appended = self._broker.storage.append(draft)
        except (StoreError, IllegalMessage) as error:
            # The requester has its reply; the copy is for inspection only.
            log.warning("reply not stored topic=%s error=%s", draft.topic, error)
            return None
        self._broker.stats.put(draft.topic, draft.queue_id, appended.size)
        return appended


def _trouble(answer: Command | RemotingError) -> str | None:
    if isinstance(answer, RemotingError):
        return str(answer)
    if answer.code != ResponseCode.SUCCESS:
        return f"it answered {response_name(answer.code)} {answer.remark or ''}".rstrip()
    return None
