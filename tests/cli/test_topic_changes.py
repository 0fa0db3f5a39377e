"""What a second ``penstock topic create`` does to each broker."""

from __future__ import annotations

import pytest

from penstock.cli.topic_changes import TopicOptions, TopicSettings, plan_topic
from penstock.errors import InvalidArgument


def test_a_broker_without_the_topic_gets_it_as_the_others_have_it() -> None:
    planned = plan_topic("orders", TopicOptions(), {"a": TopicSettings(3, 3)}, ["a", "b"])
    assert planned.after == {"b": TopicSettings(3, 3)}
    assert planned.changes() == ["new on b"]


def test_brokers_that_differ_are_distinguished() -> None:
    before = {"a": TopicSettings(4, 4), "b": TopicSettings(2, 2)}
    planned = plan_topic("orders", TopicOptions(queues=2, permission=4), before, ["a", "b"])
    assert planned.groups() == [(TopicSettings(2, 2, 4), ["a", "b"])]
    assert planned.changes() == ["4 -> 2 queues on a", "permission rw -> r"]
    kept = plan_topic("orders", TopicOptions(permission=4), before, ["a", "b"])
    assert kept.groups() == [(TopicSettings(4, 4, 4), ["a"]), (TopicSettings(2, 2, 4), ["b"])]


def test_only_messages_that_can_be_read_now_are_hidden() -> None:
    planned = plan_topic("orders", TopicOptions(queues=1), {"a": TopicSettings(3, 4)}, ["a"])
    held = [("a", 0, 10), ("a", 1, 1), ("a", 2, 2), ("a", 3, 100), ("b", 2, 1000)]
    assert planned.shrinks
    assert planned.hides(held) == 3


def test_what_a_broker_could_not_confirm_is_sent_again() -> None:
    planned = plan_topic("orders", TopicOptions(), {"a": TopicSettings(3, 3)}, ["a"], doubtful=True)
    assert planned.after == {"a": TopicSettings(3, 3)}
    assert planned.changes() == []


def test_an_ordered_topic_is_changed_on_all_its_brokers_or_on_none() -> None:
    ordered = TopicSettings(2, 2, order=True)
    planned = plan_topic(
        "orders", TopicOptions(queues=2), {"a": ordered, "b": TopicSettings(2, 2)}, ["a"]
    )
    assert planned.after == {}
    planned = plan_topic("orders", TopicOptions(), {"a": ordered}, ["a", "b"])
    assert planned.after == {"a": ordered, "b": ordered}
    uneven = {"a": ordered, "b": TopicSettings(3, 3, order=True)}
    with pytest.raises(InvalidArgument, match="differs from broker to broker"):
        plan_topic("orders", TopicOptions(permission=4), uneven, ["a", "b"])
    with pytest.raises(InvalidArgument, match="also exists on b"):
        plan_topic("orders", TopicOptions(queues=5), {"a": ordered, "b": ordered}, ["a"])
