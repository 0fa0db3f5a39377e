"""The plan of a reset: where a group would go in each queue, before anything is moved."""

from __future__ import annotations

from penstock.admin.cluster_requests import on_host
from penstock.admin.offsets import OffsetActions
from penstock.admin.reports import Move
from penstock.client.arguments import Time
from penstock.errors import InvalidArgument
from penstock.model import MessageQueue


class ResetActions(OffsetActions):
    """Actions that prepare a reset."""

    @on_host
    async def plan_reset(
        self, group: str, topic: str, to: int | Time, *, queue: str | None = None
    ) -> list[Move]:
        """Where each queue stands and would go; nothing is changed.

        ``to`` is as for `reset_offsets`; ``queue`` is ``BROKER:ID`` and selects one queue, which
        an offset needs.
        """
        ranges = {
            MessageQueue(row.topic, row.broker_name, row.queue_id): row
            for row in await self.topic_stats(topic)
        }
        chosen = list(ranges) if queue is None else [_queue(queue, topic, list(ranges))]
        if isinstance(to, int):
            if len(chosen) != 1:
                raise InvalidArgument(
                    f"offset {to} for {len(chosen)} queues of topic {topic!r}",
                    expected="one queue, since an offset means something else in each",
                    hint=f"--queue {chosen[0].broker_name}:{chosen[0].queue_id}"
                    if chosen
                    else None,
                )
            ends = ranges[chosen[0]]
            if not ends.min_offset <= to <= ends.max_offset:
                raise InvalidArgument(
                    f"offset {to} in queue {queue}",
                    expected=f"{ends.min_offset} to {ends.max_offset}",
                )
            goals = {chosen[0]: to}
        else:
            goals = await self.offsets_at(topic, to)
        committed = {
            MessageQueue(row.topic, row.broker_name, row.queue_id): row.committed
            for row in await self.group_lag(group, topic=topic)
        }
        return [
            Move(one, committed.get(one), goals[one], ranges[one].max_offset)
            for one in chosen
            if one in goals
        ]


def _queue(text: str, topic: str, known: list[MessageQueue]) -> MessageQueue:
    broker, _, number = text.rpartition(":")
    for queue in known:
        if (queue.broker_name, str(queue.queue_id)) == (broker, number):
            return queue
    names = [f"{queue.broker_name}:{queue.queue_id}" for queue in known]
    raise InvalidArgument(
        f"queue {text!r} of topic {topic!r}",
        expected=f"BROKER:ID, one of {', '.join(names[:8])}{', ...' if len(names) > 8 else ''}",
    )
