"""Messages that consumers hand back: retried after a delay, or given up."""

from __future__ import annotations

import logging
from pathlib import Path

import pytest
from tests.support.asking import (
    all_records,
    bodies,
    ext,
    log_position,
    max_offset,
    properties,
    put_group,
    put_topic,
    records,
    route,
    send_back,
)
from tests.support.faulty_files import FaultyFiles, SimulatedDisk
from tests.support.stage import Stage, in_virtual_time
from tests.support.wire import Wire

from penstock.broker.hooks import SentBack
from penstock.model.hosts import offset_message_id
from penstock.model.names import SCHEDULE_TOPIC
from penstock.protocol.bodies.codec import encode_state
from penstock.protocol.bodies.common import DataVersion
from penstock.protocol.bodies.groups import SubscriptionGroupConfig, SubscriptionGroupTable
from penstock.protocol.codes import RequestCode, ResponseCode
from penstock.protocol.extensions import REASON_FIELDS
from penstock.protocol.headers.codec import encode_header
from penstock.protocol.headers.send import SendBack
from penstock.protocol.records.codec import Record
from penstock.store import Draft
from penstock.testing.eventually import eventually

OK = ResponseCode.SUCCESS
ERROR = ResponseCode.SYSTEM_ERROR
RETRY_TOPIC, DEAD_TOPIC = "%RETRY%g", "%DLQ%g"


async def failed(wire: Wire, **send: object) -> int:
    """A message that will be handed back; its position in the log."""
    answer = await wire.send("T", b"poison", **send)  # type: ignore[arg-type]
    assert answer.code == OK
    return log_position(answer)


async def scheduled(wire: Wire, level: int) -> list[Record]:
    """The messages that wait in a delay level."""
    return await all_records(wire, SCHEDULE_TOPIC, level - 1)


async def next_retry(wire: Wire, count: int = 1) -> list[Record]:
    """The group's retry topic, once it has so many messages."""

    async def enough() -> list[Record]:
        found = await all_records(wire, RETRY_TOPIC)
        return found if len(found) >= count else []

    return await eventually(enough, 1000, interval=0.05)


# Where it goes


@pytest.mark.spec("S95", "S97", "S119", "S114")
@in_virtual_time
async def test_level_0_lets_the_broker_choose_10_seconds_and_then_30(tmp_path: Path) -> None:
    async with Stage(tmp_path) as stage:
        wire = await stage.connect(await stage.broker())
        position = await failed(wire)
        for attempt, seconds in enumerate((10, 30, 60), start=1):
            begin = stage.clock.monotonic()
            assert (await send_back(wire, "g", position, origin_topic="T")).code == OK
            await stage.clock.sleep(seconds - 0.5)
            found = await next_retry(wire, attempt)
            waited = stage.clock.monotonic() - begin
            assert seconds <= waited < seconds + 1
            assert [r.reconsume_times for r in found] == list(range(1, attempt + 1))
            position = found[-1].log_position


@pytest.mark.spec("S98", "S119")
@in_virtual_time
@pytest.mark.parametrize(("level", "seconds"), [(1, 1), (4, 30), (5, 60)])
async def test_a_level_that_the_client_chose_is_used(
    tmp_path: Path, level: int, seconds: int
) -> None:
    async with Stage(tmp_path) as stage:
        wire = await stage.connect(await stage.broker())
        position = await failed(wire)
        begin = stage.clock.monotonic()
        await send_back(wire, "g", position, level=level)
        await stage.clock.sleep(seconds - 0.5)
        assert await all_records(wire, RETRY_TOPIC) == []
        [record] = await next_retry(wire)
        assert seconds <= stage.clock.monotonic() - begin < seconds + 1
        assert properties(record)["DELAY"] == str(level)


@pytest.mark.spec("S98")
async def test_a_level_beyond_the_last_is_the_last(tmp_path: Path) -> None:
    async with Stage(tmp_path) as stage:
        wire = await stage.connect(await stage.broker())
        assert (await send_back(wire, "g", await failed(wire), level=25)).code == OK
        [record] = await scheduled(wire, 18)
        assert properties(record)["DELAY"] == "18"


