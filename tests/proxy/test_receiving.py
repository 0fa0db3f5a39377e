"""ReceiveMessage, AckMessage, ChangeInvisibleDuration and dead letters."""

from __future__ import annotations

import asyncio
import gc
import hashlib
import logging
import tracemalloc
from pathlib import Path

import pytest
from tests.proxy.lab import (
    GROUP,
    TOPIC,
    Lab,
    LabClient,
    bodies,
    code_of,
    consumer_settings,
    handle_of,
)
from tests.support.asking import all_records, properties
from tests.support.faulty_files import FaultyFiles, SimulatedDisk
from tests.support.stage import in_virtual_time

from penstock.model.names import dead_letter_topic
from penstock.protocol.bodies.groups import (
    ExponentialRetryPolicy,
    GroupRetryPolicy,
    RetryPolicyType,
)
from penstock.protocol.codes import RequestCode
from penstock.protocol.headers.clients import ResetOffset
from penstock.proxy import clients
from penstock.proxy.facts import GroupFacts
from penstock.proxy.renewals import LONGEST_SECONDS
from penstock.proxy.times import duration
from penstock.proxy.wire import messages as wire
from penstock.proxy.wire.codes import ClientType, Code, DigestType
from penstock.proxy.wire.messages import ReceiveMessageResponse


def contents(responses: list[ReceiveMessageResponse]) -> list[str | None]:
    return [one.WhichOneof("content") for one in responses]


@pytest.mark.spec("G41", "G43")
@in_virtual_time
async def test_an_empty_poll_ends_in_time(tmp_path: Path) -> None:
    async with Lab(tmp_path) as lab:
        lab.topic()
        for asked, deadline, wanted in (
            (60, None, 20),
            (1, None, 1),
            (0, None, 0),
            (20, 6, 5.7),
            (20, 0.1, 0),
        ):
            begun = lab.clock.monotonic()
            until = None if deadline is None else begun + deadline
            responses = await lab.client(deadline=until).receive(wait=asked)
            assert responses[0].status.code == Code.MESSAGE_NOT_FOUND
            assert contents(responses) == ["status", "delivery_timestamp"]
            assert lab.clock.monotonic() - begun == pytest.approx(wanted, abs=0.2)


@pytest.mark.spec("G42")
@in_virtual_time
async def test_a_message_reaches_a_poll_that_waits(tmp_path: Path) -> None:
    async with Lab(tmp_path) as lab:
        lab.topic()
        poll = asyncio.ensure_future(lab.client().messages(wait=20))
        await lab.clock.sleep(3)
        begun = lab.clock.monotonic()
        await lab.client("c2").sent(b"now")
        assert bodies(await poll) == [b"now"]
        assert lab.clock.monotonic() - begun < 0.1


@pytest.mark.spec("G44", "G48")
@in_virtual_time
async def test_a_poll_takes_at_most_32_of_all_queues(tmp_path: Path) -> None:
    async with Lab(tmp_path) as lab:
        lab.topic(queues=4)
        client = lab.client()
        for i in range(40):
            await client.sent(b"%d" % i)
        responses = await client.receive(count=100, queue_id=2)
        assert contents(responses) == ["status", *["message"] * 32, "delivery_timestamp"]
        assert responses[0].status.code == Code.OK
        rest = await client.messages(count=100)
        queues = {one.message.system_properties.queue_id for one in responses[1:-1]}
        assert len(queues) > 1
        assert len(rest) == 8


@pytest.mark.spec("G45")
@in_virtual_time
async def test_invisible_times_have_bounds(tmp_path: Path) -> None:
    async with Lab(tmp_path) as lab:
        lab.topic()
        client = lab.client()
        for seconds in (9.9, 12 * 3600 + 1):
            (refused,) = await client.receive(invisible=seconds)
            assert refused.status.code == Code.ILLEGAL_INVISIBLE_TIME
        for seconds in (10, 12 * 3600):
            assert await client.messages(invisible=seconds) == []


