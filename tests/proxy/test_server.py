"""The gRPC server with a real channel: what only the wire shows."""

from __future__ import annotations

import asyncio
import random
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import grpc
import grpc.aio
import pytest
from tests.proxy.lab import (
    GROUP,
    TOPIC,
    consumer_settings,
    message,
    producer_settings,
    topic_config,
)
from tests.proxy.raw_client import RawClient

from penstock.broker import Broker, BrokerConfig
from penstock.errors import ListenFailed
from penstock.proxy.clients import MAX_TOPICS_OF_CLIENT
from penstock.proxy.endpoint import UNARY
from penstock.proxy.grpc_servers import local_server
from penstock.proxy.server import MAX_SMALL_BYTES, GrpcServer
from penstock.proxy.wire import messages as wire
from penstock.proxy.wire.codes import ClientType, Code
from penstock.proxy.wire.definitions import SERVICE
from penstock.runtime.clock import SystemClock
from penstock.store import StoreConfig
from penstock.testing.eventually import eventually

ID = (("x-mq-client-id", "a-client"),)


class Caller(RawClient):
    """Raw calls to a server whose inside is known."""

    def __init__(self, broker: Broker, server: GrpcServer) -> None:
        super().__init__(f"127.0.0.1:{server.port}")
        self.broker = broker
        self.server = server


@pytest.fixture
async def caller(tmp_path: Path) -> AsyncIterator[Caller]:
    store = StoreConfig(mapped_file_size_commit_log=16 << 20)
    async with Broker(BrokerConfig(listen_port=0), tmp_path, store_config=store) as broker:
        broker.state.topics.put(topic_config(queues=1))
        async with local_server(broker, SystemClock(), host="127.0.0.1", port=0) as server:
            caller = Caller(broker, server)
            try:
                yield caller
            finally:
                await caller.channel.close()


def sent(body: bytes = b"x", **more: Any) -> wire.SendMessageRequest:
    return wire.SendMessageRequest(messages=[message(body, **more)])


@pytest.mark.spec("G1")
async def test_calls_that_no_client_makes_are_unimplemented(caller: Caller) -> None:
    for name in ("PullMessage", "UpdateOffset", "GetOffset", "QueryOffset", "NoSuchCall"):
        with pytest.raises(grpc.aio.AioRpcError) as refused:
            await caller.raw(name, b"")
        assert refused.value.code() is grpc.StatusCode.UNIMPLEMENTED


@pytest.mark.spec("G2", "G3", "G4")
async def test_metadata(caller: Caller) -> None:
    for metadata in ((), (("x-mq-client-id", ""),), (("x-mq-client-id", "  "),)):
        answer = await caller.call("SendMessage", sent(), metadata)
        assert answer.status.code == Code.CLIENT_ID_REQUIRED
    odd = (
        *ID,
        ("x-mq-language", "KLINGON"),
        ("authorization", "MQv2-HMAC-SHA1 Credential=, SignedHeaders=x-mq-date-time, Signature="),
        ("x-mq-namespace", "anything"),
    )
    assert (await caller.call("SendMessage", sent(), odd)).status.code == Code.OK
    # Field 99 of a newer client.
    newer = sent().SerializeToString() + b"\x9a\x06\x03abc"
    answer = wire.SendMessageResponse.FromString(await caller.raw("SendMessage", newer))
    assert answer.status.code == Code.OK


@pytest.mark.spec("G5")
async def test_the_largest_message(caller: Caller) -> None:
    body = random.Random(1).randbytes(4 << 20)
    request = sent(body, properties={"k": "v" * 16_000})
    assert (await caller.call("SendMessage", request)).status.code == Code.OK
    responses = [one async for one in caller.receive()]
    assert responses[1].message.body == body


async def test_a_poll_of_large_messages(caller: Caller) -> None:
    large = [random.Random(number).randbytes(2 << 20) for number in range(6)]
    for body in large:
        assert (await caller.call("SendMessage", sent(body))).status.code == Code.OK
    got: list[bytes] = []
    while len(got) < len(large):
        responses = await collect(caller.receive())
        got += [one.message.body for one in responses if one.HasField("message")]
    assert got == large