@pytest.mark.parametrize("level", [3, -1])
async def test_a_value_with_a_separator_in_it_keeps_no_message_from_its_retry(
    tmp_path: Path, level: int
) -> None:
    async with Stage(tmp_path) as stage:
        broker = await stage.broker()
        wire = await stage.connect(broker)
        draft = Draft("T", 0, b"poison", b"a\x01b\x01c\x02UNIQ_KEY\x01U\x02")
        position = broker.state.storage.append(draft).log_position
        assert (await send_back(wire, "g", position, level=level)).code == OK
        if level > 0:
            [record] = await scheduled(wire, level)
        else:
            [record] = records(await wire.pull("reader", DEAD_TOPIC, 0))
        assert record.properties.startswith(b"a\x01b\x01c\x02")


@pytest.mark.spec("S96", "S112")
async def test_a_negative_level_means_the_dead_letters_at_once(tmp_path: Path) -> None:
    async with Stage(tmp_path) as stage:
        broker = await stage.broker()
        wire = await stage.connect(broker)
        position = await failed(wire)
        assert (await send_back(wire, "g", position, level=-1)).code == OK
        [record] = records(await wire.pull("reader", DEAD_TOPIC, 0))
        assert (record.body, record.reconsume_times, record.queue_id) == (b"poison", 1, 0)
        assert properties(record)["DELAY"] == "0"
        assert await max_offset(wire, RETRY_TOPIC) == 0


@pytest.mark.spec("S111", "S112")
async def test_the_requests_limit_decides_when_a_message_is_dead(tmp_path: Path) -> None:
    async with Stage(tmp_path) as stage:
        wire = await stage.connect(await stage.broker())
        for times in range(4):
            position = await failed(wire, reconsume_times=times)
            assert (await send_back(wire, "g", position, level=1, max_times=2)).code == OK
        dead = await all_records(wire, DEAD_TOPIC)
        # The third failure is one too many: it was retried twice already.
        assert [r.reconsume_times for r in dead] == [3, 4]
        assert len(await scheduled(wire, 1)) == 2


@pytest.mark.spec("S111")
@pytest.mark.parametrize(("group_limit", "limit"), [(None, 16), (5, 5)])
async def test_without_a_limit_in_the_request_the_groups_counts(
    tmp_path: Path, group_limit: int | None, limit: int
) -> None:
    async with Stage(tmp_path) as stage:
        wire = await stage.connect(await stage.broker())
        if group_limit is not None:
            await put_group(wire, SubscriptionGroupConfig("g", retry_max_times=group_limit))
        for times in (limit - 1, limit):
            position = await failed(wire, reconsume_times=times)
            await send_back(wire, "g", position, level=1, max_times=None)
        assert [r.reconsume_times for r in await all_records(wire, DEAD_TOPIC)] == [limit + 1]
        assert len(await scheduled(wire, 1)) == 1


@pytest.mark.spec("S111")
async def test_a_client_that_is_too_old_has_no_limit_of_its_own(tmp_path: Path) -> None:
    async with Stage(tmp_path) as stage:
        broker = await stage.broker()
        old = await stage.connect(broker, version=63)
        position = await failed(old)
        await send_back(old, "g", position, level=1, max_times=0)
        assert len(await scheduled(old, 1)) == 1


@pytest.mark.spec("S103")
async def test_retries_are_spread_over_the_groups_retry_queues(tmp_path: Path) -> None:
    async with Stage(tmp_path) as stage:
        broker = await stage.broker()
        wire = await stage.connect(broker)
        await put_group(wire, SubscriptionGroupConfig("g", retry_queue_nums=4))
        position = await failed(wire)
        for _ in range(40):
            assert (await send_back(wire, "g", position, level=18)).code == OK
        waiting = await scheduled(wire, 18)
        assert {properties(r)["REAL_TOPIC"] for r in waiting} == {RETRY_TOPIC}
        assert {properties(r)["REAL_QID"] for r in waiting} == {"0", "1", "2", "3"}
        assert broker.state.topics.require(RETRY_TOPIC).write_queue_nums == 4


