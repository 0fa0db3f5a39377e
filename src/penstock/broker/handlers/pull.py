"""Pulling: PULL_MESSAGE and LITE_PULL_MESSAGE, with long polling.

The answer's body is a list of slices of the log, so a pull costs per request and not per message.
A pull that finds nothing new is held and answered later by running it once more; that second run
commits no offset and is never held again.
"""

from __future__ import annotations

import functools
from typing import Final

from penstock.broker.delivery.filters import EVERYTHING, Filter
from penstock.broker.delivery.held_pulls import HeldPull
from penstock.broker.state import BrokerState
from penstock.broker.tables.clients import BROADCASTING
from penstock.errors import (
    ConfigError,
    InvalidArgument,
    NoPermission,
    PenstockError,
    SubscriptionIllegal,
    SubscriptionNotFound,
    TopicNotFound,
)
from penstock.model.names import READ
from penstock.model.subscription import SQL92, TAG
from penstock.protocol.bodies.groups import SubscriptionGroupConfig
from penstock.protocol.bodies.topics import TopicConfig
from penstock.protocol.codes import RequestCode, ResponseCode
from penstock.protocol.commands import Command
from penstock.protocol.extensions import PULL_BYTES, PULL_COUNT
from penstock.protocol.headers.codec import decode_header
from penstock.protocol.headers.pull import PullFlag, PullMessage
from penstock.remoting import Peer, Promise
from penstock.remoting.promise import error_answer
from penstock.store import ReadResult, ReadStatus

_MAX_HOLD_SECONDS = 60.0

_FOUND = ResponseCode.SUCCESS
_RETRY = ResponseCode.PULL_RETRY_IMMEDIATELY
_NOT_FOUND = ResponseCode.PULL_NOT_FOUND
_MOVED = ResponseCode.PULL_OFFSET_MOVED

_STATUS_FOUND: Final = ReadStatus.FOUND
_CODES: Final = {
    ReadStatus.FOUND: _FOUND,
    ReadStatus.NO_MATCHED_MESSAGE: _RETRY,
    ReadStatus.MESSAGE_WAS_REMOVING: _RETRY,
    ReadStatus.OFFSET_FOUND_NULL: _NOT_FOUND,
    ReadStatus.OFFSET_OVERFLOW_ONE: _NOT_FOUND,
    ReadStatus.OFFSET_OVERFLOW_BADLY: _MOVED,
    ReadStatus.OFFSET_TOO_SMALL: _MOVED,
    ReadStatus.NO_MATCHED_LOGIC_QUEUE: _MOVED,
    ReadStatus.NO_MESSAGE_IN_QUEUE: _MOVED,
}
_EMPTY: Final = (ReadStatus.NO_MATCHED_LOGIC_QUEUE, ReadStatus.NO_MESSAGE_IN_QUEUE)
# RocketMQ creates a queue on first access, so clients never get this status.
_REMARKS: Final = {ReadStatus.NO_MATCHED_LOGIC_QUEUE: ReadStatus.NO_MESSAGE_IN_QUEUE.name}
_TIMED_EVERY = 16
"""One pull in this many is timed, because reading the clock has a cost."""
_MAX_COUNT = 65_536
"""The most messages in one pull of the Penstock client."""


class Forbidden(NoPermission):
    """A pull that is not allowed, with RocketMQ's number for the reason."""

    BROKER = 1
    GROUP = 2
    TOPIC = 3
    BROADCASTING = 4
    SUBSCRIPTION = 5

    def __init__(self, what: str, who: int) -> None:
        super().__init__(what)
        self.who = who


