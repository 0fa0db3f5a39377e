"""Where a group begins that has no checkpoint yet: a push consumer's rules."""

from __future__ import annotations

from collections.abc import Sequence

from penstock.model import MessageQueue
from penstock.model.names import retry_topic
from penstock.spark.options import LATEST, Position, Where
from penstock.spark.positions import Positions


def starts(
    positions: Positions, queues: Sequence[MessageQueue], group: str, wished: Position | None
) -> dict[MessageQueue, int]:
    """The first offset of each queue.

    That is where the group stands; else where the user says, else at the end. Only offsets that
    the user gives by queue are stronger than the group's place. Failed messages are never passed
    over: the retry topic begins where the group stands in it, else at its first message.
    """
    cluster = positions.cluster
    retry = retry_topic(group)
    own = [queue for queue in queues if queue.topic != retry]
    retries = [queue for queue in queues if queue.topic == retry]
    begin = positions.offsets(own, wished or LATEST, "startingOffsets")
    if wished is None or wished.where is not Where.OFFSETS:
        # A wish for the group's first time is not to be overruled by a guess of the broker's.
        begin |= cluster.committed(own, guessed=wished is None)
    return {**begin, **cluster.earliest(retries), **cluster.committed(retries)}
