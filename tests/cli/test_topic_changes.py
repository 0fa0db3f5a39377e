"""What a second ``penstock topic create`` does to each broker."""

from __future__ import annotations

import pytest

from penstock.cli.topic_changes import Settings, Wish, plan
from penstock.errors import InvalidArgument


def test_a_broker_without_the_topic_gets_it_as_the_others_have_it() -> None:
    planned = plan("orders", Wish(), {"a": Settings(3, 3)}, ["a", "b"])
    assert planned.after == {"b": Settings(3, 3)}
    assert planned.changes() == ["new on b"]


def test_brokers_that_differ_are_told_apart() -> None:
    before = {"a": Settings(4, 4), "b": Settings(2, 2)}
    planned = plan("orders", Wish(queues=2, permission=4), before, ["a", "b"])
    assert planned.groups() == [(Settings(2, 2, 4), ["a", "b"])]
    assert planned.changes() == ["4 -> 2 queues on a", "permission rw -> r"]
    kept = plan("orders", Wish(permission=4), before, ["a", "b"])
    assert kept.groups() == [(Settings(4, 4, 4), ["a"]), (Settings(2, 2, 4), ["b"])]


def test_only_messages_that_can_be_read_now_are_hidden() -> None:
    planned = plan("orders", Wish(queues=1), {"a": Settings(3, 4)}, ["a"])
    held = [("a", 0, 10), ("a", 1, 1), ("a", 2, 2), ("a", 3, 100), ("b", 2, 1000)]
    assert planned.shrinks
    assert planned.hides(held) == 3


def test_what_a_broker_could_not_confirm_is_told_it_again() -> None:
    planned = plan("orders", Wish(), {"a": Settings(3, 3)}, ["a"], doubtful=True)
    assert planned.after == {"a": Settings(3, 3)}
    assert planned.changes() == []


def test_an_ordered_topic_is_told_to_all_its_brokers_or_to_none() -> None:
    ordered = Settings(2, 2, order=True)
    planned = plan("orders", Wish(queues=2), {"a": ordered, "b": Settings(2, 2)}, ["a"])
    assert planned.after == {}
    planned = plan("orders", Wish(), {"a": ordered}, ["a", "b"])
    assert planned.after == {"a": ordered, "b": ordered}
    uneven = {"a": ordered, "b": Settings(3, 3, order=True)}
    with pytest.raises(InvalidArgument, match="differs from broker to broker"):
        plan("orders", Wish(permission=4), uneven, ["a", "b"])
    with pytest.raises(InvalidArgument, match="also on b"):
        plan("orders", Wish(queues=5), {"a": ordered, "b": ordered}, ["a"])