async def test_a_retry_goes_to_a_queue_that_the_retry_topic_has(tmp_path: Path) -> None:
    async with Stage(tmp_path) as stage:
        wire = await stage.connect(await stage.broker())
        position = await failed(wire)
        await put_group(wire, SubscriptionGroupConfig("g", retry_queue_nums=2))
        assert (await send_back(wire, "g", position, level=18)).code == OK
        # The topic stays as it was made, as in RocketMQ.
        await put_group(wire, SubscriptionGroupConfig("g", retry_queue_nums=50))
        for _ in range(20):
            assert (await send_back(wire, "g", position, level=18)).code == OK
        waiting = await scheduled(wire, 18)
        assert {properties(r)["REAL_QID"] for r in waiting} == {"0", "1"}


# What is stored


@pytest.mark.spec("S113", "S109", "S115", "S110")
async def test_the_new_record_is_the_old_one_with_a_place_of_its_own(tmp_path: Path) -> None:
    async with Stage(tmp_path) as stage:
        broker = await stage.broker()
        wire = await stage.connect(broker)
        position = await failed(
            wire,
            properties={"TAGS": "A", "KEYS": "k", "UNIQ_KEY": "U", "color": "red"},
            flag=9,
            born_timestamp=12345,
        )
        [before] = await all_records(wire, "T")
        await send_back(wire, "g", position, level=-1)
        [record] = await all_records(wire, DEAD_TOPIC)
        assert record.log_position > before.log_position
        for name in ("body", "flag", "born_timestamp", "born_host", "sys_flag", "body_crc"):
            assert getattr(record, name) == getattr(before, name)
        kept = properties(before)
        assert properties(record) == {
            **kept,
            "RETRY_TOPIC": "T",
            "ORIGIN_MESSAGE_ID": offset_message_id(before.store_host, before.log_position),
            "WAIT": "false",
            "DELAY": "0",
        }
        # The original is untouched.
        assert await all_records(wire, "T") == [before]


@pytest.mark.spec("S109", "S115", "S114")
@in_virtual_time
async def test_the_first_topic_and_id_are_kept_over_all_retries(tmp_path: Path) -> None:
    async with Stage(tmp_path) as stage:
        wire = await stage.connect(await stage.broker())
        position = await failed(wire, properties={"UNIQ_KEY": "U"})
        [original] = await all_records(wire, "T")
        first_id = offset_message_id(original.store_host, original.log_position)
        for attempt in range(1, 4):
            await send_back(wire, "g", position, level=1, max_times=3)
            record = (await next_retry(wire, attempt))[-1]
            position = record.log_position
            seen = properties(record)
            assert (seen["RETRY_TOPIC"], seen["ORIGIN_MESSAGE_ID"]) == ("T", first_id)
            assert (seen["UNIQ_KEY"], record.reconsume_times) == ("U", attempt)
        await send_back(wire, "g", position, level=1, max_times=3)
        [dead] = await all_records(wire, DEAD_TOPIC)
        assert dead.reconsume_times == 4
        assert properties(dead)["RETRY_TOPIC"] == "T"
        assert properties(dead)["REAL_TOPIC"] == RETRY_TOPIC


@in_virtual_time
async def test_a_sender_cannot_name_the_topic_and_id_of_a_first_attempt(tmp_path: Path) -> None:
    """The consumer would look for a handler of that topic, and not retry the message."""
    async with Stage(tmp_path) as stage:
        wire = await stage.connect(await stage.broker())
        forged = {"RETRY_TOPIC": "Other", "ORIGIN_MESSAGE_ID": "0" * 32}
        position = await failed(wire, properties=forged)
        await send_back(wire, "g", position, level=1)
        [record] = await next_retry(wire)
        assert properties(record)["RETRY_TOPIC"] == "T"
        assert properties(record)["ORIGIN_MESSAGE_ID"][-16:] == f"{position:016X}"


