"""Who may consume a queue in order, and until when."""

import pytest

from penstock.broker.tables.queue_locks import LOCK_SECONDS, QueueLocks
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