class Pulling:
    """Both pull requests of one broker."""

    def __init__(self, broker: BrokerState) -> None:
        self._broker = broker
        self._read = broker.storage.read
        self._offsets = broker.offsets
        self._epochs = broker.topic_epochs
        self._stats = broker.stats
        self._monotonic = broker.clock.monotonic
        self._pulls = 0

    def pull(self, peer: Peer, command: Command) -> Command | Promise | None:
        """PULL_MESSAGE and LITE_PULL_MESSAGE."""
        ask = decode_header(PullMessage, command.ext)
        try:
            group, topic, filter_ = self._check(command, ask)
            if ask.sys_flag & PullFlag.COMMIT_OFFSET and not (
                self._epochs.known and self._epochs.is_outdated(ask.topic, command.ext)
            ):
                self._offsets.commit(
                    ask.consumer_group, ask.topic, ask.queue_id, ask.commit_offset, peer.remote
                )
            answer = self._answer(command, ask, group, topic, filter_)
        except PenstockError as error:
            return _refusal(error)
        if answer.code == _NOT_FOUND and ask.sys_flag & PullFlag.SUSPEND:
            if self._broker.held.is_released:
                # The broker is stopping. An answer would be followed by the next pull, and a
                # promise would delay the close of the connection.
                return None
            if self._broker.held.has_room((ask.topic, ask.queue_id)):
                return self._hold(peer, command, ask, filter_)
        return answer

    # Long polling

    def _hold(self, peer: Peer, command: Command, ask: PullMessage, filter_: Filter) -> Promise:
        config = self._broker.config
        hold = ask.suspend_timeout_millis / 1000
        if not config.long_polling_enable:
            hold = config.short_polling_time_ms / 1000
        promise = Promise()
        self._broker.held.hold(
            HeldPull(
                (ask.topic, ask.queue_id),
                ask.queue_offset,
                self._broker.clock.monotonic() + min(max(hold, 0.0), _MAX_HOLD_SECONDS),
                functools.partial(self._answer_held, promise, command, ask),
                matches=None if filter_ is EVERYTHING else filter_.matches,
                peer=peer,
                group=ask.consumer_group,
            )
        )
        return promise

    def _answer_held(self, promise: Promise, command: Command, ask: PullMessage) -> None:
        """Run the pull again, with all checks: permissions may have changed."""
        try:
            group, topic, filter_ = self._check(command, ask)
            answer = self._answer(command, ask, group, topic, filter_)
        except PenstockError as error:
            answer = _refusal(error)
        promise.resolve(answer)

    # Evaluation

    def _check(
        self, command: Command, ask: PullMessage
    ) -> tuple[SubscriptionGroupConfig, TopicConfig, Filter]:
        """All checks, in RocketMQ's order; the group, the topic and the filter of the pull."""
        broker = self._broker
        config = broker.config
        if not config.broker_permission & READ:
            raise Forbidden(
                f"the broker[{config.broker_name}] pulling message is forbidden", Forbidden.BROKER
            )
        if command.code == RequestCode.LITE_PULL_MESSAGE and not config.lite_pull_message_enable:
            raise Forbidden(
                f"the broker[{config.broker_name}] for lite pull consumer is forbidden",
                Forbidden.BROKER,
            )
        group = broker.groups.require(ask.consumer_group)
        if not group.consume_enable:
            raise Forbidden(
                f"subscription group no permission, {ask.consumer_group}", Forbidden.GROUP
            )
        topic = broker.topics.get(ask.topic)
        if topic is None:
            raise TopicNotFound(f"topic[{ask.topic}] not exist, apply first please!")
        if not topic.perm & READ:
            raise Forbidden(f"the topic[{ask.topic}] pulling message is forbidden", Forbidden.TOPIC)
        if not 0 <= ask.queue_id < topic.read_queue_nums:
            raise InvalidArgument(
                f"queueId[{ask.queue_id}] is illegal, topic:[{ask.topic}] "
                f"topicConfig.readQueueNums:[{topic.read_queue_nums}]",
                expected=f"0 to {topic.read_queue_nums - 1}",
            )
        # Usually empty; skip the lookup.
        if broker.groups.forbidden and broker.groups.may_not_read(ask.consumer_group, ask.topic):
            raise Forbidden(
                f"the consumer group[{ask.consumer_group}] is forbidden for topic[{ask.topic}]",
                Forbidden.SUBSCRIPTION,
            )
        return group, topic, self._filter_of(ask, group)

    def _filter_of(self, ask: PullMessage, group: SubscriptionGroupConfig) -> Filter:
        """The request's own expression if it brings one, else the one of the last heartbeat.

        A heartbeat that is older than the pull's subscription version is used all the same:
        refusing (SUBSCRIPTION_NOT_LATEST) would only stall the consumer for half a minute.
        """
        broker = self._broker
        if ask.sys_flag & PullFlag.SUBSCRIPTION:
            expression, expression_type = ask.subscription or "", ask.expression_type or TAG
            if expression_type == SQL92 and not expression:
                raise SubscriptionIllegal(
                    "parse the consumer's subscription failed: an SQL92 filter without a text",
                    expected="an expression such as a > 3, or the type TAG",
                )
        else:
            members = broker.clients.consumer_group(ask.consumer_group)
            if members is None:
                raise SubscriptionNotFound(
                    f"the consumer's group info not exist, group: {ask.consumer_group}",
                    expected="a heartbeat before the first pull",
                )
            if members.message_model == BROADCASTING and not group.consume_broadcast_enable:
                raise Forbidden(
                    f"the consumer group[{ask.consumer_group}] can not consume by broadcast way",
                    Forbidden.BROADCASTING,
                )
            subscription = members.subscriptions.get(ask.topic)
            if subscription is None:
                raise SubscriptionNotFound(
                    f"the consumer's subscription not exist, group: {ask.consumer_group}, "
                    f"topic:{ask.topic}",
                    expected="every member of a group to subscribe to the same topics",
                )
            expression, expression_type = subscription.expression, subscription.expression_type
            if expression_type == SQL92 and broker.config.enable_property_filter:
                return self._registered_sql(expression)
        if expression_type == SQL92 and not broker.config.enable_property_filter:
            raise _sql_disabled()
        return broker.filters.of_pull(expression, expression_type)

    def _registered_sql(self, expression: str) -> Filter:
        """The filter of a heartbeat; unlike the one of a request it must compile."""
        try:
            return self._broker.filters.compile(expression, SQL92)
        except SubscriptionIllegal as error:
            raise SubscriptionIllegal(
                f"The broker's consumer filter data is not exist! {error.what}",
                code=ResponseCode.FILTER_DATA_NOT_EXIST,
                expected=error.expected,
                hint=error.hint,
            ) from error

    def _answer(
        self,
        command: Command,
        ask: PullMessage,
        group: SubscriptionGroupConfig,
        topic: TopicConfig,
        filter_: Filter,
    ) -> Command:
        reset = self._offsets.take_reset(ask.consumer_group, ask.topic, ask.queue_id)
        if reset is not None:
            return self._moved_answer(ask, group, topic, reset, "OFFSET_RESET")
        # Most brokers have no topic that was deleted.
        if self._epochs.known and self._epochs.is_outdated(ask.topic, command.ext):
            first = self._broker.storage.min_offset(ask.topic, ask.queue_id)
            return self._moved_answer(ask, group, topic, first, "TOPIC_MADE_ANEW")
        wanted = command.ext and command.ext.get(PULL_BYTES)
        is_timed = self._pulls % _TIMED_EVERY == 0
        self._pulls += 1
        begun = self._monotonic() if is_timed else 0.0
        result = self._read(
            ask.topic,
            ask.queue_id,
            ask.queue_offset,
            max_count=_wanted_count(command, ask) if wanted else max(1, ask.max_msg_nums),
            # None means RocketMQ's limits; only the Penstock client asks for more.
            max_bytes=min(_positive(wanted), self._broker.config.max_pull_bytes)
            if wanted
            else None,
            matches=filter_.of_record,
        )
        status = result.status
        if status is _STATUS_FOUND:
            # The usual status; the hash and the name of an enum member are slow.
            code, remark = _FOUND, "FOUND"
            self._stats.get(
                ask.consumer_group,
                ask.topic,
                ask.queue_id,
                result.count,
                result.size,
                self._monotonic() - begun if is_timed else None,
            )
        else:
            code, remark = self._code_of(status, ask), _REMARKS.get(status) or status.name
        # Also after skipped messages or a corrected offset: the next pull starts there.
        self._offsets.note_pull(ask.consumer_group, ask.topic, ask.queue_id, result.next_offset)
        ext = {
            "suggestWhichBrokerId": (
                self._suggested_broker(group, result)
                if self._broker.config.slave_read_enable
                else "0"
            ),
            "nextBeginOffset": str(result.next_offset),
            "minOffset": str(result.min_offset),
            "maxOffset": str(result.max_offset),
            "topicSysFlag": str(topic.topic_sys_flag),
            "groupSysFlag": str(group.group_sys_flag or 0),
        }
        if self._epochs.known:
            ext |= self._epochs.fields(ask.topic)
        return Command(
            code,
            ext=ext,
            body=result.slices if code == _FOUND else b"",
            remark=remark,
        )

    def _code_of(self, status: ReadStatus, ask: PullMessage) -> int:
        code = _CODES[status]
        if code == _MOVED:
            if status in _EMPTY and ask.queue_offset == 0:
                return _NOT_FOUND
            if self._broker.config.is_slave and not self._broker.storage.corrects_in_slave:
                return _RETRY
        return code

    def _suggested_broker(self, group: SubscriptionGroupConfig, result: ReadResult) -> str:
        if result.suggest_slave:
            return str(group.which_broker_when_consume_slowly)
        return str(group.broker_id)

    def _moved_answer(
        self,
        ask: PullMessage,
        group: SubscriptionGroupConfig,
        topic: TopicConfig,
        offset: int,
        remark: str,
    ) -> Command:
        storage = self._broker.storage
        self._offsets.note_pull(ask.consumer_group, ask.topic, ask.queue_id, offset)
        return Command(
            _MOVED,
            ext={
                "suggestWhichBrokerId": "0",
                "nextBeginOffset": str(offset),
                "minOffset": str(storage.min_offset(ask.topic, ask.queue_id)),
                "maxOffset": str(storage.max_offset(ask.topic, ask.queue_id)),
                "topicSysFlag": str(topic.topic_sys_flag),
                "groupSysFlag": str(group.group_sys_flag or 0),
                **self._epochs.fields(ask.topic),
            },
            remark=remark,
        )


def _refusal(error: PenstockError) -> Command:
    return error_answer(
        error, ext={"forbiddenType": str(error.who)} if isinstance(error, Forbidden) else {}
    )


def _sql_disabled() -> ConfigError:
    error = ConfigError(
        "The broker does not support consumer to filter message by SQL92",
        hint="set enablePropertyFilter=true on the broker",
    )
    error.code = ResponseCode.SYSTEM_ERROR
    return error


def _wanted_count(command: Command, ask: PullMessage) -> int:
    count = command.ext and command.ext.get(PULL_COUNT)
    # A filter may examine this many messages, so the cost of a request is bounded.
    return min(_positive(count), _MAX_COUNT) if count else max(1, ask.max_msg_nums)


def _positive(text: str) -> int:
    # 12 digits exceed every limit.
    return max(1, int(text[:12])) if text.isdecimal() else 1