@pytest.mark.spec("G46", "G47")
@in_virtual_time
async def test_what_is_not_acknowledged_comes_again(tmp_path: Path) -> None:
    async with Lab(tmp_path) as lab:
        lab.topic(queues=1)
        client = lab.client()
        sent = await client.sent(b"again", tag="t")
        (first,) = await client.messages(invisible=10)
        system = first.system_properties
        assert system.body_digest.type == DigestType.MD5
        digest = hashlib.md5(b"again", usedforsecurity=False).hexdigest().upper()
        assert system.body_digest.checksum == digest
        assert (system.delivery_attempt, system.message_id) == (1, sent.message_id)
        assert await client.messages(wait=8) == []
        (second,) = await client.messages(wait=10)
        assert second.topic.name == TOPIC
        assert second.system_properties.message_id == sent.message_id
        assert second.system_properties.delivery_attempt == 2
        assert second.system_properties.tag == "t"


@pytest.mark.spec("G49")
@in_virtual_time
async def test_filters(tmp_path: Path) -> None:
    async with Lab(tmp_path, enable_property_filter=True) as lab:
        lab.topic(queues=1)
        client = lab.client()
        for tag in "ABC":
            await client.sent(tag.encode(), tag=tag, properties={"n": str(ord(tag))})
        await client.sent(b"none")
        got = await client.messages(tags="A || B", invisible=10)
        assert bodies(got) == [b"A", b"B"]
        for one in got:
            await client.ack(handle_of(one))
        await lab.clock.sleep(30)
        assert await client.messages(tags="A || B") == []
        assert bodies(await client.messages(group="sql", sql="n > 65")) == [b"B", b"C"]
        (refused,) = await client.receive(group="sql", sql="n >")
        assert refused.status.code == Code.ILLEGAL_FILTER_EXPRESSION
        (refused,) = await client.receive(tags="||")
        assert refused.status.code == Code.ILLEGAL_FILTER_EXPRESSION


@pytest.mark.spec("G49")
@in_virtual_time
async def test_equal_hashes_of_tags_do_not_deceive(tmp_path: Path) -> None:
    async with Lab(tmp_path) as lab:
        lab.topic(queues=1)
        client = lab.client()
        # Java's hash of both is the same.
        await client.sent(b"other", tag="BB")
        await client.sent(b"wanted", tag="Aa")
        assert bodies(await client.messages(tags="Aa", invisible=10)) == [b"wanted"]
        await lab.clock.sleep(15)
        # The other one was acknowledged, and does not come again.
        assert bodies(await client.messages(wait=1)) == [b"wanted"]


@pytest.mark.spec("G50", "G51", "G2")
@in_virtual_time
async def test_acknowledging(tmp_path: Path) -> None:
    async with Lab(tmp_path) as lab:
        lab.topic(queues=1)
        client = lab.client()
        await client.sent(b"one")
        await client.sent(b"two")
        one, two = map(handle_of, await client.messages(invisible=30))
        assert code_of(await client.ack(one)) == Code.OK
        assert code_of(await client.ack(one)) == Code.OK
        assert code_of(await client.ack("garbage")) == Code.INVALID_RECEIPT_HANDLE
        expired = two.split(" ")
        expired[1] = str(int(expired[1]) - 31_000)
        answer = await client.ack(two, " ".join(expired))
        assert code_of(answer) == Code.MULTIPLE_RESULTS
        assert [entry.status.code for entry in answer.entries] == [
            Code.OK,
            Code.INVALID_RECEIPT_HANDLE,
        ]
        assert [entry.message_id for entry in answer.entries] == ["m0", "m1"]
        assert code_of(await client.ack()) == Code.INTERNAL_SERVER_ERROR
        await lab.clock.sleep(60)
        assert await client.messages() == []