async def test_a_dead_letter_that_another_group_sends_back_is_retried_as_a_dead_letter(
    tmp_path: Path,
) -> None:
    async with Stage(tmp_path) as stage:
        wire = await stage.connect(await stage.broker())
        position = await failed(wire)
        await send_back(wire, "g", position, level=-1)
        [dead] = await all_records(wire, DEAD_TOPIC)
        await send_back(wire, "cleaners", dead.log_position, level=-1)
        [again] = await all_records(wire, "%DLQ%cleaners")
        assert properties(again)["RETRY_TOPIC"] == DEAD_TOPIC
        assert properties(again)["ORIGIN_MESSAGE_ID"] == properties(dead)["ORIGIN_MESSAGE_ID"]


async def test_the_reason_of_a_failure_is_kept_and_made_harmless(tmp_path: Path) -> None:
    async with Stage(tmp_path) as stage:
        wire = await stage.connect(await stage.broker())
        position = await failed(wire)
        fields = encode_header(SendBack(position, "g", -1, max_reconsume_times=16))
        field, key = next(iter(REASON_FIELDS.items()))
        fields[field] = "Value\x01Error\x02: \x00" + "x" * 5000
        assert (await wire.request(RequestCode.CONSUMER_SEND_MSG_BACK, fields)).code == OK
        [dead] = await all_records(wire, DEAD_TOPIC)
        reason = properties(dead)[key]
        assert reason.startswith("Value Error : ")
        assert len(reason) <= 1000


# Topics it makes


@pytest.mark.spec("S104")
@in_virtual_time
@pytest.mark.parametrize("made_by", ["heartbeat", "send-back"])
async def test_the_retry_topic_has_a_route_to_read_and_write(tmp_path: Path, made_by: str) -> None:
    async with Stage(tmp_path) as stage:
        names = await stage.connect(await stage.name_server())
        wire = await stage.connect(await stage.broker())
        position = await failed(wire)
        assert await route(names, RETRY_TOPIC) is None
        if made_by == "heartbeat":
            await wire.heartbeat("c1", consumer="g", topics=["T"])
        else:
            await send_back(wire, "g", position)
        found = await eventually(lambda: route(names, RETRY_TOPIC))
        assert found is not None
        [queues] = found.queues
        assert (queues.permission, queues.read_queues, queues.write_queues) == (6, 1, 1)


@pytest.mark.spec("S105")
@in_virtual_time
@pytest.mark.parametrize("unit_mode", [False, True])
async def test_unit_mode_marks_the_retry_topic(tmp_path: Path, unit_mode: bool) -> None:
    async with Stage(tmp_path) as stage:
        names = await stage.connect(await stage.name_server())
        wire = await stage.connect(await stage.broker())
        position = await failed(wire)
        await send_back(wire, "g", position, unit_mode=unit_mode)
        found = await eventually(lambda: route(names, RETRY_TOPIC))
        assert found is not None
        [queues] = found.queues
        assert queues.topic_sys_flag == (2 if unit_mode else 0)


@pytest.mark.spec("S112")
@pytest.mark.parametrize(("profile", "perm"), [("current", 6), ("documents", 2)])
async def test_the_dead_letter_topic_has_one_queue(tmp_path: Path, profile: str, perm: int) -> None:
    async with Stage(tmp_path) as stage:
        broker = await stage.broker(dead_letter_permission=perm)
        wire = await stage.connect(broker)
        await send_back(wire, "g", await failed(wire), level=-1)
        config = broker.state.topics.require(DEAD_TOPIC)
        assert (config.read_queue_nums, config.write_queue_nums, config.perm) == (1, 1, perm)
        assert await max_offset(wire, DEAD_TOPIC) == 1
        readable = (await wire.pull("reader", DEAD_TOPIC, 0)).code
        assert readable == (OK if profile == "current" else ResponseCode.NO_PERMISSION)


# Refusals


