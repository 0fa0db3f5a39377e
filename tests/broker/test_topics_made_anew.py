"""A topic that is deleted and created again under connected consumers."""

from __future__ import annotations

from pathlib import Path

import pytest
from tests.support.asking import bodies, committed, ext, put_topic
from tests.support.stage import Stage
from tests.support.wire import Wire

from penstock.protocol.codes import RequestCode, ResponseCode
from penstock.protocol.commands import Command
from penstock.protocol.extensions import TOPIC_EPOCH
from penstock.protocol.headers.admin import DeleteTopic
from penstock.protocol.headers.codec import encode_header
from penstock.protocol.headers.offsets import (
    GetMaxOffset,
    GetMinOffset,
    QueryConsumerOffset,
    UpdateConsumerOffset,
)
from penstock.protocol.headers.pull import PullFlag, PullMessage


async def fill(wire: Wire, count: int, text: str) -> None:
    for number in range(count):
        assert (await wire.send("T", f"{text}-{number}".encode())).code == 0


async def remake(wire: Wire) -> None:
    await wire.ok(RequestCode.DELETE_TOPIC_IN_BROKER, DeleteTopic("T"))
    await put_topic(wire, "T", 1)


async def pull(wire: Wire, offset: int, epoch: str | None, commit: int = -1) -> Command:
    flag = PullFlag.SUBSCRIPTION | (PullFlag.COMMIT_OFFSET if commit >= 0 else 0)
    header = encode_header(PullMessage("g", "T", 0, offset, 32, flag, commit, 0, 0, "*", "TAG"))
    if epoch is not None:
        header[TOPIC_EPOCH] = epoch
    return await wire.request(RequestCode.PULL_MESSAGE, header)


async def commit(wire: Wire, offset: int, epoch: str | None) -> None:
    header = encode_header(UpdateConsumerOffset("g", "T", 0, offset))
    if epoch is not None:
        header[TOPIC_EPOCH] = epoch
    await wire.ok(RequestCode.UPDATE_CONSUMER_OFFSET, header)


async def epochs(wire: Wire) -> set[str | None]:
    """The epoch in every answer that has one."""
    query = QueryConsumerOffset("g", "T", 0)
    answers = [
        await wire.request(RequestCode.QUERY_CONSUMER_OFFSET, query),
        await wire.ok(RequestCode.GET_MAX_OFFSET, GetMaxOffset("T", 0)),
        await wire.ok(RequestCode.GET_MIN_OFFSET, GetMinOffset("T", 0)),
        await wire.pull("g", "T", 0),
        await wire.pull("g", "T", 1000),
    ]
    return {ext(answer).get(TOPIC_EPOCH) for answer in answers}


@pytest.mark.parametrize("offset", [3, 50], ids=["within the new queue", "beyond its end"])
async def test_a_pull_of_an_earlier_epoch_is_sent_to_the_first_new_message(
    wire: Wire, offset: int
) -> None:
    await put_topic(wire, "T", 1)
    await fill(wire, 50, "old")
    assert bodies(await pull(wire, 49, "0")) == [b"old-49"]
    await remake(wire)
    await fill(wire, 10, "new")
    answer = await pull(wire, offset, "0", commit=offset)
    assert (answer.code, answer.remark) == (ResponseCode.PULL_OFFSET_MOVED, "TOPIC_MADE_ANEW")
    assert ext(answer)["nextBeginOffset"] == "0"
    assert await committed(wire, "g", "T") == 0, "the commit in the pull is of the old topic"
    answer = await pull(wire, 0, ext(answer)[TOPIC_EPOCH])
    assert bodies(answer) == [b"new-%d" % number for number in range(10)]


async def test_a_commit_of_an_earlier_epoch_has_no_effect(wire: Wire) -> None:
    await put_topic(wire, "T", 1)
    await fill(wire, 50, "old")
    await commit(wire, 50, "0")
    assert await committed(wire, "g", "T") == 50
    await remake(wire)
    await fill(wire, 1, "new")
    await commit(wire, 50, "0")
    assert await committed(wire, "g", "T") == 0
    (epoch,) = await epochs(wire)
    await commit(wire, 1, epoch)
    assert await committed(wire, "g", "T") == 1


async def test_without_an_epoch_rocketmqs_rules_hold(wire: Wire) -> None:
    await put_topic(wire, "T", 1)
    await fill(wire, 50, "old")
    await remake(wire)
    await fill(wire, 10, "new")
    assert bodies(await pull(wire, 9, None)) == [b"new-9"]
    assert ext(await pull(wire, 50, None))["nextBeginOffset"] == "10"
    await commit(wire, 50, None)
    assert await committed(wire, "g", "T") == 50


async def test_the_epoch_is_in_every_answer_about_a_queue_and_grows(tmp_path: Path) -> None:
    async with Stage(tmp_path) as stage:
        wire = await stage.connect(await stage.broker())
        await put_topic(wire, "T", 1)
        await put_topic(wire, "Other", 1)
        await fill(wire, 3, "old")
        assert await epochs(wire) == {None}
        await remake(wire)
        (first,) = await epochs(wire)
        assert first is not None
        await fill(wire, 3, "new")
        await commit(wire, 3, first)
        assert await epochs(wire) == {first}
        await remake(wire)
        (second,) = await epochs(wire)
        assert second is not None
        assert int(second) > int(first) > 0
        # A topic that was never deleted has none.
        assert TOPIC_EPOCH not in ext(await wire.pull("g", "Other", 0))
    async with Stage(tmp_path) as stage:
        wire = await stage.connect(await stage.broker())
        assert await epochs(wire) == {second}, "it outlives a restart"


async def test_cleaning_up_unused_topics_counts_as_their_deletion(tmp_path: Path) -> None:
    async with Stage(tmp_path) as stage:
        broker = await stage.broker()
        wire = await stage.connect(broker)
        await put_topic(wire, "T", 1)
        await fill(wire, 3, "old")
        broker.state.topics.remove("T")
        await wire.ok(RequestCode.CLEAN_UNUSED_TOPIC)
        await put_topic(wire, "T", 1)
        assert len(await epochs(wire)) == 1
        assert (await pull(wire, 3, "0")).remark == "TOPIC_MADE_ANEW"


@pytest.mark.parametrize("epoch", ["-1", "one", "9" * 30])
async def test_an_epoch_that_is_no_number_is_refused(wire: Wire, epoch: str) -> None:
    await put_topic(wire, "T", 1)
    await fill(wire, 1, "old")
    await remake(wire)
    answer = await pull(wire, 0, epoch)
    assert answer.code == ResponseCode.INVALID_PARAMETER
    assert TOPIC_EPOCH in (answer.remark or "")
