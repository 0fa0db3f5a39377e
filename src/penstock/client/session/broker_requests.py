"""Requests of brokers, over the connection the client opened.

    40  the members of a group changed    rebalance now
    39  check a transaction               the producer decides and answers with END_TRANSACTION
    220 reset the offsets of a group      the consumer continues at the new offsets
    221 the offsets of a consumer         offsets by queue
    307 the running info of a consumer    settings, statistics and the state of each queue
    309 handle this message now           the result of the handler
    326 the reply to a request            passed to the waiting `Producer.request`

Other codes are answered with "not supported". No code of the user runs on the loop: a request that
needs a handler is answered later.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import TYPE_CHECKING

from penstock.client.requests import body_bytes, end_transaction
from penstock.client.session.members import ConsumerMember
from penstock.errors import PenstockError, RequestCodeNotSupported, RequestRefused
from penstock.model import MessageQueue, StoredMessage
from penstock.model.names import Property
from penstock.protocol import bodies, headers
from penstock.protocol.bodies.codec import decode_body, encode_body
from penstock.protocol.codes import RequestCode, ResponseCode
from penstock.protocol.commands import Command
from penstock.protocol.headers.codec import decode_header
from penstock.protocol.records.codec import decode_record
from penstock.protocol.records.compression import decompress
from penstock.protocol.records.pulled import message_from_record
from penstock.protocol.records.sys_flags import SysFlag
from penstock.remoting.peer import Peer
from penstock.remoting.promise import Promise

if TYPE_CHECKING:
    from penstock.client.session.client_session import ClientSession

log = logging.getLogger(__name__)

Answer = Command | Promise | None


class BrokerRequests:
    """Serves the requests of brokers for one session."""

    def __init__(self, session: ClientSession) -> None:
        self._session = session
        self._handlers: dict[int, Callable[[Peer, Command], Answer]] = {
            RequestCode.NOTIFY_CONSUMER_IDS_CHANGED: self._members_changed,
            RequestCode.CHECK_TRANSACTION_STATE: self._check_transaction,
            RequestCode.RESET_CONSUMER_CLIENT_OFFSET: self._reset_offsets,
            RequestCode.GET_CONSUMER_STATUS_FROM_CLIENT: self._status,
            RequestCode.GET_CONSUMER_RUNNING_INFO: self._running_info,
            RequestCode.CONSUME_MESSAGE_DIRECTLY: self._consume_directly,
            RequestCode.PUSH_REPLY_MESSAGE_TO_CLIENT: self._take_reply,
        }

    def serve(self, peer: Peer, request: Command) -> Answer:
        """Answer one request; called by the connection."""
        handler = self._handlers.get(request.code)
        if handler is None:
            raise RequestCodeNotSupported(f" request type {request.code} not supported")
        return handler(peer, request)

    def _consumer(self, group: str) -> ConsumerMember:
        member = self._session.consumers.get(group)
        if member is None:
            raise RequestRefused(
                f"consumer group {group!r} does not run in client {self._session.client_id}",
                code=ResponseCode.SYSTEM_ERROR,
            )
        return member

    def _members_changed(self, peer: Peer, request: Command) -> Answer:
        ask = decode_header(headers.clients.NotifyConsumerIdsChanged, request.ext)
        log.info("members changed group=%s broker=%s", ask.consumer_group, peer.remote)
        self._session.wake_rebalance()
        return None

    def _reset_offsets(self, peer: Peer, request: Command) -> Answer:
        ask = decode_header(headers.clients.ResetOffset, request.ext)
        member = self._consumer(ask.group)
        offsets = decode_body(bodies.offsets.ResetOffsets, body_bytes(request)).offset_table
        log.info("offsets reset group=%s topic=%s broker=%s", ask.group, ask.topic, peer.remote)
        self._session.tasks.spawn(
            member.reset_offsets(ask.topic, offsets), f"reset {ask.group} {ask.topic}"
        )
        return Command(ResponseCode.SUCCESS)

    def _status(self, peer: Peer, request: Command) -> Answer:
        ask = decode_header(headers.clients.GetConsumerStatus, request.ext)
        status = bodies.offsets.ConsumerStatus(dict(self._consumer(ask.group).offsets(ask.topic)))
        return Command(ResponseCode.SUCCESS, body=encode_body(status))

    def _running_info(self, peer: Peer, request: Command) -> Answer:
        ask = decode_header(headers.clients.GetConsumerRunningInfo, request.ext)
        info = self._consumer(ask.consumer_group).running_info(with_stacks=ask.jstack_enable)
        return Command(ResponseCode.SUCCESS, body=encode_body(info))

    def _consume_directly(self, peer: Peer, request: Command) -> Answer:
        ask = decode_header(headers.clients.ConsumeMessageDirectly, request.ext)
        member = self._consumer(ask.consumer_group)
        message = message_from_record(decode_record(body_bytes(request)), ask.broker_name or "")
        promise = Promise()

        async def consume() -> None:
            try:
                result = await member.consume_directly(message)
            except PenstockError as error:
                promise.fail(error)
            else:
                promise.resolve(Command(ResponseCode.SUCCESS, body=encode_body(result)))

        self._session.tasks.spawn(consume(), f"consume directly {ask.consumer_group}")
        return promise

    def _take_reply(self, peer: Peer, request: Command) -> Answer:
        ask = decode_header(headers.send.PushReply, request.ext)
        sys_flag = ask.sys_flag
        message = StoredMessage(
            ask.topic,
            decompress(body_bytes(request), sys_flag),
            (ask.properties or "").encode(),
            MessageQueue(ask.topic, "", ask.queue_id),
            0,
            born_timestamp=ask.born_timestamp,
            store_timestamp=ask.store_timestamp,
            born_host=ask.born_host.lstrip("/"),
            store_host=ask.store_host.lstrip("/"),
            reconsume_times=ask.reconsume_times,
            sys_flag=sys_flag & ~SysFlag.COMPRESSED,
            flag=ask.flag,
            offset_msg_id="",
        )
        message.properties[Property.ARRIVE_TIME] = str(self._session.clock.time_ms())
        correlation = message.properties.get(Property.CORRELATION_ID, "")
        waiting = self._session.replies.pop(correlation, None)
        if waiting is None:
            log.warning("reply came too late or to the wrong client correlation=%s", correlation)
        else:
            waiting(message)
        return Command(ResponseCode.SUCCESS)

    def _check_transaction(self, peer: Peer, request: Command) -> Answer:
        ask = decode_header(headers.transactions.CheckTransactionState, request.ext)
        message = message_from_record(decode_record(body_bytes(request)), "")
        group = message.properties.get(Property.PRODUCER_GROUP, "")
        member = self._session.producers.get(group)
        if member is None:
            log.warning("transaction of an unknown producer group group=%s", group)
            return None

        def answer(state: int) -> None:
            end = headers.transactions.EndTransaction(
                producer_group=group,
                tran_state_table_offset=ask.tran_state_table_offset,
                commit_log_offset=ask.commit_log_offset,
                commit_or_rollback=state,
                from_transaction_check=True,
                msg_id=message.msg_id,
                transaction_id=ask.transaction_id,
                topic=message.topic,
            )
            if not peer.is_closed:
                peer.oneway(self._session.calls.signed(end_transaction(end).command()))

        member.check_transaction(message, answer)
        return None