@pytest.mark.spec("S112")
async def test_a_dead_letter_goes_to_the_only_queue_whatever_the_retry_would_have(
    tmp_path: Path,
) -> None:
    async with Stage(tmp_path) as stage:
        broker = await stage.broker()
        wire = await stage.connect(broker)
        await put_group(wire, SubscriptionGroupConfig("g", retry_queue_nums=64))
        for _ in range(4):
            await send_back(wire, "g", await failed(wire), level=-1)
        assert len(await all_records(wire, DEAD_TOPIC)) == 4
        store = broker.state.storage.store
        assert [queue for topic, queue in store.queues() if topic == DEAD_TOPIC] == [0]


@pytest.mark.spec("S99")
async def test_a_slave_has_no_master_to_send_back_to(tmp_path: Path) -> None:
    async with Stage(tmp_path) as stage:
        master = await stage.broker()
        position = await failed(await stage.connect(master))
        await master.stop()
        slave = await stage.broker(broker_role="SLAVE", broker_id=1)
        answer = await send_back(await stage.connect(slave), "g", position)
        assert answer.code == ERROR
        assert "no master available" in (answer.remark or "")


@pytest.mark.spec("S100")
async def test_an_unknown_group_is_refused_where_none_is_made(tmp_path: Path) -> None:
    async with Stage(tmp_path) as stage:
        wire = await stage.connect(await stage.broker(auto_create_subscription_group=False))
        position = await failed(wire)
        answer = await send_back(wire, "g", position)
        assert answer.code == ResponseCode.SUBSCRIPTION_GROUP_NOT_EXIST
        await put_group(wire, SubscriptionGroupConfig("g"))
        assert (await send_back(wire, "g", position)).code == OK


@pytest.mark.spec("S101")
async def test_a_broker_that_may_not_be_written_to_refuses(tmp_path: Path) -> None:
    async with Stage(tmp_path) as stage:
        wire = await stage.connect(await stage.broker(broker_permission=4))
        answer = await send_back(wire, "g", await failed(wire))
        assert answer.code == ResponseCode.NO_PERMISSION


@pytest.mark.spec("S102")
@pytest.mark.parametrize("queues", [0, -1])
async def test_a_group_without_retry_queues_loses_what_it_hands_back(
    tmp_path: Path, queues: int
) -> None:
    async with Stage(tmp_path) as stage:
        broker = await stage.broker()
        wire = await stage.connect(broker)
        await put_group(wire, SubscriptionGroupConfig("g", retry_queue_nums=queues))
        position = await failed(wire)
        end = broker.state.storage.store.max_position
        for level in (0, -1):
            assert (await send_back(wire, "g", position, level=level)).code == OK
        assert broker.state.storage.store.max_position == end


@pytest.mark.spec("S106")
async def test_a_retry_topic_that_may_not_be_written_to_refuses(tmp_path: Path) -> None:
    async with Stage(tmp_path) as stage:
        wire = await stage.connect(await stage.broker())
        position = await failed(wire)
        await put_topic(wire, RETRY_TOPIC, 1, perm=4)
        answer = await send_back(wire, "g", position)
        assert answer.code == ResponseCode.NO_PERMISSION
        assert RETRY_TOPIC in (answer.remark or "")


@pytest.mark.spec("S106")
async def test_a_retry_topic_that_cannot_be_made_refuses(tmp_path: Path) -> None:
    # Longer than a group may be, but a table of an older broker may bring it along.
    group = "g" * 250
    async with Stage(tmp_path) as stage:
        broker = await stage.broker()
        table = encode_state(
            SubscriptionGroupTable({group: SubscriptionGroupConfig(group)}, DataVersion(0, 0, 0))
        )
        broker.state.groups.load(table)
        wire = await stage.connect(broker)
        position = await failed(wire)
        answer = await send_back(wire, group, position)
        assert answer.code == ERROR
        assert "not exist" in (answer.remark or "")
        assert f"%RETRY%{group}" not in broker.state.topics


@pytest.mark.spec("S107")
async def test_a_position_without_a_message_is_refused(tmp_path: Path) -> None:
    async with Stage(tmp_path) as stage:
        wire = await stage.connect(await stage.broker())
        position = await failed(wire)
        for wrong in (position + 1, position + 100_000, -1, 1 << 62):
            answer = await send_back(wire, "g", wrong)
            assert answer.code == ERROR
            assert "look message by offset failed" in (answer.remark or "")


