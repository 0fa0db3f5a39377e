"""Tables of topics and groups, which may be too large for one turn of the loop."""

from __future__ import annotations

import functools
import json
from collections.abc import Callable

import pytest
from tests.support.wire import Wire, body_of

from penstock.broker import Broker
from penstock.broker.handlers import groups, topics
from penstock.broker.handlers.table_requests import ROWS_AT_ONCE
from penstock.broker.tables.topics import topic_config
from penstock.protocol.bodies.groups import SubscriptionGroupConfig
from penstock.protocol.codes import RequestCode
from penstock.protocol.headers.admin import GetAllGroupConfig, GetAllTopicConfig
from penstock.remoting.dispatch import Reply
from penstock.remoting.long_answers import Steps

Start = Callable[[], Steps]


@pytest.fixture(params=["topics", "groups"])
def start(broker: Broker, request: pytest.FixtureRequest) -> Start:
    """Begins the answer with the whole table."""
    if request.param == "topics":
        return functools.partial(topics.get_all_topics, broker.state, GetAllTopicConfig())
    return functools.partial(groups.get_all_groups, broker.state, GetAllGroupConfig())


def add_rows(broker: Broker, count: int) -> None:
    for number in range(count):
        broker.state.topics.put(topic_config(f"Topic-{number}", 1, 1))
        broker.state.groups.put(SubscriptionGroupConfig(f"group-{number}"))


async def test_a_small_table_is_answered_at_once(start: Start) -> None:
    with pytest.raises(StopIteration) as end:
        next(start())
    assert isinstance(end.value.value, Reply)


async def test_a_large_table_is_encoded_by_a_thread_as_it_was_when_asked_for(
    broker: Broker, start: Start
) -> None:
    add_rows(broker, ROWS_AT_ONCE + 1)
    steps = start()
    encode = next(steps)
    assert encode is not None, "the loop encodes the table itself"
    broker.state.topics.remove("Topic-1")
    broker.state.groups.remove("group-1")
    text = encode()
    assert b'-1"' in text
    with pytest.raises(StopIteration) as end:
        steps.send(text)
    assert end.value.value.body == text


@pytest.mark.parametrize(
    ("code", "member"),
    [
        (RequestCode.GET_ALL_TOPIC_CONFIG, "topicConfigTable"),
        (RequestCode.GET_ALL_SUBSCRIPTIONGROUP_CONFIG, "subscriptionGroupTable"),
    ],
)
async def test_a_large_table_arrives_whole(
    broker: Broker, wire: Wire, code: int, member: str
) -> None:
    add_rows(broker, 2 * ROWS_AT_ONCE)
    table = json.loads(body_of(await wire.ok(code)))
    names = {f"Topic-{n}" for n in range(2 * ROWS_AT_ONCE)}
    names |= {f"group-{n}" for n in range(2 * ROWS_AT_ONCE)}
    assert len(names & table[member].keys()) == 2 * ROWS_AT_ONCE
