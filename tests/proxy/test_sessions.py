"""Settings, heartbeats, termination, silence."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest
from tests.proxy.lab import (
    ENDPOINTS,
    GROUP,
    TOPIC,
    Lab,
    bodies,
    code_of,
    consumer_settings,
    handle_of,
    producer_settings,
)
from tests.support.asking import committed
from tests.support.stage import in_virtual_time
from tests.support.wire import json_body

from penstock.protocol.bodies.common import ConsumerConnections
from penstock.protocol.bodies.groups import (
    ExponentialRetryPolicy,
    GroupRetryPolicy,
    RetryPolicyType,
)
from penstock.protocol.codes import RequestCode
from penstock.protocol.headers.clients import GetConsumerList, GetConsumerRunningInfo
from penstock.proxy.endpoint import failure_text
from penstock.proxy.streams import MAX_WAITING, Stream
from penstock.proxy.times import to_ms
from penstock.proxy.wire import messages as wire
from penstock.proxy.wire.codes import ClientType, Code

PUSH, SIMPLE, PRODUCER = ClientType.PUSH_CONSUMER, ClientType.SIMPLE_CONSUMER, ClientType.PRODUCER


def answered(command: wire.TelemetryCommand | None) -> wire.Settings:
    assert command is not None
    assert command.status.code == Code.OK
    return command.settings


@pytest.mark.spec("G14", "G18")
@in_virtual_time
async def test_settings_of_producers(tmp_path: Path) -> None:
    async with Lab(tmp_path) as lab:
        for topics in ((TOPIC,), (), ("", TOPIC, " ")):
            _, command = await lab.client().settle(producer_settings(*topics))
            settings = answered(command)
            assert settings.WhichOneof("pub_sub") == "publishing"
            assert settings.publishing.max_body_size == 4_194_304
            assert settings.publishing.validate_message_type
            policy = settings.backoff_policy
            assert policy.max_attempts == 3
            backoff = policy.exponential_backoff
            assert (to_ms(backoff.initial), to_ms(backoff.max)) == (10, 1000)
            assert backoff.multiplier == 2
            assert settings.HasField("metric")
            assert not settings.metric.on
            assert settings.access_point == ENDPOINTS
        members = lab.broker.state.clients.producer_group(TOPIC)
        assert [one.client_id for one in members] == ["c1"]


@pytest.mark.spec("G15", "G22")
@in_virtual_time
async def test_settings_of_consumers(tmp_path: Path) -> None:
    async with Lab(tmp_path) as lab:
        lab.topic()
        _, command = await lab.client().settle(consumer_settings())
        settings = answered(command)
        assert settings.backoff_policy.max_attempts == 17
        delays = [to_ms(one) // 1000 for one in settings.backoff_policy.customized_backoff.next]
        assert delays[:5] == [1, 5, 10, 30, 60]
        assert delays[-2:] == [3600, 7200]
        assert len(delays) == 18
        assert settings.subscription.receive_batch_size == 32
        assert to_ms(settings.subscription.long_polling_timeout) == 20_000
        assert not settings.subscription.fifo
        assert not settings.metric.on
        assert settings.access_point == ENDPOINTS
        assert GROUP in lab.broker.state.groups


@pytest.mark.spec("G16", "G19")
@in_virtual_time
async def test_settings_follow_the_group(tmp_path: Path) -> None:
    async with Lab(tmp_path) as lab:
        client = lab.client()
        stream, _ = await client.settle(consumer_settings())
        for policy, wanted in (
            (GroupRetryPolicy(RetryPolicyType.EXPONENTIAL), (5000, 7_200_000, 2)),
            (
                GroupRetryPolicy(
                    RetryPolicyType.EXPONENTIAL, ExponentialRetryPolicy(1000, 8000, 3)
                ),
                (1000, 8000, 3),
            ),
        ):
            lab.group(retry_max_times=2, group_retry_policy=policy, consume_message_orderly=True)
            command = wire.TelemetryCommand(settings=consumer_settings())
            await lab.endpoint.take_command(stream, client.caller, command)
            settings = answered(await stream.next())
            backoff = settings.backoff_policy.exponential_backoff
            found = (to_ms(backoff.initial), to_ms(backoff.max), backoff.multiplier)
            assert found == wanted
            assert settings.backoff_policy.max_attempts == 3
            assert settings.subscription.fifo


@pytest.mark.spec("G17")
@in_virtual_time
async def test_bad_settings_end_the_stream(tmp_path: Path) -> None:
    async with Lab(tmp_path, auto_create_subscription_group=False) as lab:
        lite = consumer_settings(ClientType.LITE_PUSH_CONSUMER)
        for settings in (
            wire.Settings(client_type=PRODUCER),
            consumer_settings(group=""),
            consumer_settings(group="no such group"),
            consumer_settings(group="unknown"),
            producer_settings("bad name"),
            lite,
        ):
            stream, command = await lab.client().settle(settings)
            assert command is None
            assert stream.failure is not None
            assert failure_text(stream.failure)[0]
        assert not failure_text(RuntimeError("ours"))[0]


@pytest.mark.spec("G3")
@in_virtual_time
async def test_a_stream_without_client_id_gets_a_status(tmp_path: Path) -> None:
    async with Lab(tmp_path) as lab:
        stream, command = await lab.client(" ").settle(producer_settings())
        assert command is not None
        assert command.status.code == Code.CLIENT_ID_REQUIRED
        assert await stream.next() is None
        assert stream.failure is None


@pytest.mark.spec("G21")
@in_virtual_time
async def test_a_client_that_does_not_read_costs_a_bounded_number_of_commands(
    tmp_path: Path,
) -> None:
    async with Lab(tmp_path) as lab:
        stream, _ = await lab.client().settle(producer_settings())
        for _ in range(MAX_WAITING + 10):
            stream.send(wire.TelemetryCommand())
        stream.end()
        taken = 0
        while await stream.next() is not None:
            taken += 1
        assert taken == MAX_WAITING


async def test_commands_that_wait_have_a_bound_of_bytes() -> None:
    stream = Stream()
    for number in range(10):
        command = wire.RecoverOrphanedTransactionCommand(
            message=wire.Message(body=bytes(4 << 20)), transaction_id=str(number)
        )
        stream.send(wire.TelemetryCommand(recover_orphaned_transaction_command=command))
    stream.end()
    taken = []
    while (one := await stream.next()) is not None:
        taken.append(one.recover_orphaned_transaction_command.transaction_id)
    assert taken == ["7", "8", "9"]


@in_virtual_time
async def test_of_settings_that_wait_the_newest_are_sent(tmp_path: Path) -> None:
    async with Lab(tmp_path) as lab:
        client = lab.client(language="HTTP")
        stream = await lab.endpoint.open_stream(client.caller)
        for number in range(50):
            stream.send(wire.TelemetryCommand(status=wire.Status(code=number)))
            command = wire.TelemetryCommand(settings=producer_settings(f"t{number}"))
            await lab.endpoint.take_command(stream, client.caller, command)
        # Clients of Node get them once more.
        await lab.clock.sleep(2)
        stream.end()
        topics = []
        while (one := await stream.next()) is not None:
            if one.HasField("settings"):
                topics += [topic.name for topic in one.settings.publishing.topics]
        assert topics == ["t49"]


@in_virtual_time
async def test_a_stream_gives_its_commands_before_it_ends(tmp_path: Path) -> None:
    stream = Stream()
    waiting = asyncio.ensure_future(stream.next())
    await asyncio.sleep(0)
    stream.send(wire.TelemetryCommand(status=wire.Status(code=1)))
    stream.end()
    stream.send(wire.TelemetryCommand())
    first = await waiting
    assert first is not None
    assert first.status.code == 1
    assert await stream.next() is None


@pytest.mark.spec("G23", "G69")
@in_virtual_time
async def test_a_heartbeat_registers_a_client_whose_settings_are_not_known(
    tmp_path: Path,
) -> None:
    async with Lab(tmp_path) as lab:
        lab.topic()
        client = lab.client(language="GO")
        assert code_of(await client.heartbeat(SIMPLE, GROUP)) == Code.OK
        wire_ = await lab.remoting()
        answer = await wire_.request(
            RequestCode.GET_CONSUMER_CONNECTION_LIST, GetConsumerList(GROUP)
        )
        (shown,) = json_body(ConsumerConnections, answer).connection_set
        assert (shown.client_id, shown.client_addr) == ("c1", "198.51.100.9:4000")
        assert shown.language == "GO"
        await client.sent(b"x")
        (got,) = await client.messages(wait=5)
        await client.ack(handle_of(got))
        queue = got.system_properties.queue_id
        await lab.clock.sleep(10)
        assert await committed(wire_, GROUP, TOPIC, queue_id=queue) == 1
        for kind in (ClientType.UNSPECIFIED, ClientType.PULL_CONSUMER, 77):
            answer = await client.heartbeat(kind, GROUP)  # type: ignore[arg-type]
            assert code_of(answer) == Code.UNRECOGNIZED_CLIENT_TYPE
        assert code_of(await lab.client("").heartbeat(PRODUCER)) == Code.CLIENT_ID_REQUIRED
        assert code_of(await lab.client("c2").heartbeat(PRODUCER)) == Code.OK
        assert code_of(await lab.client("c3").heartbeat(PUSH, "")) == Code.ILLEGAL_CONSUMER_GROUP


@in_virtual_time
async def test_a_heartbeat_without_settings_leaves_the_subscriptions_of_its_group(
    tmp_path: Path,
) -> None:
    async with Lab(tmp_path) as lab:
        lab.topic()
        await lab.client("c1").settle(consumer_settings())
        assert code_of(await lab.client("c2").heartbeat(PUSH, GROUP)) == Code.OK
        wire_ = await lab.remoting()
        answer = await wire_.request(
            RequestCode.GET_CONSUMER_CONNECTION_LIST, GetConsumerList(GROUP)
        )
        shown = json_body(ConsumerConnections, answer)
        assert {one.client_id for one in shown.connection_set} == {"c1", "c2"}
        assert shown.subscription_table.keys() == {TOPIC}


@in_virtual_time
async def test_a_client_that_only_sends_and_acknowledges_is_not_silent(tmp_path: Path) -> None:
    async with Lab(tmp_path) as lab:
        lab.topic(queues=1)
        client = lab.client()
        stream, _ = await client.settle(consumer_settings())
        await client.sent(b"kept")
        (kept,) = await client.messages(renew=True)
        for _ in range(10):
            await lab.clock.sleep(60)
            await client.sent(b"x")
        assert not stream.is_ended
        assert code_of(await client.ack(handle_of(kept))) == Code.OK


@pytest.mark.spec("G24")
@in_virtual_time
async def test_a_silent_client_is_forgotten_and_its_messages_come_again(tmp_path: Path) -> None:
    async with Lab(tmp_path) as lab:
        lab.topic(queues=1)
        client, other = lab.client(), lab.client("c2")
        stream, _ = await client.settle(consumer_settings())
        await client.sent(b"x")
        assert len(await client.messages(renew=True)) == 1
        begun = lab.clock.monotonic()
        got: list[wire.Message] = []
        while not got and lab.clock.monotonic() - begun < 600:
            got = await other.messages(wait=20)
        assert 120 <= lab.clock.monotonic() - begun <= 130
        assert got[0].system_properties.delivery_attempt == 1
        assert lab.broker.state.clients.consumer_group(GROUP) is None
        assert stream.is_ended


@pytest.mark.spec("G25")
@in_virtual_time
async def test_a_client_that_leaves_is_gone_at_once(tmp_path: Path) -> None:
    async with Lab(tmp_path) as lab:
        lab.topic(queues=1)
        client, other = lab.client(), lab.client("c2")
        await client.settle(consumer_settings())
        await client.sent(b"done")
        await client.sent(b"not done")
        done, _ = await client.messages(renew=True)
        held = asyncio.ensure_future(client.receive(renew=True, wait=20))
        await lab.clock.sleep(1)
        begun = lab.clock.monotonic()
        assert code_of(await client.ack(handle_of(done))) == Code.OK
        assert code_of(await client.leave()) == Code.OK
        assert (await held)[0].status.code == Code.MESSAGE_NOT_FOUND
        await lab.clock.sleep(0.1)
        assert lab.broker.state.clients.consumer_group(GROUP) is None
        assert bodies(await other.messages(wait=20)) == [b"not done"]
        assert lab.clock.monotonic() - begun < 3
        assert code_of(await client.leave()) == Code.UNRECOGNIZED_CLIENT_TYPE


@pytest.mark.spec("G68")
@in_virtual_time
async def test_the_end_of_the_endpoint_answers_polls_and_streams(tmp_path: Path) -> None:
    async with Lab(tmp_path) as lab:
        lab.topic(queues=1)
        clients = [lab.client(f"c{i}") for i in range(100)]
        streams = [(await one.settle(consumer_settings()))[0] for one in clients]
        polls = [asyncio.ensure_future(one.receive(wait=20)) for one in clients]
        await lab.clock.sleep(1)
        begun = lab.clock.monotonic()
        await lab.endpoint.stop()
        assert lab.clock.monotonic() - begun < 2
        for responses in await asyncio.gather(*polls):
            assert responses[0].status.code == Code.MESSAGE_NOT_FOUND
        assert all(stream.is_ended for stream in streams)
        assert len(lab.endpoint.parts.clients) == 0


@in_virtual_time
async def test_calls_that_are_not_supported(tmp_path: Path) -> None:
    async with Lab(tmp_path) as lab:
        answer = await lab.client().call("SyncLiteSubscription", wire.SyncLiteSubscriptionRequest())
        assert code_of(answer) == Code.NOT_IMPLEMENTED


@in_virtual_time
async def test_requests_of_tools_to_a_client_are_refused_at_once(tmp_path: Path) -> None:
    async with Lab(tmp_path) as lab:
        await lab.client().settle(consumer_settings())
        wire_ = await lab.remoting()
        begun = lab.clock.monotonic()
        ask = GetConsumerRunningInfo(GROUP, "c1")
        answer = await wire_.request(RequestCode.GET_CONSUMER_RUNNING_INFO, ask)
        assert answer.code != 0
        assert lab.clock.monotonic() - begun < 1