@pytest.mark.spec("G52", "G53")
@in_virtual_time
async def test_changing_the_invisible_time(tmp_path: Path) -> None:
    async with Lab(tmp_path) as lab:
        lab.topic(queues=1)
        client = lab.client()
        await client.sent(b"x")
        (first,) = await client.messages(invisible=60)
        changed = await client.change(handle_of(first), 2)
        assert code_of(changed) == Code.OK
        assert changed.receipt_handle not in ("", handle_of(first))
        begun = lab.clock.monotonic()
        (second,) = await client.messages(wait=10)
        assert 2 <= lab.clock.monotonic() - begun <= 4
        assert second.system_properties.delivery_attempt == 2
        kept = await client.change(handle_of(second), 1, suspend=True)
        assert code_of(kept) == Code.OK
        (third,) = await client.messages(wait=10, invisible=60)
        assert third.system_properties.delivery_attempt == 2
        begun = lab.clock.monotonic()
        assert code_of(await client.change(handle_of(third), 0)) == Code.OK
        (fourth,) = await client.messages(wait=10, invisible=60)
        assert lab.clock.monotonic() - begun < 2
        too_long = await client.change(handle_of(fourth), 12 * 3600 + 1)
        assert code_of(too_long) == Code.ILLEGAL_INVISIBLE_TIME
        # The new handle works.
        longer = await client.change(handle_of(fourth), 600)
        assert code_of(await client.ack(longer.receipt_handle)) == Code.OK
        await lab.clock.sleep(700)
        assert await client.messages() == []


@pytest.mark.spec("G54")
@in_virtual_time
async def test_messages_of_push_consumers_are_renewed(tmp_path: Path) -> None:
    async with Lab(tmp_path) as lab:
        lab.topic(queues=1)
        client, other = lab.client(), lab.client("c2")
        await client.settle(consumer_settings())
        await client.sent(b"slow")
        (got,) = await client.messages(renew=True)
        for _ in range(18):
            await lab.clock.sleep(10)
            assert code_of(await client.heartbeat(ClientType.PUSH_CONSUMER, GROUP)) == Code.OK
            assert await other.messages() == []
        assert code_of(await client.ack(handle_of(got))) == Code.OK
        await lab.clock.sleep(4000)
        assert await other.messages() == []
        assert len(lab.endpoint.parts.renewals) == 0


@pytest.mark.spec("G54")
@in_virtual_time
async def test_acknowledgements_during_a_round_of_renewals_count(tmp_path: Path) -> None:
    """Before, while and after a message is renewed; not all are renewed at once."""
    async with Lab(tmp_path) as lab:
        lab.topic(queues=1)
        client = lab.client()
        await lab.clock.sleep(1)
        got = []
        for _ in range(3):
            for _ in range(32):
                await client.sent(b"x")
            got += await client.messages(renew=True)
        # Nearly over, and between two rounds of the endpoint.
        await lab.clock.sleep(52)

        async def acknowledge(number: int) -> int:
            for _ in range(number % 8):
                await asyncio.sleep(0)
            return code_of(await client.ack(handle_of(got[number])))

        codes = await asyncio.gather(
            lab.endpoint.parts.renewals.round(), *(acknowledge(i) for i in range(len(got)))
        )
        assert set(codes[1:]) == {Code.OK}
        await lab.clock.sleep(300)
        assert await lab.client("c2").messages() == []


@pytest.mark.spec("G55")
@in_virtual_time
async def test_what_is_acknowledged_while_renewals_end_does_not_come_again(tmp_path: Path) -> None:
    async with Lab(tmp_path, longest_renewal=30) as lab:
        lab.topic(queues=1)
        client = lab.client()
        await lab.clock.sleep(1)
        got = []
        for start in range(0, 96, 32):
            for number in range(start, start + 32):
                await client.sent(b"%d" % number)
            got += await client.messages(renew=True)
        await lab.clock.sleep(52)
        # The first 64 end together; the others are finished before it is their turn.
        codes = await asyncio.gather(
            lab.endpoint.parts.renewals.round(),
            *(client.ack(handle_of(one)) for one in got[64:]),
        )
        assert {code_of(answer) for answer in codes[1:]} == {Code.OK}
        await lab.clock.sleep(300)
        again = [*await client.messages(), *await client.messages(), *await client.messages()]
        assert sorted(map(int, bodies(again))) == list(range(64))