@pytest.mark.spec("G44")
async def test_receiving_and_acknowledging(caller: Caller) -> None:
    poll = asyncio.ensure_future(collect(caller.receive()))
    await asyncio.sleep(0)
    await caller.call("SendMessage", sent(b"hello"))
    status, got, end = await poll
    assert status.status.code == Code.OK
    assert got.message.body == b"hello"
    assert end.WhichOneof("content") == "delivery_timestamp"
    ack = wire.AckMessageRequest(
        group=wire.Resource(name=GROUP),
        topic=wire.Resource(name=TOPIC),
        entries=[wire.AckMessageEntry(receipt_handle=got.message.system_properties.receipt_handle)],
    )
    assert (await caller.call("AckMessage", ack)).status.code == Code.OK


async def polls_are_held(caller: Caller, count: int) -> None:
    held = caller.broker.state.pop.held
    await eventually(lambda: held.count_at((TOPIC, GROUP, -1)) >= count)


async def collect(call: Any) -> list[Any]:
    return [one async for one in call]


async def test_what_a_client_did_not_take_comes_again(caller: Caller) -> None:
    poll = caller.receive()
    waiting = asyncio.ensure_future(poll.read())
    await polls_are_held(caller, 1)
    poll.cancel()
    with pytest.raises(asyncio.CancelledError):
        await waiting
    await caller.call("SendMessage", sent(b"taken by nobody at first"))
    async with asyncio.timeout(20):
        responses = await collect(caller.receive())
    assert responses[1].message.body == b"taken by nobody at first"
    assert responses[1].message.system_properties.delivery_attempt == 1


@pytest.mark.spec("G20")
async def test_a_stream_ends_when_the_client_has_sent_all(caller: Caller) -> None:
    call = caller.telemetry()
    await call.write(wire.TelemetryCommand(settings=producer_settings(TOPIC)))
    assert (await call.read()).settings.publishing.max_body_size == 4 << 20
    await call.done_writing()
    assert await call.read() is grpc.aio.EOF
    assert await call.code() is grpc.StatusCode.OK


@pytest.mark.spec("G17", "G3")
async def test_bad_settings_are_an_invalid_argument(caller: Caller) -> None:
    call = caller.telemetry()
    await call.write(wire.TelemetryCommand(settings=consumer_settings(group="")))
    assert await call.code() is grpc.StatusCode.INVALID_ARGUMENT
    assert "group" in await call.details()
    call = caller.telemetry(metadata=())
    assert (await call.read()).status.code == Code.CLIENT_ID_REQUIRED
    assert await call.code() is grpc.StatusCode.OK


@pytest.mark.spec("G68", "G21")
async def test_stopping_with_polls_and_streams(caller: Caller) -> None:
    polls = [asyncio.ensure_future(collect(caller.receive())) for _ in range(100)]
    streams = [caller.telemetry() for _ in range(20)]
    for stream in streams:
        # It is never read from.
        await stream.write(wire.TelemetryCommand(settings=consumer_settings()))
    await polls_are_held(caller, 100)
    async with asyncio.timeout(10):
        await caller.server.stop()
        for responses in await asyncio.gather(*polls):
            assert responses[0].status.code == Code.MESSAGE_NOT_FOUND


@pytest.mark.spec("G7")
async def test_a_taken_port_is_refused(caller: Caller) -> None:
    second = local_server(caller.broker, SystemClock(), host="127.0.0.1", port=caller.server.port)
    with pytest.raises(ListenFailed, match=str(caller.server.port)):
        await second.start()


@pytest.mark.spec("G6")
async def test_frequent_pings_do_not_end_the_connection(caller: Caller) -> None:
    options = (
        ("grpc.keepalive_time_ms", 1000),
        ("grpc.keepalive_permit_without_calls", 1),
        ("grpc.http2.max_pings_without_data", 0),
    )
    async with grpc.aio.insecure_channel(caller.address, options=options) as channel:
        await asyncio.wait_for(channel.channel_ready(), 10)
        seen = channel.get_state()
        changed = asyncio.ensure_future(channel.wait_for_state_change(seen))
        await asyncio.wait((changed,), timeout=5)
        assert not changed.done()
        changed.cancel()


