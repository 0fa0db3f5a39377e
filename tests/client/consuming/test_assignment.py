"""Who gets which queue: the tables of the reference, and what must hold for any group."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from dataclasses import dataclass

import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock.client.consuming.assignment import (
    AssignmentStrategy,
    Average,
    Circle,
    Configured,
    ConsistentHash,
    MachineRoom,
    MachineRoomNearby,
    ring_hash,
    share,
    strategy,
)
from penstock.errors import ConfigError, InvalidArgument
from penstock.model import MessageQueue

GROUP = "billing"


def queues(count: int, broker: str = "broker-a", topic: str = "T") -> list[MessageQueue]:
    return [MessageQueue(topic, broker, queue_id) for queue_id in range(count)]


def members(count: int) -> list[str]:
    return [f"c{index}" for index in range(count)]


def table(
    chosen: AssignmentStrategy, queue_list: Sequence[MessageQueue], member_list: Sequence[str]
) -> dict[str, list[int]]:
    """Queue numbers by member, the way the reference prints them."""
    return {
        member: sorted(
            queue_list.index(q) for q in share(chosen, GROUP, member, queue_list, member_list)
        )
        for member in member_list
    }


@pytest.mark.spec("S23")
@pytest.mark.parametrize(
    ("n", "c", "expected"),
    [
        (8, 3, [[0, 1, 2], [3, 4, 5], [6, 7]]),
        (4, 6, [[0], [1], [2], [3], [], []]),
        (4, 4, [[0], [1], [2], [3]]),
        (9, 3, [[0, 1, 2], [3, 4, 5], [6, 7, 8]]),
        (5, 2, [[0, 1, 2], [3, 4]]),
        (1, 1, [[0]]),
        (1, 3, [[0], [], []]),
        (10, 4, [[0, 1, 2], [3, 4, 5], [6, 7], [8, 9]]),
    ],
)
def test_average_gives_equal_blocks(n: int, c: int, expected: list[list[int]]) -> None:
    assert list(table(Average(), queues(n), members(c)).values()) == expected


@pytest.mark.spec("S24")
@pytest.mark.parametrize(
    ("n", "c", "expected"),
    [
        (8, 3, [[0, 3, 6], [1, 4, 7], [2, 5]]),
        (2, 3, [[0], [1], []]),
        (4, 1, [[0, 1, 2, 3]]),
    ],
)
def test_circle_deals_queues_like_cards(n: int, c: int, expected: list[list[int]]) -> None:
    assert list(table(Circle(), queues(n), members(c)).values()) == expected


@pytest.mark.spec("S25")
def test_consistent_hash_gives_the_table_of_the_java_client() -> None:
    ring = ConsistentHash()
    assert table(ring, queues(8), members(3)) == {"c0": [0, 1, 5, 6], "c1": [3, 4], "c2": [2, 7]}
    assert table(ring, queues(8), members(2)) == {"c0": [0, 1, 5, 6], "c1": [2, 3, 4, 7]}


@pytest.mark.spec("S25")
@given(
    member_set=st.sets(st.text("abcdef0123456789@#", min_size=1, max_size=12), min_size=2),
    count=st.integers(1, 40),
    data=st.data(),
)
def test_consistent_hash_moves_only_the_queues_of_the_member_that_left(
    member_set: set[str], count: int, data: st.DataObject
) -> None:
    leaver = data.draw(st.sampled_from(sorted(member_set)))
    stayers = member_set - {leaver}
    for member in stayers:
        before = share(ConsistentHash(), GROUP, member, queues(count), member_set)
        after = share(ConsistentHash(), GROUP, member, queues(count), stayers)
        assert before <= after


def test_the_ring_hash_is_the_head_of_an_md5_digest() -> None:
    assert ring_hash("") == 0xD41D8CD9  # the well-known digest of nothing, big-endian, unsigned


def test_consistent_hash_needs_a_point_a_member() -> None:
    with pytest.raises(ConfigError, match="virtual_nodes is 0"):
        ConsistentHash(virtual_nodes=0)


@pytest.mark.spec("S26")
def test_configured_returns_its_list_without_a_look_at_the_members() -> None:
    fixed = [queues(8)[1], queues(8)[5]]
    assert share(Configured(fixed), GROUP, "c0", queues(8), members(3)) == set(fixed)
    assert share(Configured(fixed), GROUP, "outsider", [], []) == set(fixed)


@pytest.mark.spec("S27")
@pytest.mark.parametrize(
    ("n", "c", "expected"),
    [
        (8, 3, [[0, 1, 6], [2, 3, 7], [4, 5]]),
        (5, 2, [[0, 1, 4], [2, 3]]),
        (1, 2, [[0], []]),
    ],
)
def test_machine_room_splits_the_queues_it_keeps(n: int, c: int, expected: list[list[int]]) -> None:
    kept = queues(n, broker="room1@broker-a")
    assert list(table(MachineRoom({"room1"}), kept, members(c)).values()) == expected


@pytest.mark.spec("S27")
def test_machine_room_ignores_brokers_of_other_rooms_and_without_a_room() -> None:
    kept = queues(4, broker="room1@broker-a")
    others = queues(4, broker="room2@broker-b") + queues(4, broker="broker-c")
    odd = queues(1, broker="room1@x@y")
    got = share(MachineRoom(["room1"]), GROUP, "c0", kept + others + odd, ["c0"])
    assert got == set(kept)


@dataclass(frozen=True)
class Rooms:
    """Queues 0-3 stand in A, the rest in B; a member's room is in its name."""

    in_a: int = 4

    def room_of_queue(self, queue: MessageQueue) -> str:
        return "A" if queue.queue_id < self.in_a else "B"

    def room_of_member(self, client_id: str) -> str:
        return client_id.partition("-")[2]