@pytest.mark.spec("G55")
@in_virtual_time
async def test_renewal_ends(tmp_path: Path) -> None:
    assert LONGEST_SECONDS == 3 * 3600
    async with Lab(tmp_path, longest_renewal=600) as lab:
        lab.topic(queues=1)
        client = lab.client()
        await client.sent(b"stuck")
        begun = lab.clock.monotonic()
        (first,) = await client.messages(renew=True)
        again: list[object] = []
        while not again and lab.clock.monotonic() - begun < 3600:
            again += await client.messages(renew=True, wait=20)
        # The last renewal before the end was one of five minutes, or of ten.
        assert 600 <= lab.clock.monotonic() - begun < 1300
        assert code_of(await client.ack(handle_of(first))) == Code.INVALID_RECEIPT_HANDLE


@pytest.mark.spec("G53")
@in_virtual_time
async def test_push_consumers_that_return_at_once_get_the_delay_of_their_group(
    tmp_path: Path,
) -> None:
    async with Lab(tmp_path) as lab:
        lab.topic(queues=1)
        client = lab.client()
        await client.sent(b"x")
        begun = lab.clock.monotonic()
        times: list[float] = []
        for _ in range(3):
            (got,) = await client.messages(renew=True, wait=20)
            times.append(lab.clock.monotonic() - begun)
            await client.change(handle_of(got), 0)
        assert times == pytest.approx([0, 1, 6], abs=1.5)


@pytest.mark.spec("G57")
@in_virtual_time
async def test_messages_that_were_delivered_too_often_are_dead(tmp_path: Path) -> None:
    async with Lab(tmp_path) as lab:
        lab.topic(queues=1)
        lab.group(retry_max_times=1)
        client = lab.client()
        sent = await client.sent(b"bad", tag="t")
        for _ in range(2):
            (got,) = await client.messages(wait=20)
            assert code_of(await client.change(handle_of(got), 1)) == Code.OK
        assert await client.messages(wait=20) == []
        (record,) = await all_records(await lab.remoting(), dead_letter_topic(GROUP))
        assert record.body == b"bad"
        assert properties(record)["UNIQ_KEY"] == sent.message_id


@in_virtual_time
async def test_a_dead_letter_that_cannot_be_stored_holds_up_no_other_message(
    tmp_path: Path,
) -> None:
    async with Lab(tmp_path) as lab:
        lab.topic(queues=1)
        lab.group(retry_max_times=5)
        client = lab.client()
        await client.sent(b"bad")
        (got,) = await client.messages(wait=20)
        assert code_of(await client.change(handle_of(got), 1)) == Code.OK
        await lab.clock.sleep(40)
        await client.sent(b"good")
        lab.group(retry_max_times=0)
        # It is to be read out, and takes nothing more.
        lab.broker.state.settings.change({"brokerPermission": "4"})
        (good,) = await client.messages(wait=5)
        assert good.body == b"good"
        assert code_of(await client.ack(handle_of(good))) == Code.OK
        assert await client.messages() == []
        lab.broker.state.settings.change({"brokerPermission": "6"})
        await lab.clock.sleep(31)
        assert await client.messages(wait=5) == []
        (record,) = await all_records(await lab.remoting(), dead_letter_topic(GROUP))
        assert record.body == b"bad"