async def test_random_bytes_are_refused(caller: Caller, caplog: pytest.LogCaptureFixture) -> None:
    chance = random.Random(7)
    whole = sent(b"body", tag="t", keys=("a", "b"), properties={"k": "v"}).SerializeToString()
    codes: set[int] = set()
    for number in range(150):
        if number % 3:
            data = bytearray(whole)
            for _ in range(chance.randrange(1, 8)):
                data[chance.randrange(len(data))] = chance.randrange(256)
        else:
            data = bytearray(chance.randbytes(chance.randrange(200)))
        name = chance.choice([*UNARY])
        answer = UNARY[name].response.FromString(await caller.raw(name, bytes(data)))
        codes.add(answer.status.code)
    assert Code.BAD_REQUEST in codes
    call = caller.channel.stream_stream(f"/{SERVICE}/Telemetry")(metadata=ID)
    await call.write(b"\xff\xff")
    assert await call.code() is grpc.StatusCode.INVALID_ARGUMENT
    assert not [one for one in caplog.records if one.exc_info]
    huge = (*ID, ("x-large", "x" * 100_000))
    with pytest.raises(grpc.aio.AioRpcError):
        await caller.call("SendMessage", sent(), huge)
    with pytest.raises(grpc.aio.AioRpcError) as refused:
        await caller.raw("SendMessage", bytes(17 << 20))
    assert refused.value.code() is grpc.StatusCode.RESOURCE_EXHAUSTED
    assert (await caller.call("SendMessage", sent())).status.code == Code.OK


async def test_only_sends_may_be_large(caller: Caller) -> None:
    for name in UNARY:
        if name != "SendMessage":
            with pytest.raises(grpc.aio.AioRpcError) as refused:
                await caller.raw(name, bytes(MAX_SMALL_BYTES + 1))
            assert refused.value.code() is grpc.StatusCode.RESOURCE_EXHAUSTED
    call = caller.channel.stream_stream(f"/{SERVICE}/Telemetry")(metadata=ID)
    await call.write(bytes(MAX_SMALL_BYTES + 1))
    assert await call.code() is grpc.StatusCode.RESOURCE_EXHAUSTED
    topics = [f"{number:0127d}" for number in range(MAX_TOPICS_OF_CLIENT)]
    telemetry = caller.telemetry()
    await telemetry.write(wire.TelemetryCommand(settings=producer_settings(*topics)))
    assert len((await telemetry.read()).settings.publishing.topics) == MAX_TOPICS_OF_CLIENT


async def test_streams_that_are_opened_and_left(caller: Caller) -> None:
    for _ in range(100):
        call = caller.telemetry((("x-mq-client-id", "leaver"),))
        await call.write(wire.TelemetryCommand())
        call.cancel()
    await eventually(lambda: caller.server.endpoint.open_streams() == 0)


@pytest.mark.spec("G67")
async def test_clients_go_on_after_a_restart_without_new_settings(tmp_path: Path) -> None:
    """Most clients send their settings again only minutes later; the rest must work at once."""
    async with Broker(BrokerConfig(listen_port=0), tmp_path) as broker:
        broker.state.topics.put(topic_config(queues=1))
        first = local_server(broker, SystemClock(), host="127.0.0.1", port=0)
        await first.start()
        caller = Caller(broker, first)
        stream = caller.telemetry()
        await stream.write(wire.TelemetryCommand(settings=consumer_settings()))
        assert (await stream.read()).settings.subscription.group.name == GROUP
        poll = asyncio.ensure_future(collect(caller.receive()))
        await polls_are_held(caller, 1)
        await first.stop()
        assert (await poll)[0].status.code == Code.MESSAGE_NOT_FOUND
        assert await stream.read() is grpc.aio.EOF
        async with local_server(broker, SystemClock(), host="127.0.0.1", port=first.port):
            await eventually(lambda: sends(caller), 30)
            responses = await collect(caller.receive())
            assert responses[1].message.body == b"x"
            beat = wire.HeartbeatRequest(
                group=wire.Resource(name=GROUP), client_type=ClientType.PUSH_CONSUMER
            )
            assert (await caller.call("Heartbeat", beat)).status.code == Code.OK
            await caller.channel.close()


async def sends(caller: Caller) -> bool:
    """Whether a send goes through; the channel connects again after a while."""
    try:
        return bool((await caller.call("SendMessage", sent())).status.code == Code.OK)
    except grpc.aio.AioRpcError:
        return False
