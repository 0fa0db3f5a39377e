"""Values of calls that several classes take: queues, places in a queue, trace topics."""

from __future__ import annotations

from collections.abc import Iterable

from penstock.client.arguments import (
    Time,
    timestamp_ms,
)
from penstock.client.consuming.pull_consumer import PullConsumerCore
from penstock.client.consuming.push_consumer import PushConsumerCore
from penstock.client.observing.tracing import Tracer
from penstock.client.session.session_registry import Lease
from penstock.client.settings import (
    ConsumerSettings,
    ProducerSettings,
)
from penstock.errors import ConfigError, InvalidArgument
from penstock.model import MessageQueue
from penstock.model.names import TRACE_TOPIC
from penstock.protocol.validation import check_topic


def trace_topic(trace: bool | str) -> str | None:
    """The topic of traces: none, RocketMQ's own, or the one named."""
    if isinstance(trace, str):
        return check_topic(trace)
    if not isinstance(trace, bool):
        raise ConfigError(f"trace is {trace!r}", expected="True, False, or the name of a topic")
    return TRACE_TOPIC if trace else None


def make_tracer(
    lease: Lease, settings: ProducerSettings | ConsumerSettings, topic: str | None, role: str
) -> Tracer | None:
    """The tracer for a trace topic, if there is one."""
    if topic is None:
        return None
    return Tracer(
        lease.session, settings.group, role=role, topic=topic, namespace=settings.namespace
    )


def check_filter(call: str, topic: object, tags: object, tag: object) -> None:
    """Refuse what is easily written instead of ``tags="a || b"``; ``call`` is the method."""
    if tag is not None:
        raise InvalidArgument(
            f"{call}({topic!r}, tag={tag!r}): a filter selects one or several tags",
            expected="tags",
            hint=f"{call}({topic!r}, tags={tag!r})",
        )
    if tags is not None and not isinstance(tags, str):
        listed = tags if isinstance(tags, list | tuple | set | frozenset) else ()
        raise InvalidArgument(
            f"{call}({topic!r}, tags={tags!r}): tags of type {type(tags).__name__}",
            expected='text, such as "*" or "a || b"',
            hint=f"tags={' || '.join(map(str, listed))!r}" if listed else None,
        )


def queue_set(queues: Iterable[MessageQueue] | MessageQueue) -> frozenset[MessageQueue]:
    """The queues of a call, read where the caller is; a queue is a tuple itself, meant as one."""
    if isinstance(queues, MessageQueue):
        return frozenset([queues])
    found = list(queues) if isinstance(queues, Iterable) else [queues]
    for queue in found:
        if not isinstance(queue, MessageQueue):
            raise InvalidArgument(f"{queue!r} is not a queue", expected="a MessageQueue or several")
    return frozenset(found)


def maybe_queue_set(
    queues: Iterable[MessageQueue] | MessageQueue | None,
) -> frozenset[MessageQueue] | None:
    """The same, where none means all."""
    return None if queues is None else queue_set(queues)


async def seek_to(
    core: PushConsumerCore | PullConsumerCore, queue: MessageQueue, place: int | Time
) -> None:
    """Go on elsewhere in a queue: an int is an offset; a datetime or text is a time."""
    if not isinstance(place, int) or isinstance(place, bool):
        await core.seek_time(queue, timestamp_ms(place))
        return
    if place < 0:
        raise InvalidArgument(f"offset {place}", expected="0 or more, or a time")
    await core.seek(queue, place)