@pytest.mark.spec("S28")
def test_machine_room_nearby_serves_its_own_room_first() -> None:
    nearby = MachineRoomNearby(Average(), Rooms())
    assert table(nearby, queues(8), ["c0-A", "c1-A", "c2-B"]) == {
        "c0-A": [0, 1],
        "c1-A": [2, 3],
        "c2-B": [4, 5, 6, 7],
    }


@pytest.mark.spec("S28")
def test_machine_room_nearby_shares_the_queues_of_a_deserted_room() -> None:
    nearby = MachineRoomNearby(Average(), Rooms())
    assert table(nearby, queues(8), ["c0-A", "c1-A"]) == {
        "c0-A": [0, 1, 4, 5],
        "c1-A": [2, 3, 6, 7],
    }
    assert nearby.name == "MACHINE_ROOM_NEARBY-AVG"


def test_machine_room_nearby_refuses_a_member_without_a_room() -> None:
    nearby = MachineRoomNearby(Average(), Rooms())
    with pytest.raises(InvalidArgument, match="no machine room is known for c9"):
        nearby.assign(GROUP, "c0-A", queues(8), ["c0-A", "c9"])


ALL_SPLITTING = [Average(), Circle(), ConsistentHash(), MachineRoom({"room1"})]


@pytest.mark.spec("S22")
@pytest.mark.parametrize("chosen", ALL_SPLITTING, ids=lambda s: s.name)
@given(data=st.data(), n=st.integers(1, 30), c=st.integers(1, 12))
def test_the_order_and_repetition_of_the_lists_does_not_matter(
    chosen: AssignmentStrategy, data: st.DataObject, n: int, c: int
) -> None:
    queue_list = queues(n, broker="room1@a") + queues(3, broker="room1@b")
    member_list = members(c)
    shuffled_queues = data.draw(st.permutations(queue_list))
    shuffled_members = data.draw(st.permutations(member_list * 2))
    me = data.draw(st.sampled_from(member_list))
    assert share(chosen, GROUP, me, queue_list, member_list) == share(
        chosen, GROUP, me, shuffled_queues, shuffled_members
    )


