"""From what a consumer answers to facts.

Java's consumers tell their settings, queues and subscriptions; Penstock's tell a few things more.
What is missing, or is not what it should be, stays None.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TypeVar

import orjson

from penstock.admin import Client
from penstock.doctor.facts import (
    HandlingFacts,
    HeldQueue,
    LastFailure,
    MemberFacts,
    RunningMessage,
)
from penstock.errors import SubscriptionIllegal
from penstock.model import MessageQueue, Subscription
from penstock.model.names import RETRY_PREFIX
from penstock.protocol.bodies.common import ConsumeType, SubscriptionData
from penstock.protocol.bodies.running import (
    ConsumerRunningInfo,
    ConsumeStatus,
    ProcessQueueInfo,
    RunningProperty,
)
from penstock.protocol.extensions import RunningExtension
from penstock.protocol.filters.tags import subscription

_T = TypeVar("_T")

_MAX_NUMBER = 2**63 - 1


def silent_member(client: Client, error: str) -> MemberFacts:
    """A member that did not tell anything."""
    return MemberFacts(
        client.client_id, client.address, client.language, client.broker_names, error=error
    )


def member(
    client: Client, info: ConsumerRunningInfo, asked_ms: int, short: Callable[[str], str]
) -> MemberFacts:
    """A member that answered; ``short`` takes the namespace off a name."""
    said = info.properties
    minutes = _number(said, "consumeTimeout")
    return MemberFacts(
        client.client_id,
        client.address,
        client.language,
        client.broker_names,
        subscriptions=tuple(
            wanted(data, short)
            for data in info.subscription_set
            if not data.topic.startswith(RETRY_PREFIX)
        ),
        queues={
            MessageQueue(short(queue.topic), queue.broker_name, queue.queue_id): _held(held)
            for queue, held in info.mq_table.items()
            if not held.dropped
        },
        polls=_polls(said),
        pops=said.get(RunningExtension.MODE) == "pop" or bool(info.mq_pop_table),
        is_orderly=_flag(said, RunningProperty.ORDERLY),
        model=said.get("messageModel"),
        starts_from=said.get("consumeFromWhere"),
        started_ms=_number(said, RunningProperty.START_TIMESTAMP),
        count_limit=_number(said, "pullThresholdForQueue"),
        mib_limit=_number(said, "pullThresholdSizeForQueue"),
        span_limit=_number(said, "consumeConcurrentlyMaxSpan"),
        consume_timeout_seconds=None if minutes is None else minutes * 60.0,
        clock_ms=_number(said, RunningExtension.CLOCK),
        asked_ms=asked_ms,
        is_paused=_flag(said, RunningExtension.PAUSED),
        paused_queues=_json(said, RunningExtension.PAUSED_QUEUES, _texts),
        running=_number(said, RunningExtension.RUNNING),
        longest=_json(said, RunningExtension.LONGEST_RUNNING, _running),
        tells_longest=RunningExtension.RUNNING in said,
        handling=_handling(info.status_table),
        last_failure=_json(said, RunningExtension.LAST_FAILURE, _failure),
        flow_stops=_json(said, RunningExtension.FLOW_STOPS, _numbers_by_name),
        stopped_queues=_json(said, RunningExtension.STOPPED_QUEUES, _texts_by_name),
        refused_locks=_json(said, RunningExtension.REFUSED_LOCKS, _texts_by_name),
    )


def wanted(data: SubscriptionData, short: Callable[[str], str]) -> Subscription:
    """What a member wants; a filter that has no meaning is kept as it is."""
    topic = short(data.topic)
    try:
        return subscription(topic, data.sub_string, data.expression_type, data.sub_version)
    except SubscriptionIllegal:
        return Subscription(topic, data.sub_string, data.sub_version, data.expression_type)


def _held(info: ProcessQueueInfo) -> HeldQueue:
    return HeldQueue(
        cached=info.cached_count,
        cached_mib=info.cached_mib,
        cached_span=info.cached_max_offset - info.cached_min_offset,
        taken=info.transaction_count,
        is_locked=info.locked,
        last_lock_ms=info.last_lock_timestamp,
        last_pull_ms=info.last_pull_timestamp,
        last_consume_ms=info.last_consume_timestamp,
    )


def _handling(by_topic: Mapping[str, ConsumeStatus]) -> HandlingFacts | None:
    """Over all topics, retries included: a failed message is consumed under another topic."""
    if not by_topic:
        return None
    statuses = by_topic.values()
    return HandlingFacts(
        sum(status.consume_ok_tps for status in statuses),
        sum(status.consume_failed_tps for status in statuses),
        sum(status.consume_failed_count for status in statuses),
    )


def _polls(said: dict[str, str]) -> bool | None:
    consume_type = said.get(RunningProperty.CONSUME_TYPE)
    return None if consume_type is None else consume_type == ConsumeType.CONSUME_ACTIVELY.value


def _flag(said: dict[str, str], key: str) -> bool | None:
    return {"true": True, "false": False}.get(said.get(key, "").lower())


def _number(said: dict[str, str], key: str) -> int | None:
    text = said.get(key, "")
    if not (text.isascii() and text.isdecimal()) or len(text) > 19:
        return None
    return min(int(text), _MAX_NUMBER)


def _json(said: dict[str, str], key: str, read: Callable[[object], _T | None]) -> _T | None:
    text = said.get(key)
    if text is None:
        return None
    try:
        return read(orjson.loads(text))
    except orjson.JSONDecodeError:
        return None


def _texts(value: object) -> tuple[str, ...] | None:
    return tuple(map(str, value)) if isinstance(value, list) else None


def _numbers_by_name(value: object) -> dict[str, int] | None:
    if not isinstance(value, dict):
        return None
    return {name: number for name, number in value.items() if isinstance(number, int)}


def _texts_by_name(value: object) -> dict[str, str] | None:
    if not isinstance(value, dict):
        return None
    return {name: text for name, text in value.items() if isinstance(text, str)}


def _running(value: object) -> RunningMessage | None:
    if not isinstance(value, dict):
        return None
    offset, running_ms = value.get("offset"), value.get("runningMs")
    if not isinstance(offset, int) or not isinstance(running_ms, int):
        return None
    return RunningMessage(
        str(value.get("queue", "")), offset, str(value.get("msgId", "")), running_ms
    )


def _failure(value: object) -> LastFailure | None:
    if not isinstance(value, dict) or not isinstance(value.get("agoMs"), int):
        return None
    queue, msg_id, reason = (str(value.get(key, "")) for key in ("queue", "msgId", "reason"))
    return LastFailure(queue, msg_id, reason, value["agoMs"])