@pytest.mark.spec("S108")
@pytest.mark.parametrize("profile", ["current", "documents"])
async def test_the_origin_topic_is_compared_only_as_5_0_0_did(tmp_path: Path, profile: str) -> None:
    async with Stage(tmp_path) as stage:
        wire = await stage.connect(await stage.broker(check_origin_topic=profile == "documents"))
        position = await failed(wire)
        answer = await send_back(wire, "g", position, origin_topic="another")
        assert answer.code == (OK if profile == "current" else ERROR)
        assert (await send_back(wire, "g", position, origin_topic="T")).code == OK


@pytest.mark.spec("S116", "S118")
async def test_only_a_stored_message_is_a_success(tmp_path: Path) -> None:
    files = FaultyFiles(SimulatedDisk())
    async with Stage(tmp_path) as stage:
        broker = await stage.broker(files=files)
        wire = await stage.connect(broker)
        position = await failed(wire)
        files.disk.free_bytes = 0
        # The write that finds the disk full costs the connection; from then on the store refuses.
        with pytest.raises(ConnectionError):
            await wire.send("T")
        events: list[SentBack] = []
        broker.state.send_back_hooks.append(events.append)
        wire = await stage.connect(broker)
        answer = await send_back(wire, "g", position)
        assert answer.code == ERROR
        assert "SERVICE_NOT_AVAILABLE" in (answer.remark or "")
        assert events == [SentBack("g", "T", is_success=False, is_dead=False)]
        assert broker.state.stats.sent_backs == {}


# Logs, hooks and statistics


@pytest.mark.spec("S117")
async def test_send_backs_and_dead_letters_are_counted(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO, "penstock.broker")
    async with Stage(tmp_path) as stage:
        broker = await stage.broker()
        wire = await stage.connect(broker)
        position = await failed(wire, properties={"UNIQ_KEY": "THE-ID"})
        await send_back(wire, "g", position)
        stats = broker.state.stats
        assert stats.sent_backs["T", "g"].count == 1
        assert not stats.dead_letters
        await send_back(wire, "g", position, level=-1)
        assert stats.sent_backs["T", "g"].count == 2
        assert stats.dead_letters["g"].count == 1
    [line] = [r.getMessage() for r in caplog.records if "dead letter stored" in r.getMessage()]
    assert "group=g" in line
    assert "THE-ID" in line


@pytest.mark.spec("S118")
async def test_a_hook_is_called_once_for_each_send_back(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    async with Stage(tmp_path) as stage:
        broker = await stage.broker()
        wire = await stage.connect(broker)
        events: list[SentBack] = []

        def fail(event: SentBack) -> None:
            raise RuntimeError("hooks change nothing")

        broker.state.send_back_hooks.extend([fail, events.append])
        position = await failed(wire)
        assert (await send_back(wire, "g", position)).code == OK
        assert (await send_back(wire, "g", position, level=-1)).code == OK
        assert events == [
            SentBack("g", "T", is_success=True, is_dead=False),
            SentBack("g", "T", is_success=True, is_dead=True),
        ]
        assert "send-back hook failed" in caplog.text


@pytest.mark.spec("S112")
async def test_dead_letters_are_not_delivered_to_their_group(tmp_path: Path) -> None:
    async with Stage(tmp_path) as stage:
        wire = await stage.connect(await stage.broker())
        await wire.heartbeat("c1", consumer="g", topics=["T"])
        await send_back(wire, "g", await failed(wire), level=-1)
        # The group subscribes to its retry topic, and nothing is there.
        answer = await wire.pull("g", RETRY_TOPIC, 0, expression=None)
        assert answer.code == ResponseCode.PULL_NOT_FOUND
        assert bodies(await wire.pull("reader", DEAD_TOPIC, 0)) == [b"poison"]
        assert ext(answer)["nextBeginOffset"] == "0"
