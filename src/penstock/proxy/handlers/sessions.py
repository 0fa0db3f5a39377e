"""Sessions: settings over Telemetry, Heartbeat, NotifyClientTermination."""

from __future__ import annotations

from typing import Final

from penstock.model.subscription import SQL92, TAG
from penstock.protocol.bodies.common import SubscriptionData
from penstock.protocol.validation import MAX_MESSAGE_BYTES
from penstock.proxy.clients import MAX_TOPICS_OF_CLIENT, Client
from penstock.proxy.endpoint_parts import Parts
from penstock.proxy.facts import GroupFacts
from penstock.proxy.handlers.receiving import MAX_BATCH, MAX_POLL_SECONDS
from penstock.proxy.names import group_name, topic_name
from penstock.proxy.statuses import OK, Refused
from penstock.proxy.times import duration
from penstock.proxy.wire.codes import ClientType, Code, FilterType
from penstock.proxy.wire.messages import (
    CustomizedBackoff,
    ExponentialBackoff,
    HeartbeatRequest,
    HeartbeatResponse,
    Metric,
    NotifyClientTerminationRequest,
    NotifyClientTerminationResponse,
    RetryPolicy,
    Settings,
    Subscription,
    TelemetryCommand,
)

_SERVED: Final = (ClientType.PRODUCER, ClientType.PUSH_CONSUMER, ClientType.SIMPLE_CONSUMER)
_PRODUCER_ATTEMPTS: Final = 3


# Settings


async def take_settings(parts: Parts, client: Client, settings: Settings) -> TelemetryCommand:
    """Note what a client does and register it; the answer has what it is to do."""
    kind = settings.WhichOneof("pub_sub")
    if settings.HasField("client_type"):
        client.type = _served_type(settings.client_type)
    answer = Settings()
    answer.CopyFrom(settings)
    if kind == "publishing":
        topics = [topic.name for topic in settings.publishing.topics if topic.name.strip()]
        if len(topics) > MAX_TOPICS_OF_CLIENT:
            raise Refused(
                Code.BAD_REQUEST,
                f"{len(topics)} topics of one producer",
                expected=f"at most {MAX_TOPICS_OF_CLIENT}",
            )
        client.topics.update(dict.fromkeys(map(topic_name, topics)))
        _fill_publishing(answer)
    elif kind == "subscription":
        wanted = settings.subscription
        group = await parts.backend.group(group_name(wanted.group.name), is_fresh=True)
        client.group = group.name
        client.subscriptions = _subscriptions(wanted, parts.clock.time_ms())
        _fill_subscription(answer, group)
    else:
        raise Refused(
            Code.BAD_REQUEST, "settings without publishing or subscription", expected="one of them"
        )
    answer.metric.CopyFrom(Metric(on=False))
    await client.register()
    return TelemetryCommand(status=OK, settings=answer)


def _served_type(number: int) -> ClientType:
    if number not in _SERVED:
        raise Refused(
            Code.UNRECOGNIZED_CLIENT_TYPE,
            f"client type {number}",
            expected=", ".join(f"{one.value} {one.name}" for one in _SERVED),
        )
    return ClientType(number)


def _subscriptions(wanted: Subscription, now_ms: int) -> dict[str, SubscriptionData]:
    found: dict[str, SubscriptionData] = {}
    if len(wanted.subscriptions) > MAX_TOPICS_OF_CLIENT:
        raise Refused(
            Code.BAD_REQUEST,
            f"{len(wanted.subscriptions)} subscriptions of one consumer",
            expected=f"at most {MAX_TOPICS_OF_CLIENT}",
        )
    for entry in wanted.subscriptions:
        name = topic_name(entry.topic.name)
        kind = SQL92 if entry.expression.type == FilterType.SQL else TAG
        text = entry.expression.expression or "*"
        found[name] = SubscriptionData(name, text, now_ms, expression_type=kind)
    return found


def _fill_publishing(answer: Settings) -> None:
    answer.publishing.max_body_size = MAX_MESSAGE_BYTES
    answer.publishing.validate_message_type = True
    answer.backoff_policy.CopyFrom(
        RetryPolicy(
            max_attempts=_PRODUCER_ATTEMPTS,
            exponential_backoff=ExponentialBackoff(
                initial=duration(0.01), max=duration(1), multiplier=2
            ),
        )
    )


def _fill_subscription(answer: Settings, group: GroupFacts) -> None:
    subscription = answer.subscription
    subscription.fifo = group.is_fifo
    subscription.receive_batch_size = MAX_BATCH
    subscription.long_polling_timeout.CopyFrom(duration(MAX_POLL_SECONDS))
    policy = RetryPolicy(max_attempts=group.max_attempts)
    if group.is_exponential:
        initial, longest, factor = group.exponential()
        policy.exponential_backoff.CopyFrom(
            ExponentialBackoff(initial=duration(initial), max=duration(longest), multiplier=factor)
        )
    else:
        delays = [duration(seconds) for seconds in group.customized()]
        policy.customized_backoff.CopyFrom(CustomizedBackoff(next=delays))
    answer.backoff_policy.CopyFrom(policy)


# Heartbeats


async def heartbeat(parts: Parts, client: Client, request: HeartbeatRequest) -> HeartbeatResponse:
    """A client is alive; one whose settings are not known is registered by what it says here."""
    client.type = _served_type(request.client_type)
    if client.type is not ClientType.PRODUCER and client.group is None:
        client.group = (await parts.backend.group(group_name(request.group.name))).name
    await client.register()
    return HeartbeatResponse(status=OK)


async def end_client(parts: Parts, client: Client) -> None:
    """A client is gone: what it did not finish comes again soon."""
    parts.clients.remove(client)
    if client.stream is not None:
        client.stream.end()
    await parts.renewals.release(client)
    await client.leave()


async def notify_client_termination(
    parts: Parts, client: Client, request: NotifyClientTerminationRequest
) -> NotifyClientTerminationResponse:
    """A client leaves."""
    await end_client(parts, client)
    return NotifyClientTerminationResponse(status=OK)
