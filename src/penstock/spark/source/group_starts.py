"""Where a group begins that has no checkpoint yet: a push consumer's rules."""

from __future__ import annotations

from collections.abc import Sequence

from penstock.model import MessageQueue
from penstock.model.names import retry_topic
from penstock.spark.source.options import LATEST, Position, Where
from penstock.spark.source.positions import Positions


def starts(
    positions: Positions, queues: Sequence[MessageQueue], group: str, wished: Position | None
) -> dict[MessageQueue, int]:
    """The first offset of each queue.

    That is where the group stands; else where the user says, else at the end. Only offsets that
    the user gives by queue are stronger than the group's place; beside them, queues that are not
    named begin at their first message. Failed messages are never passed over: so does the retry
    topic.
    """
    cluster = positions.offsets_source
    if wished is not None and wished.where is Where.OFFSETS:
        told = dict(wished.offsets)
        named = [queue for queue in queues if queue in told]
        others = [queue for queue in queues if queue not in told]
        return {
            **cluster.earliest(others),
            **cluster.committed(others),
            **positions.offsets(named, wished, "startingOffsets"),
        }
    retry = retry_topic(group)
    own = [queue for queue in queues if queue.topic != retry]
    retries = [queue for queue in queues if queue.topic == retry]
    return {
        **positions.offsets(own, wished or LATEST, "startingOffsets"),
        **cluster.earliest(retries),
        # A wish for the group's first time is not to be overruled by a guess of the broker's.
        **cluster.committed(queues, guessed=wished is None),
    }
