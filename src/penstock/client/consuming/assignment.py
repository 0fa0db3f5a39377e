"""Which member gets which queue: six strategies of RocketMQ; users can add their own.

Members of a group never talk to each other. Each one sorts the same two lists, runs the same
strategy and keeps its own share, so a strategy must be a pure function of its arguments: a single
member that computes something else consumes twice or leaves a queue alone. For the same reason the
Java names and formulas are kept to the letter; a group may be half Java, half Penstock.

Writing ``n`` for the number of queues, ``c`` for the members and ``i`` for this member's index:

    average             0 0 0 1 1 1 2 2      blocks, the first n mod c members get one more
    circle              0 1 2 0 1 2 0 1      dealt like cards
    consistent hash     a ring of MD5 points, ten for each member; a lost member moves only its own
    configured          the queues named in its configuration, without regard to other members
    machine room        brokers named room@name, the rooms of the set only
    machine room nearby queues of its own room first, queues of rooms without members shared by all
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from hashlib import md5
from typing import Any, Protocol, TypeVar, runtime_checkable

from penstock.errors import ConfigError, InvalidArgument
from penstock.model import MessageQueue
from penstock.model.queue_shares import average_share, circle_share

VIRTUAL_NODES = 10

_T = TypeVar("_T")


@runtime_checkable
class AssignmentStrategy(Protocol):
    """Decides which queues of a topic one member of a group consumes.

    ``queues`` and ``members`` are sorted and hold each element once. The answer must be the same
    on every member for the same arguments, and disjoint between members.
    """

    @property
    def name(self) -> str:
        """What logs and admin tools call the strategy."""

    def assign(
        self, group: str, client_id: str, queues: Sequence[MessageQueue], members: Sequence[str]
    ) -> Sequence[MessageQueue]:
        """The share of ``client_id``; an exception leaves the assignment as it is."""


def place(client_id: str, queues: Sequence[MessageQueue], members: Sequence[str]) -> int | None:
    """The index of this member, None if it is no member: then it gets nothing.

    The check that all strategies but `Configured` begin with.
    """
    if not client_id:
        raise InvalidArgument("an assignment needs the client id of the asking member")
    if not queues:
        raise InvalidArgument(f"nothing to assign to {client_id!r}: the topic has no queues")
    if not members:
        raise InvalidArgument(f"cannot assign queues: the group of {client_id!r} has no members")
    return members.index(client_id) if client_id in members else None


@dataclass(frozen=True, slots=True)
class Average:
    """Neighbouring queues in blocks as equal as can be; the default."""

    name: str = "AVG"

    def assign(
        self, group: str, client_id: str, queues: Sequence[MessageQueue], members: Sequence[str]
    ) -> Sequence[MessageQueue]:
        index = place(client_id, queues, members)
        return [] if index is None else average_share(index, len(members), queues)


@dataclass(frozen=True, slots=True)
class Circle:
    """Every c-th queue, dealt in turn."""

    name: str = "AVG_BY_CIRCLE"

    def assign(
        self, group: str, client_id: str, queues: Sequence[MessageQueue], members: Sequence[str]
    ) -> Sequence[MessageQueue]:
        index = place(client_id, queues, members)
        return [] if index is None else circle_share(index, len(members), queues)


@dataclass(frozen=True, slots=True)
class ConsistentHash:
    """A ring of hashes; a member that comes or goes moves as few queues as possible."""

    virtual_nodes: int = VIRTUAL_NODES
    name: str = "CONSISTENT_HASH"

    def __post_init__(self) -> None:
        if self.virtual_nodes < 1:
            raise ConfigError(
                f"virtual_nodes is {self.virtual_nodes}", expected="at least one point a member"
            )

    def assign(
        self, group: str, client_id: str, queues: Sequence[MessageQueue], members: Sequence[str]
    ) -> Sequence[MessageQueue]:
        if place(client_id, queues, members) is None:
            return []
        ring = {
            ring_hash(f"{member}-{node}"): member
            for member in members
            for node in range(self.virtual_nodes)
        }
        points = sorted(ring)

        def owner(queue: MessageQueue) -> str:
            # The text is Java's MessageQueue.toString(), which every member must hash alike.
            text = (
                f"MessageQueue [topic={queue.topic}, brokerName={queue.broker_name}, "
                f"queueId={queue.queue_id}]"
            )
            return ring[points[bisect_left(points, ring_hash(text)) % len(points)]]

        return [queue for queue in queues if owner(queue) == client_id]


def ring_hash(text: str) -> int:
    """The first four bytes of the MD5 digest, as an unsigned number."""
    return int.from_bytes(md5(text.encode(), usedforsecurity=False).digest()[:4])


@dataclass(frozen=True, slots=True)
class Configured:
    """A fixed list for this member; what the others do is the user's business."""

    queues: tuple[MessageQueue, ...]
    name: str = "CONFIG"

    def __init__(self, queues: Iterable[MessageQueue], name: str = "CONFIG") -> None:
        object.__setattr__(self, "queues", tuple(queues))
        object.__setattr__(self, "name", name)

    def assign(
        self, group: str, client_id: str, queues: Sequence[MessageQueue], members: Sequence[str]
    ) -> Sequence[MessageQueue]:
        return self.queues