@in_virtual_time
async def test_receipts_of_brokers_that_are_none_leave_nothing(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    # What is logged is kept by pytest.
    caplog.set_level(logging.ERROR, "penstock.proxy")
    async with Lab(tmp_path) as lab:
        lab.topic(queues=1)
        client = lab.client()
        await client.sent(b"hello")
        (got,) = await client.messages()
        handles = [handle_of(got).replace("broker-a", f"none-{n}") for n in range(2000)]
        await client.ack(handles[0], handles[1])
        tracemalloc.start()
        try:
            for begin in range(0, 2000, 500):
                answer = await client.ack(*handles[begin : begin + 500])
                assert code_of(answer) == Code.INTERNAL_SERVER_ERROR
            del answer
            gc.collect()
            kept = sum(
                one.size
                for one in tracemalloc.take_snapshot().statistics("filename")
                if one.traceback[0].filename == clients.__file__
            )
        finally:
            tracemalloc.stop()
        assert kept < 20_000
        assert code_of(await client.ack(handle_of(got))) == Code.OK


@pytest.mark.parametrize("turns", range(0, 24, 2))
@in_virtual_time
async def test_a_poll_that_ends_at_any_time_keeps_no_message(tmp_path: Path, turns: int) -> None:
    async with Lab(tmp_path) as lab:
        lab.topic(queues=1)
        client = lab.client()
        assert await client.messages(tags="Aa") == []
        # The hashes of their tags are equal, so the poll itself ends the first one.
        await client.sent(b"other", tag="BB")
        await client.sent(b"wanted", tag="Aa")
        poll = asyncio.ensure_future(client.messages(tags="Aa", invisible=3600, wait=5))
        for _ in range(turns):
            await asyncio.sleep(0)
        if poll.cancel():
            await asyncio.wait((poll,))
            assert bodies(await client.messages(tags="Aa", wait=20)) == [b"wanted"]
        else:
            assert bodies(await poll) == [b"wanted"]


@pytest.mark.spec("G61")
@in_virtual_time
async def test_an_expired_message_can_be_sent_to_the_dead_letters(tmp_path: Path) -> None:
    async with Lab(tmp_path) as lab:
        lab.topic(queues=1)
        client = lab.client()
        await client.sent(b"bad")
        (got,) = await client.messages(invisible=10)
        await lab.clock.sleep(11)
        assert code_of(await client.bury(got)) == Code.OK
        (record,) = await all_records(await lab.remoting(), dead_letter_topic(GROUP))
        assert record.body == b"bad"
        short = " ".join(handle_of(got).split(" ")[:8])
        got.system_properties.receipt_handle = short
        assert code_of(await client.bury(got)) == Code.INVALID_RECEIPT_HANDLE


@pytest.mark.spec("G59")
@in_virtual_time
async def test_a_queue_of_a_fifo_group_is_blocked_until_its_batch_is_done(tmp_path: Path) -> None:
    async with Lab(tmp_path) as lab:
        lab.topic(queues=1, kind="FIFO")
        lab.group(consume_message_orderly=True)
        client, other = lab.client(), lab.client("c2")
        for i in range(4):
            await client.sent(b"%d" % i, group="g")
        batch = await client.messages(count=2, attempt="a1", renew=True)
        assert bodies(batch) == [b"0", b"1"]
        assert await other.messages(attempt="a2") == []
        again = await client.messages(count=2, attempt="a1", renew=True)
        assert bodies(again) == [b"0", b"1"]
        assert again[0].system_properties.delivery_attempt == 1
        for one in again:
            assert code_of(await client.ack(handle_of(one))) == Code.OK
        assert bodies(await other.messages(attempt="a2")) == [b"2", b"3"]


@pytest.mark.spec("G60")
@in_virtual_time
async def test_a_dead_letter_of_a_fifo_group_frees_its_queue(tmp_path: Path) -> None:
    async with Lab(tmp_path) as lab:
        lab.topic(queues=1, kind="FIFO")
        lab.group(consume_message_orderly=True)
        client = lab.client()
        await client.sent(b"bad", group="g")
        await client.sent(b"good", group="g")
        (bad,) = await client.messages(count=1, attempt="a1", renew=True)
        assert code_of(await client.bury(bad)) == Code.OK
        assert bodies(await client.messages(attempt="a2", renew=True)) == [b"good"]
        (record,) = await all_records(await lab.remoting(), dead_letter_topic(GROUP))
        assert record.body == b"bad"


@in_virtual_time
async def test_what_does_not_reach_its_client_comes_again_uncounted(tmp_path: Path) -> None:
    async with Lab(tmp_path) as lab:
        lab.topic(queues=1)
        client = lab.client()
        # A poll whose client goes away while it is held.
        poll = asyncio.ensure_future(client.messages(wait=20, invisible=600))
        await lab.clock.sleep(1)
        poll.cancel()
        await lab.clock.sleep(1)
        await client.sent(b"x")
        (got,) = await lab.client("c2").messages(wait=20)
        assert got.system_properties.delivery_attempt == 1


@pytest.mark.parametrize("taken", [0, 1, 2, 3])
@in_virtual_time
async def test_of_an_answer_that_is_cut_off_the_rest_comes_again_soon(
    tmp_path: Path, taken: int
) -> None:
    async with Lab(tmp_path) as lab:
        lab.topic(queues=1)
        client = lab.client()
        for body in (b"one", b"two", b"three"):
            await client.sent(body)
        request = wire.ReceiveMessageRequest(
            group=wire.Resource(name=GROUP),
            message_queue=wire.MessageQueue(topic=wire.Resource(name=TOPIC), id=-1),
            batch_size=32,
            invisible_duration=duration(600),
            long_polling_timeout=duration(0),
        )
        received = await lab.endpoint.receive(request, client.caller)
        # The status comes before the messages.
        lab.endpoint.not_delivered(received, 1 + taken)
        await lab.clock.sleep(30)
        again = await lab.client("c2").messages()
        assert sorted(bodies(again)) == sorted([b"one", b"two", b"three"][taken:])


@pytest.mark.spec("G3")
@in_virtual_time
async def test_polls_that_cannot_be_served(tmp_path: Path) -> None:
    async with Lab(tmp_path, auto_create_subscription_group=False) as lab:
        lab.topic()
        lab.topic("writeonly", perm=2)
        lab.group()
        (refused,) = await lab.client("").receive()
        assert refused.status.code == Code.CLIENT_ID_REQUIRED
        (refused,) = await lab.client().receive(topic="nowhere")
        assert refused.status.code == Code.TOPIC_NOT_FOUND
        (refused,) = await lab.client().receive(group="nobodys")
        assert refused.status.code == Code.CONSUMER_GROUP_NOT_FOUND
        (refused,) = await lab.client().receive(topic="writeonly")
        assert refused.status.code == Code.FORBIDDEN
        (refused,) = await lab.client().receive(group="")
        assert refused.status.code == Code.ILLEGAL_CONSUMER_GROUP


def test_delays_of_groups() -> None:
    usual = GroupFacts("g")
    assert [usual.delay_after(n) for n in (0, 1, 2, 3, 18, 99)] == [1, 1, 5, 10, 7200, 7200]
    policy = GroupRetryPolicy(RetryPolicyType.EXPONENTIAL, ExponentialRetryPolicy(1000, 9000, 2))
    growing = GroupFacts("g", policy=policy)
    assert [growing.delay_after(n) for n in (1, 2, 3, 4, 5, 10**9)] == [1, 2, 4, 8, 9, 9]
    policy = GroupRetryPolicy(
        RetryPolicyType.EXPONENTIAL, ExponentialRetryPolicy(1000, 9000, 2**62)
    )
    assert GroupFacts("g", policy=policy).delay_after(99) == 9


@pytest.mark.spec("G56")
@in_virtual_time
async def test_deliveries_to_a_failing_push_consumer(tmp_path: Path) -> None:
    async with Lab(tmp_path) as lab:
        lab.topic(queues=1)
        client = lab.client()
        _, command = await client.settle(consumer_settings())
        assert command is not None
        delays = command.settings.backoff_policy.customized_backoff.next
        await client.sent(b"x")
        begun = lab.clock.monotonic()
        times: list[float] = []
        for _ in range(4):
            (got,) = await client.messages(renew=True, wait=20)
            times.append(lab.clock.monotonic() - begun)
            # As every client does after a failure.
            attempt = got.system_properties.delivery_attempt
            await client.change(handle_of(got), delays[attempt - 1].seconds)
        assert times == pytest.approx([0, 1, 6, 16], abs=2)


@pytest.mark.spec("G58")
@in_virtual_time
async def test_message_groups_keep_their_order_with_two_consumers(tmp_path: Path) -> None:
    async with Lab(tmp_path) as lab:
        lab.topic(queues=4, kind="FIFO")
        lab.group(consume_message_orderly=True)
        got: list[bytes] = []

        async def consume(client: LabClient, number: int) -> None:
            for attempt in range(200):
                for one in await client.messages(
                    renew=True, count=3, wait=0.2, attempt=f"{number}-{attempt}"
                ):
                    got.append(one.body)
                    await lab.clock.sleep(0.05)
                    await client.ack(handle_of(one))
                if len(got) >= 80:
                    return

        for number in range(80):
            await lab.client("p").sent(b"%d %02d" % (number % 4, number), group=f"g{number % 4}")
        await asyncio.gather(*(consume(lab.client(f"c{i}"), i) for i in range(2)))
        assert len(got) == len(set(got)) == 80
        for group in b"0123":
            of_group = [body for body in got if body[0] == group]
            assert of_group == sorted(of_group)


@pytest.mark.spec("G69")
@in_virtual_time
async def test_a_group_is_reset_by_remoting_tools(tmp_path: Path) -> None:
    async with Lab(tmp_path) as lab:
        lab.topic(queues=1)
        client = lab.client()
        await client.settle(consumer_settings())
        for number in range(3):
            await client.sent(b"%d" % number)
        for one in await client.messages(wait=1):
            await client.ack(handle_of(one))
        assert await client.messages() == []
        wire = await lab.remoting()
        ask = ResetOffset(TOPIC, GROUP, 0, is_force=True, queue_id=0, offset=1)
        assert (await wire.request(RequestCode.INVOKE_BROKER_TO_RESET_OFFSET, ask)).code == 0
        assert bodies(await client.messages(wait=1)) == [b"1", b"2"]


@pytest.mark.spec("G70")
@in_virtual_time
async def test_after_a_crash_only_what_was_not_acknowledged_comes_again(tmp_path: Path) -> None:
    disk = SimulatedDisk()
    files = FaultyFiles(disk)
    async with Lab(tmp_path, files=files) as lab:
        lab.topic(queues=1)
        client = lab.client()
        for number in range(4):
            await client.sent(b"%d" % number)
        got = await client.messages(invisible=60)
        for one in got[:2]:
            assert code_of(await client.ack(handle_of(one))) == Code.OK
        # What is stored now is all that the next broker finds.
        disk = disk.after_process_crash()
    async with Lab(tmp_path, files=FaultyFiles(disk)) as lab:
        lab.topic(queues=1)
        client = lab.client()
        assert await client.messages() == []
        await lab.clock.sleep(61)
        assert bodies(await client.messages(wait=5)) == [b"2", b"3"]
        await lab.clock.sleep(100)
        assert {*bodies(await client.messages())} <= {b"2", b"3"}


@in_virtual_time
async def test_a_client_is_served_after_a_restart_without_new_settings(tmp_path: Path) -> None:
    async with Lab(tmp_path) as lab:
        lab.topic(queues=1)
        client = lab.client()
        await client.settle(consumer_settings())
        await client.sent(b"one")
        assert len(await client.messages(renew=True)) == 1
    async with Lab(tmp_path) as lab:
        client = lab.client()
        assert code_of(await client.heartbeat(ClientType.PUSH_CONSUMER, GROUP)) == Code.OK
        await client.sent(b"two")
        got = await client.messages(renew=True, wait=5) + await client.messages(renew=True, wait=5)
        assert sorted(bodies(got)) == [b"one", b"two"]
