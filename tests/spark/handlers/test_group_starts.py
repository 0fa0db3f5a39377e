"""Where a group on Spark begins without a checkpoint."""

from __future__ import annotations

import json

import pytest

from penstock import Message, MessageQueue, Producer
from penstock.errors import InvalidArgument
from penstock.spark.source.cluster import Cluster
from penstock.spark.source.group_starts import starts
from penstock.spark.source.options import parse_read
from penstock.spark.source.positions import Positions
from penstock.testing.embedded import Embedded

RETRY = "%RETRY%billing"
TIME = "1700000000000"


def begin(mq: Embedded, **options: str) -> dict[tuple[str, int], int]:
    """The group's starts by topic and queue."""
    given = {"namesrv": mq.namesrv, "topic": f"orders,{RETRY}", "group": "billing", **options}
    parsed = parse_read(given)
    positions = Positions(parsed)
    found = starts(positions, positions.queues(), "billing", parsed.starting)
    return {(queue.topic, queue.queue_id): offset for queue, offset in found.items()}


@pytest.fixture
def placed(mq: Embedded) -> Embedded:
    """Ten messages in each of two queues; the group stands at 4 in the first, never was else."""
    mq.admin.create_topic("orders", queues=2)
    mq.admin.create_topic(RETRY, queues=1)
    with Producer("p", namesrv=mq.namesrv) as producer:
        for number in range(20):
            queue = MessageQueue("orders", "broker-a", number % 2)
            producer.send(Message("orders", b"x"), queue=queue)
    parsed = parse_read({"namesrv": mq.namesrv, "topic": "orders", "group": "billing"})
    Cluster(parsed.access, parsed.puller).commit({MessageQueue("orders", "broker-a", 0): 4})
    return mq


@pytest.mark.parametrize(
    ("options", "second"),
    [
        ({"startingOffsets": "earliest"}, 0),
        ({"startingOffsets": "latest"}, 10),
        ({"startingOffsets": "group"}, 0),
        ({"startingTimestamp": "2999-01-01T00:00:00Z"}, 10),
        ({"startingTimestamp": TIME}, 0),
    ],
)
def test_the_groups_place_is_stronger_than_a_wish_for_queues_it_never_consumed(
    placed: Embedded, options: dict[str, str], second: int
) -> None:
    assert begin(placed, **options) == {("orders", 0): 4, ("orders", 1): second, (RETRY, 0): 0}


def test_a_named_queue_begins_at_its_given_offset(placed: Embedded) -> None:
    offsets = json.dumps({"orders": {"broker-a": {"0": 7, "1": -1}}})
    assert begin(placed, startingOffsets=offsets) == {
        ("orders", 0): 7,
        ("orders", 1): 10,
        (RETRY, 0): 0,
    }


def test_queues_that_offsets_do_not_name_begin_at_the_groups_place_or_their_first_message(
    placed: Embedded,
) -> None:
    offsets = json.dumps({"orders": {"broker-a": {"1": 7}}})
    assert begin(placed, startingOffsets=offsets) == {
        ("orders", 0): 4,
        ("orders", 1): 7,
        (RETRY, 0): 0,
    }
    placed.admin.create_topic("orders", queues=3)
    assert begin(placed, startingOffsets=offsets)["orders", 2] == 0
    offsets = json.dumps({"orders": {"broker-a": {"9": 7}}})
    with pytest.raises(InvalidArgument, match="names the unknown orders@broker-a:9"):
        begin(placed, startingOffsets=offsets)


def test_without_a_wish_a_new_group_begins_as_a_push_consumer_does(placed: Embedded) -> None:
    # The broker has the whole queue in memory, and tells a new group to take it all.
    assert begin(placed) == {("orders", 0): 4, ("orders", 1): 0, (RETRY, 0): 0}
