"""Who may consume a queue in order, and until when."""

import pytest

from penstock.broker.tables.queue_locks import LOCK_SECONDS, Binding, QueueLocks
from penstock.model import MessageQueue

Q0 = MessageQueue("orders", "broker-a", 0)
Q1 = MessageQueue("orders", "broker-a", 1)


def test_a_free_queue_is_locked_and_renewed_by_the_same_client() -> None:
    locks = QueueLocks()
    assert locks.lock("g", "c1", [Q0, Q1], 0.0) == [Q0, Q1]
    assert locks.lock("g", "c1", [Q0], 59.0) == [Q0]
    assert locks.owner("g", Q0, 100.0) == "c1"
    assert locks.owner("g", Q1, 100.0) is None


@pytest.mark.spec("S147")
def test_another_client_of_the_group_is_refused_and_cannot_unlock() -> None:
    locks = QueueLocks()
    locks.lock("g", "c1", [Q0], 0.0)
    assert locks.lock("g", "c2", [Q0, Q1], 1.0) == [Q1]
    locks.unlock("g", "c2", [Q0])
    assert locks.owner("g", Q0, 1.0) == "c1"
    locks.unlock("g", "c1", [Q0])
    assert locks.lock("g", "c2", [Q0], 1.0) == [Q0]


@pytest.mark.spec("S127")
def test_groups_lock_the_same_queue_independently() -> None:
    locks = QueueLocks()
    assert locks.lock("g1", "c1", [Q0], 0.0) == [Q0]
    assert locks.lock("g2", "c2", [Q0], 0.0) == [Q0]


@pytest.mark.spec("S146")
def test_an_expired_lock_goes_to_the_next_member_that_asks() -> None:
    locks = QueueLocks()
    locks.lock("g", "c1", [Q0], 0.0)
    assert locks.lock("g", "c2", [Q0], LOCK_SECONDS) == []
    assert locks.lock("g", "c2", [Q0], LOCK_SECONDS + 0.001) == [Q0]
    assert locks.lock("g", "c1", [Q0], LOCK_SECONDS + 1) == []


def test_a_group_is_orderly_while_it_holds_a_live_lock() -> None:
    locks = QueueLocks()
    assert not locks.is_orderly("g", 0.0)
    locks.lock("g", "c1", [Q0], 0.0)
    assert locks.is_orderly("g", 30.0)
    assert not locks.is_orderly("g", LOCK_SECONDS + 1)
    locks.drop_group("g")
    assert not locks.is_orderly("g", 0.0)


def test_unlocking_everything_leaves_nothing_behind() -> None:
    locks = QueueLocks()
    locks.lock("g", "c1", [Q0], 0.0)
    locks.unlock("g", "c1", [Q0])
    locks.unlock("unknown", "c1", [Q0])
    assert locks.owner("g", Q0, 0.0) is None
    assert len(locks) == 0


def test_locks_are_forgotten_when_they_expired_or_their_group_is_gone() -> None:
    locks = QueueLocks()
    locks.lock("g", "c1", [Q0, Q1], 0.0)
    locks.lock("g", "c1", [Q1], 30.0)
    locks.lock("h", "c1", [Q0], 0.0)
    assert len(locks) == 3
    locks.drop_expired(LOCK_SECONDS)
    assert len(locks) == 3
    locks.drop_expired(LOCK_SECONDS + 1)
    assert len(locks) == 1
    assert locks.owner("g", Q1, LOCK_SECONDS + 1) == "c1"
    locks.drop_group("g")
    locks.drop_group("g")
    assert len(locks) == 0


def test_locks_beyond_the_bound_are_refused_and_logged_once(
    caplog: pytest.LogCaptureFixture,
) -> None:
    locks = QueueLocks(max_locks=1)
    assert locks.lock("g", "c1", [Q0, Q1], 0.0) == [Q0]
    assert locks.lock("h", "c1", [Q0, Q1], 0.0) == []
    # What is held can be renewed, and taken over.
    assert locks.lock("g", "c1", [Q0], 1.0) == [Q0]
    assert locks.lock("g", "c2", [Q0], LOCK_SECONDS + 2) == [Q0]
    assert len(caplog.records) == 1
    locks.unlock("g", "c2", [Q0])
    assert locks.lock("h", "c1", [Q1], LOCK_SECONDS + 2) == [Q1]


def test_a_bound_lock_ends_with_its_lease_once_its_connection_is_closed() -> None:
    locks = QueueLocks()
    locks.lock("g", "c1", [Q0], 0.0, Binding("c1's", 6.0))
    locks.lock("g", "c1", [Q0, Q1], 2.0, Binding("c1's", 6.0))
    # As long as the connection is open, RocketMQ's minute counts.
    assert locks.lock("g", "c2", [Q0], 50.0) == []
    assert locks.connection_closed("c1's") == {"g": 8.0}
    assert locks.connection_closed("c1's") == {}
    assert locks.owner("g", Q0, 8.0) == "c1"
    assert locks.lock("g", "c2", [Q0, Q1], 8.0) == []
    assert locks.lock("g", "c2", [Q0, Q1], 8.001) == [Q0, Q1]


def test_a_lock_that_is_renewed_over_another_connection_outlives_the_first() -> None:
    locks = QueueLocks()
    locks.lock("g", "c1", [Q0, Q1], 0.0, Binding("first", 6.0))
    locks.lock("g", "c1", [Q0], 1.0, Binding("second", 6.0))
    assert locks.connection_closed("first") == {"g": 6.0}
    assert locks.lock("g", "c2", [Q0, Q1], 30.0) == [Q1]
    # Also if the first one was closed already.
    locks.lock("g", "c1", [Q0], 31.0, Binding("third", 6.0))
    locks.connection_closed("second")
    assert locks.lock("g", "c2", [Q0], 90.0) == []


def test_a_lock_that_another_member_took_is_not_shortened() -> None:
    locks = QueueLocks()
    locks.lock("g", "c1", [Q0], 0.0, Binding("c1's", 6.0))
    locks.lock("g", "c2", [Q0], LOCK_SECONDS + 1, None)
    assert locks.connection_closed("c1's") == {}
    assert locks.lock("g", "c3", [Q0], LOCK_SECONDS + 50) == []


def test_connections_of_released_and_expired_locks_are_forgotten() -> None:
    locks = QueueLocks()
    locks.lock("g", "c1", [Q0, Q1], 0.0, Binding("a", 6.0))
    locks.unlock("g", "c1", [Q0])
    locks.lock("h", "c1", [Q0], 0.0, Binding("b", 6.0))
    locks.drop_group("h")
    locks.drop_expired(LOCK_SECONDS + 1)
    assert len(locks) == 0
    locks.lock("g", "c2", [Q0, Q1], LOCK_SECONDS + 1)
    assert locks.connection_closed("a") == {}
    assert locks.connection_closed("b") == {}
    assert locks.lock("g", "c3", [Q0, Q1], LOCK_SECONDS + 50) == []


def test_a_lease_ends_with_the_lock_at_the_latest() -> None:
    locks = QueueLocks()
    locks.lock("g", "c1", [Q0], 10.0, Binding("a connection", 1e9))
    assert locks.connection_closed("a connection") == {"g": 10.0 + LOCK_SECONDS}
    assert locks.lock("g", "c2", [Q0], 10.0 + LOCK_SECONDS + 0.001) == [Q0]