@pytest.mark.parametrize("chosen", ALL_SPLITTING, ids=lambda s: s.name)
@given(n=st.integers(1, 64), c=st.integers(1, 20))
def test_shares_are_disjoint_and_cover_all(chosen: AssignmentStrategy, n: int, c: int) -> None:
    queue_list = queues(n, broker="room1@broker-a")
    shares = [share(chosen, GROUP, member, queue_list, members(c)) for member in members(c)]
    assert sum(map(len, shares)) == n
    assert frozenset().union(*shares) == set(queue_list)


@given(n=st.integers(1, 64), c=st.integers(1, 20))
def test_shares_of_average_and_circle_differ_by_one_at_most(n: int, c: int) -> None:
    for chosen in (Average(), Circle()):
        sizes = [len(row) for row in table(chosen, queues(n), members(c)).values()]
        assert max(sizes) - min(sizes) <= 1


@pytest.mark.parametrize(
    "chosen", [*ALL_SPLITTING, MachineRoomNearby(Average(), Rooms())], ids=lambda s: s.name
)
def test_an_outsider_gets_nothing_and_empty_lists_are_errors(chosen: AssignmentStrategy) -> None:
    assert share(chosen, GROUP, "outsider-A", queues(4), ["c0-A"]) == frozenset()
    with pytest.raises(InvalidArgument, match="no queues"):
        chosen.assign(GROUP, "c0-A", [], ["c0-A"])
    with pytest.raises(InvalidArgument, match="no members"):
        chosen.assign(GROUP, "c0-A", queues(4), [])
    with pytest.raises(InvalidArgument, match="client id"):
        chosen.assign(GROUP, "", queues(4), ["c0-A"])


def test_a_strategy_is_chosen_by_name_or_handed_in() -> None:
    assert strategy("average") == Average()
    assert strategy("circle") == Circle()
    assert strategy("consistent-hash") == ConsistentHash()
    own = Configured(queues(1))
    assert strategy(own) is own
    with pytest.raises(ConfigError, match=r"'best'.*average, circle, consistent-hash"):
        strategy("best")
    with pytest.raises(ConfigError, match="allocation is 7"):
        strategy(7)  # type: ignore[arg-type]  # what a user may hand in by mistake


def test_a_users_own_strategy_is_used_as_it_is() -> None:
    class FirstMemberTakesAll:
        name = "ALL"

        def assign(
            self,
            group: str,
            client_id: str,
            queues: Sequence[MessageQueue],
            members: Sequence[str],
        ) -> Sequence[MessageQueue]:
            return queues if client_id == members[0] else []

    own = strategy(FirstMemberTakesAll())
    assert table(own, queues(3), ["c0", "c1"]) == {"c0": [0, 1, 2], "c1": []}


@pytest.mark.spec("S28")
def test_machine_room_nearby_gives_each_queue_of_a_deserted_room_one_owner() -> None:
    class Three(Rooms):
        def room_of_queue(self, queue: MessageQueue) -> str:
            return "AABB"[queue.queue_id] if queue.queue_id < 4 else "deserted"

    nearby = MachineRoomNearby(Average(), Three())
    found = table(nearby, queues(10), ["c0-A", "c1-B", "c2-B"])
    assert sorted(itertools.chain(*found.values())) == list(range(10))
    assert found == {"c0-A": [0, 1, 4, 5], "c1-B": [2, 6, 7], "c2-B": [3, 8, 9]}


@pytest.mark.spec("S25")
def test_a_queue_behind_the_last_point_of_the_ring_belongs_to_the_first() -> None:
    ring = {ring_hash(f"{member}-0"): member for member in members(3)}
    chosen = ConsistentHash(virtual_nodes=1)
    behind = [
        queue
        for queue in queues(500)
        if ring_hash(f"MessageQueue [topic=T, brokerName=broker-a, queueId={queue.queue_id}]")
        > max(ring)
    ]
    assert behind
    assert set(behind) <= share(chosen, GROUP, ring[min(ring)], queues(500), members(3))
