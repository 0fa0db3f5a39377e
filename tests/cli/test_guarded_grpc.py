"""gRPC with users and TLS: ``penstock up``, with several brokers, and ``penstock proxy``."""

from __future__ import annotations

import asyncio
import hashlib
import hmac
import sys
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from typing import Any, NamedTuple

import grpc
import grpc.aio
import pytest
from tests.proxy.lab import GROUP, TOPIC, consumer_settings, message, producer_settings

from penstock import Admin, Tls
from penstock.proxy.endpoint import UNARY
from penstock.proxy.times import duration
from penstock.proxy.wire import messages as wire
from penstock.proxy.wire.codes import ClientType, Code
from penstock.proxy.wire.definitions import SERVICE
from penstock.runtime.child_process import ChildProcess
from penstock.testing.eventually import eventually

PENSTOCK = [sys.executable, "-m", "penstock"]
UP = [*PENSTOCK, "up", "--nameserver-port=0", "--broker-port=0", "--console=off", "--auth"]
SECRET, APP_SECRET = "secret-of-the-admin", "secret-of-the-app"
DATE = "20260101T000000Z"


class Place(NamedTuple):
    """A guarded endpoint."""

    address: str
    authority: bytes
    admin: Admin


@contextmanager
def guarded(data: Path, *more: str) -> Iterator[tuple[str, str, Admin]]:
    """``penstock up`` with users and TLS; yields its name server, the ready line and an admin."""
    secret = data / "admin.secret"
    secret.write_text(SECRET)
    command = [*UP, "--tls=auto", f"--data={data}", f"--admin-secret-file={secret}", *more]
    with ChildProcess(command) as process:
        ready = process.wait_for_line(r"^ready namesrv=(\S+) .*$")
        tls = Tls(ca_file=data / "tls" / "ca.pem")
        with Admin(namesrv=ready[1], access_key="admin", secret_key=SECRET, tls=tls) as admin:
            admin.create_topic(TOPIC, queues=1)
            admin.create_user("app", APP_SECRET)
            admin.grant("app", [f"Topic:{TOPIC}", f"Group:{GROUP}"], ["Pub", "Sub"])
            admin.create_user("other", APP_SECRET)
            yield ready[1], ready[0], admin


@contextmanager
def endpoint(kind: str, data: Path) -> Iterator[Place]:
    with ExitStack() as stack:
        authority = data / "tls" / "ca.pem"
        brokers = ["--brokers=2"] if kind == "brokers" else []
        grpc_port = "off" if kind == "proxy" else "0"
        namesrv, ready, admin = stack.enter_context(
            guarded(data, *brokers, f"--grpc-port={grpc_port}")
        )
        if kind == "proxy":
            command = [
                *PENSTOCK,
                "proxy",
                f"--namesrv={namesrv}",
                "--grpc-port=0",
                f"--tls={data / 'tls'}",
                f"--cluster-ca={authority}",
                f"--users={data / 'auth.json'}",
                "--access-key=admin",
                f"--secret-key-file={data / 'admin.secret'}",
            ]
            proxy = stack.enter_context(ChildProcess(command))
            ready = proxy.wait_for_line(r"^ready .*$")[0]
        address = ready.partition("grpc=")[2].split()[0]
        yield Place(address, authority.read_bytes(), admin)


def headers(user: str, secret: str, client_id: str = "c") -> tuple[tuple[str, str], ...]:
    signature = hmac.new(secret.encode(), DATE.encode(), hashlib.sha1).hexdigest()
    text = f"MQv2-HMAC-SHA1 Credential={user}, SignedHeaders=x-mq-date-time, Signature={signature}"
    return (("x-mq-client-id", client_id), ("x-mq-date-time", DATE), ("authorization", text))


APP = headers("app", APP_SECRET)
REFUSED = {
    "wrong secret": headers("app", "another secret"),
    "unknown user": headers("nobody", APP_SECRET),
    "user without rights": headers("other", APP_SECRET),
    "not signed": (("x-mq-client-id", "c"),),
}


async def call(channel: grpc.aio.Channel, name: str, request: Any, metadata: Any = APP) -> Any:
    unary = UNARY[name]
    method = channel.unary_unary(
        f"/{SERVICE}/{name}",
        request_serializer=unary.request.SerializeToString,
        response_deserializer=unary.response.FromString,
    )
    return await method(request, metadata=metadata, timeout=30)


async def is_ok(channel: grpc.aio.Channel, name: str, request: Any) -> bool:
    return bool((await call(channel, name, request)).status.code == Code.OK)


