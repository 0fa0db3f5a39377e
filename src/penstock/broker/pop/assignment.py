"""Which queues a member gets when the broker assigns: the rules, without connections.

A group that pops shares queues: each member gets its own and those of the next ``share`` members,
or all of them, as one entry for each broker. Members of a group that pulls get a queue each.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from penstock.model import MessageQueue
from penstock.model.queue_shares import average_share, circle_share
from penstock.protocol.bodies.common import RequestMode
from penstock.protocol.bodies.pop import QueueAssignment

ANY_QUEUE = -1
Strategy = Callable[[int, int, Sequence[MessageQueue]], Sequence[MessageQueue]]
STRATEGIES: dict[str, Strategy] = {"AVG": average_share, "AVG_BY_CIRCLE": circle_share}


def assigned(
    strategy: Strategy,
    client_id: str,
    members: Sequence[str],
    queues: Sequence[MessageQueue],
    mode: RequestMode,
    share: int,
) -> list[QueueAssignment]:
    """The queues of a member; none if it is no member. Both lists are sorted."""
    if client_id not in members or not queues:
        return []
    index, count = members.index(client_id), len(members)
    if mode is RequestMode.PULL:
        return _entries(strategy(index, count, queues), mode)
    if share <= 0 or share >= count - 1:
        brokers = dict.fromkeys(queue.broker_name for queue in queues)
        topic = queues[0].topic
        return _entries([MessageQueue(topic, name, ANY_QUEUE) for name in brokers], mode)
    if count > len(queues):
        return _entries([queues[index % len(queues)]], mode)
    shared: dict[MessageQueue, None] = {}
    for step in range(share + 1):
        shared |= dict.fromkeys(strategy((index + step) % count, count, queues))
    return _entries(list(shared), mode)


def _entries(queues: Sequence[MessageQueue], mode: RequestMode) -> list[QueueAssignment]:
    return [QueueAssignment(queue, mode) for queue in queues]
