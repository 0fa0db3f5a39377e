"""The ledger detects every way to break a promise and accepts everything else."""

from __future__ import annotations

import pytest
from tests.simulation.ledger import Broken, GroupLedger, Ledger

from penstock.model import MessageQueue, StoredMessage

QUEUE = MessageQueue("orders", "broker-1", 0)
OTHER = MessageQueue("orders", "broker-1", 1)


def message(offset: int, *, queue: MessageQueue = QUEUE, attempts: int = 0) -> StoredMessage:
    return StoredMessage(
        topic=queue.topic,
        body=b"order %d" % offset,
        queue=queue,
        queue_offset=offset,
        properties={},
        reconsume_times=attempts,
    )


def orderly() -> GroupLedger:
    return Ledger().add_group("ledger", orderly=True, max_retries=2)


def concurrent() -> GroupLedger:
    return Ledger().add_group("billing", orderly=False, max_retries=2)


def handle(group: GroupLedger, *offsets: int) -> None:
    messages = [message(offset) for offset in offsets]
    call = group.begin("c1", messages, locks_are_safe=True)
    group.end(call, QUEUE)
    group.succeed(messages)


def test_an_orderly_queue_moves_forward_and_may_go_back() -> None:
    group = orderly()
    for offset in (0, 1, 2, 1, 2, 3):
        handle(group, offset)


def test_a_skipped_message_breaks_the_order() -> None:
    group = orderly()
    handle(group, 0)
    with pytest.raises(Broken, match=r"handles .* at 2, and 1 was not settled"):
        handle(group, 2)


def test_a_batch_with_a_gap_breaks_the_order() -> None:
    with pytest.raises(Broken, match="with gaps"):
        handle(orderly(), 0, 2)


def test_a_batch_may_skip_only_messages_that_were_given_up() -> None:
    group = orderly()
    group.fail([message(1)], is_given_up=True)
    handle(group, 0, 2)
    with pytest.raises(Broken, match="with gaps"):
        handle(group, 3, 5)
    with pytest.raises(Broken, match="with gaps"):
        handle(group, 3, 3)


def test_a_failed_message_holds_its_queue_until_its_last_attempt() -> None:
    group = orderly()
    handle(group, 0)
    group.fail([message(1, attempts=1)], is_given_up=False)
    with pytest.raises(Broken, match="1 was not settled"):
        handle(group, 2)
    group.fail([message(1, attempts=2)], is_given_up=False)
    handle(group, 2)


def test_a_message_that_was_given_up_no_longer_blocks_its_queue() -> None:
    group = orderly()
    group.fail([message(0)], is_given_up=True)
    handle(group, 1)


def test_two_handlers_in_one_orderly_queue_break_the_promise() -> None:
    group = orderly()
    group.begin("c1", [message(0)], locks_are_safe=True)
    with pytest.raises(Broken, match=r"c2 handles .* while \['c1'\] does"):
        group.begin("c2", [message(0)], locks_are_safe=True)


def test_two_handlers_are_allowed_while_a_broker_has_lost_its_locks() -> None:
    group = orderly()
    group.begin("c1", [message(0)], locks_are_safe=True)
    group.begin("c2", [message(0)], locks_are_safe=False)


def test_two_orderly_queues_may_be_handled_at_once() -> None:
    group = orderly()
    group.begin("c1", [message(0)], locks_are_safe=True)
    group.begin("c2", [message(0, queue=OTHER)], locks_are_safe=True)


def test_concurrent_handlers_may_process_messages_in_any_order() -> None:
    group = concurrent()
    group.begin("c1", [message(5)], locks_are_safe=True)
    group.begin("c2", [message(2)], locks_are_safe=True)
    handle(group, 7)


def test_a_commit_may_reach_but_not_pass_the_first_unfinished_message() -> None:
    group = concurrent()
    handle(group, 0)
    handle(group, 2)
    group.check_commit(QUEUE, 1)
    with pytest.raises(Broken, match="committed at 2, and 1 is unfinished"):
        group.check_commit(QUEUE, 2)
    group.fail([message(1)], is_given_up=False)
    group.check_commit(QUEUE, 3)


def test_an_acknowledged_message_is_missing_unless_handled_or_dead() -> None:
    group = concurrent()
    handle(group, 0)
    bodies = [b"order 0", b"order 1", b"order 2"]
    assert group.missing(bodies, {b"order 2": 1}) == [b"order 1"]


def test_a_power_cut_permits_only_the_loss_of_failed_messages() -> None:
    group = concurrent()
    group.fail([message(0)], is_given_up=False)
    bodies = [b"order 0", b"order 1"]
    assert group.missing(bodies, {}) == bodies
    assert group.missing(bodies, {}, power_was_cut=True) == [b"order 1"]


def test_a_dead_letter_needs_a_failure() -> None:
    group = concurrent()
    group.fail([message(0)], is_given_up=True)
    group.check_dead_letters({b"order 0": 1})
    with pytest.raises(Broken, match="that never failed"):
        group.check_dead_letters({b"order 1": 1})


def test_a_message_that_was_not_sent_is_a_phantom() -> None:
    ledger = Ledger()
    ledger.sent["orders"].add(b"order 0")
    ledger.check_known(message(0))
    with pytest.raises(Broken, match="was never sent"):
        ledger.check_known(message(1))