async def receive(channel: grpc.aio.Channel, metadata: Any = APP, group: str = GROUP) -> list[Any]:
    request = wire.ReceiveMessageRequest(
        group=wire.Resource(name=group),
        message_queue=wire.MessageQueue(topic=wire.Resource(name=TOPIC)),
        batch_size=1,
        invisible_duration=duration(30),
        long_polling_timeout=duration(5),
    )
    method = channel.unary_stream(
        f"/{SERVICE}/ReceiveMessage",
        request_serializer=wire.ReceiveMessageRequest.SerializeToString,
        response_deserializer=wire.ReceiveMessageResponse.FromString,
    )
    return [one async for one in method(request, metadata=metadata, timeout=30)]


def sent() -> wire.SendMessageRequest:
    return wire.SendMessageRequest(messages=[message(b"signed")])


async def settle(channel: grpc.aio.Channel, settings: wire.Settings, metadata: Any) -> Any:
    """The answer to settings; None if the stream is refused."""
    stream = channel.stream_stream(
        f"/{SERVICE}/Telemetry",
        request_serializer=wire.TelemetryCommand.SerializeToString,
        response_deserializer=wire.TelemetryCommand.FromString,
    )(metadata=metadata)
    # A stream that is refused may be over before it is written to.
    with suppress(grpc.aio.AioRpcError, asyncio.InvalidStateError):
        await stream.write(wire.TelemetryCommand(settings=settings))
    answer = None
    with suppress(grpc.aio.AioRpcError):
        answer = await stream.read()
    stream.cancel()
    is_refused = answer in (None, grpc.aio.EOF) or answer.status.code == Code.UNAUTHORIZED
    return None if is_refused else answer


@pytest.mark.parametrize("kind", ["one broker", "brokers", "proxy"])
async def test_signed_calls_over_tls(
    kind: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path / "config"))
    with endpoint(kind, tmp_path) as place:
        credentials = grpc.ssl_channel_credentials(place.authority)
        async with grpc.aio.secure_channel(place.address, credentials) as channel:
            route = wire.QueryRouteRequest(topic=wire.Resource(name=TOPIC))
            # The brokers of other processes, and their topics, may not be registered yet.
            await eventually(lambda: is_ok(channel, "QueryRoute", route), 40, interval=0.5)
            answer = await settle(channel, producer_settings(TOPIC), APP)
            assert answer.settings.publishing.max_body_size == 4 << 20
            assert (await call(channel, "SendMessage", sent())).status.code == Code.OK
            # Each poll asks one of the brokers.
            for _ in range(20):
                responses = await receive(channel)
                if responses[0].status.code == Code.OK:
                    break
            assert responses[1].message.body == b"signed"
            await nothing_changes(channel, place.admin)
        async with grpc.aio.insecure_channel(place.address) as channel:
            with pytest.raises(grpc.aio.AioRpcError):
                await call(channel, "QueryRoute", route)


async def nothing_changes(channel: grpc.aio.Channel, admin: Admin) -> None:
    """Calls without the right to make them are refused and leave no trace."""

    def state() -> Any:
        offsets = sorted(map(str, admin.topic_stats(TOPIC)))
        return sorted(admin.topics()), sorted(admin.groups()), offsets

    before = state()
    group, topic = wire.Resource(name="invented"), wire.Resource(name=TOPIC)
    for who, metadata in REFUSED.items():
        for name, request in {
            "SendMessage": sent(),
            "AckMessage": wire.AckMessageRequest(
                group=group,
                topic=topic,
                entries=[wire.AckMessageEntry(message_id="m", receipt_handle="0 1 2 3")],
            ),
            "Heartbeat": wire.HeartbeatRequest(group=group, client_type=ClientType.PUSH_CONSUMER),
            "EndTransaction": wire.EndTransactionRequest(
                topic=topic, message_id="m", transaction_id="m", resolution=1
            ),
            "RecallMessage": wire.RecallMessageRequest(topic=topic, recall_handle="djEg"),
        }.items():
            answer = await call(channel, name, request, metadata)
            assert answer.status.code != Code.OK, (who, name)
        assignment = wire.QueryAssignmentRequest(group=group, topic=topic)
        await call(channel, "QueryAssignment", assignment, metadata)
        assert (await receive(channel, metadata, "invented"))[0].status.code == Code.UNAUTHORIZED, (
            who
        )
        assert await settle(channel, consumer_settings(group="invented"), metadata) is None, who
    assert state() == before