@dataclass(frozen=True, slots=True)
class MachineRoom:
    """The brokers of some rooms only; a broker name is ``room@name``."""

    rooms: frozenset[str]
    name: str = "MACHINE_ROOM"

    def __init__(self, rooms: Iterable[str], name: str = "MACHINE_ROOM") -> None:
        object.__setattr__(self, "rooms", frozenset(rooms))
        object.__setattr__(self, "name", name)

    def assign(
        self, group: str, client_id: str, queues: Sequence[MessageQueue], members: Sequence[str]
    ) -> Sequence[MessageQueue]:
        index = place(client_id, queues, members)
        if index is None:
            return []
        kept = [queue for queue in queues if self._is_in_room(queue.broker_name)]
        share, rest = divmod(len(kept), len(members))
        mine = kept[share * index : share * (index + 1)]
        if rest > index:
            mine.append(kept[share * len(members) + index])
        return mine

    def _is_in_room(self, broker_name: str) -> bool:
        room, at, name = broker_name.partition("@")
        return bool(at) and "@" not in name and room in self.rooms


class RoomResolver(Protocol):
    """Tells the machine room of a broker's queue and of a member."""

    def room_of_queue(self, queue: MessageQueue) -> str:
        """Where the queue's broker stands."""

    def room_of_member(self, client_id: str) -> str:
        """Where the member runs."""


@dataclass(frozen=True, slots=True)
class MachineRoomNearby:
    """Queues of this member's room first; queues of rooms without members are shared by all."""

    inner: AssignmentStrategy
    resolver: RoomResolver

    @property
    def name(self) -> str:
        return f"MACHINE_ROOM_NEARBY-{self.inner.name}"

    def assign(
        self, group: str, client_id: str, queues: Sequence[MessageQueue], members: Sequence[str]
    ) -> Sequence[MessageQueue]:
        if place(client_id, queues, members) is None:
            return []
        queues_of = _by_room(queues, self.resolver.room_of_queue)
        members_of = _by_room(members, self.resolver.room_of_member)
        my_room = self.resolver.room_of_member(client_id)
        assigned: list[MessageQueue] = []
        if nearby := queues_of.get(my_room):
            assigned += self.inner.assign(group, client_id, nearby, members_of[my_room])
        for room in sorted(queues_of.keys() - members_of.keys()):
            assigned += self.inner.assign(group, client_id, queues_of[room], members)
        return assigned


def _by_room(things: Sequence[_T], room_of: Callable[[_T], str]) -> dict[str, list[_T]]:
    rooms: dict[str, list[_T]] = {}
    for thing in things:
        room = room_of(thing)
        if not room:
            raise InvalidArgument(
                f"no machine room is known for {thing}", expected="a room for each queue and member"
            )
        rooms.setdefault(room, []).append(thing)
    return rooms


_OURS: dict[type[Any], str | None] = {
    Average: "average",
    Circle: "circle",
    ConsistentHash: "consistent-hash",
    Configured: None,
    MachineRoom: None,
}
"""The strategies that run no code of users; the name stands for one that needs no arguments."""
_NAMED = {name: kind for kind, name in _OURS.items() if name is not None}


def runs_user_code(strategy: AssignmentStrategy) -> bool:
    """Whether it may block: `MachineRoomNearby` calls a user's resolver."""
    return type(strategy) not in _OURS


def strategy(allocation: str | AssignmentStrategy) -> AssignmentStrategy:
    """The strategy of that name, or the given one.

    Strategies that need arguments (`Configured`, `MachineRoom`, `MachineRoomNearby`)
    have no name; construct one and pass it.
    """
    if not isinstance(allocation, str):
        if not isinstance(allocation, AssignmentStrategy):
            raise ConfigError(
                f"allocation is {allocation!r}",
                expected="a name, or an object with name and assign",
            )
        return allocation
    found = _NAMED.get(allocation)
    if found is None:
        raise ConfigError(
            f"allocation is {allocation!r}",
            expected=f"one of {', '.join(_NAMED)} or an AssignmentStrategy",
        )
    made: AssignmentStrategy = found()
    return made


def share(
    strategy: AssignmentStrategy,
    group: str,
    client_id: str,
    queues: Iterable[MessageQueue],
    members: Iterable[str],
) -> frozenset[MessageQueue]:
    """Run ``strategy`` on both lists in the order every member agrees on."""
    return frozenset(strategy.assign(group, client_id, sorted(set(queues)), sorted(set(members))))
