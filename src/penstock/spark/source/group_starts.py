"""Where a group without a checkpoint begins: the rules of a push consumer."""

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

    That is the group's committed offset, else the position that the user gave, else the end. Only
    offsets given by queue override the committed ones; beside them, queues that are not named begin
    at their first message. So does the retry topic: failed messages are never skipped.
    """
    cluster = positions.offsets_source
    if wished is not None and wished.where is Where.OFFSETS:
        given = dict(wished.offsets)
        named = [queue for queue in queues if queue in given]
        others = [queue for queue in queues if queue not in given]
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
        # A broker's guess (0 for a new group) must not override the position that the user gave.
        **cluster.committed(queues, guessed=wished is None),
    }
