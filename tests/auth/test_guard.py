"""Requests to servers with users: who gets in, and what they may do."""

from __future__ import annotations

import asyncio
import gzip
import json
import struct
from collections.abc import Awaitable
from dataclasses import replace
from pathlib import Path

import pytest
from tests.auth.servers import (
    ADMIN,
    ADMIN_SECRET,
    APP,
    APP_SECRET,
    ask,
    guarded,
)
from tests.support.fake_clock import FakeClock
from tests.support.paths import VECTORS
from tests.support.raw_connection import RawConnection

from penstock import Message, aio
from penstock.auth.audit import AuditLine
from penstock.auth.failed_lines import MAX_PAIRS, FailedLines
from penstock.auth.model import Entry, UserStatus, UserType
from penstock.auth.need_tables import BROKER, NAME_SERVER
from penstock.auth.secret_uses import SecretUses, load_uses
from penstock.auth.users import new_user, rotated
from penstock.errors import NoPermission
from penstock.protocol import acl
from penstock.protocol.codes import RequestCode, ResponseCode
from penstock.protocol.commands import Command, decode_command
from penstock.protocol.frames import FrameDecoder
from penstock.remoting import Pool
from penstock.testing.eventually import eventually

REFUSED = ResponseCode.NO_PERMISSION
ORDERS = Entry.parse("Topic:orders", ["Pub", "Sub", "Get"])
BILLING = Entry.parse("Group:billing", ["Sub"])


def max_offset(topic: str = "orders") -> Command:
    return Command(RequestCode.GET_MAX_OFFSET, ext={"topic": topic, "queueId": "0"})


@pytest.mark.spec("A3", "A23", "A27")
async def test_a_user_sends_and_consumes_what_it_may(tmp_path: Path) -> None:
    async with guarded(tmp_path, ORDERS, BILLING) as servers:
        async with aio.Admin(**servers.as_admin) as admin:
            await admin.create_topic("orders", 1)
        received: list[bytes] = []
        arrived = asyncio.Event()
        consumer = aio.PushConsumer("billing", start_from="first", **servers.as_user())

        @consumer.on("orders")
        async def bill(message: aio.StoredMessage) -> None:
            received.append(message.body)
            if len(received) == 20:
                arrived.set()

        async with aio.Producer("p", **servers.as_user()) as producer:
            for number in range(20):
                await producer.send(Message("orders", b"%d" % number))
        await consumer.start()
        await asyncio.wait_for(arrived.wait(), 60)
        await consumer.stop()
        assert sorted(received) == sorted(b"%d" % number for number in range(20))


@pytest.mark.spec("A2")
async def test_a_broker_serves_no_request_without_a_user(tmp_path: Path) -> None:
    async with guarded(tmp_path) as servers:
        for code in (*BROKER, 9999):
            # A connection ends after many wrong requests, so each code gets its own.
            async with Pool(lambda peer, request: None) as pool:
                for ext in (None, {}, {acl.ACCESS_KEY: ""}):
                    command = Command(code, ext=ext)
                    answer = await ask(servers.broker.address, command, None, pool=pool)
                    assert answer.code == REFUSED, (code, ext)


@pytest.mark.spec("A2", "A72", "A73")
async def test_a_name_server_serves_no_request_without_a_user(tmp_path: Path) -> None:
    async with guarded(tmp_path) as servers, Pool(lambda peer, request: None) as pool:
        address = servers.name_server.address
        for code in (*NAME_SERVER, 9999):
            command = Command(code, ext={"topic": "orders"})
            answer = await ask(address, command, None, pool=pool)
            assert answer.code == REFUSED, code


@pytest.mark.spec("A4", "A5", "A6", "A9", "A15")
async def test_a_wrong_signature_learns_nothing(tmp_path: Path) -> None:
    async with guarded(tmp_path, ORDERS) as servers:
        address = servers.broker.address
        right = max_offset()
        proof = acl.sign(right.ext, b"", APP, APP_SECRET)
        wrong = [
            {**(right.ext or {}), **proof, acl.SIGNATURE: signature}
            for signature in ("", "no base64!" * 3, proof[acl.SIGNATURE][:-1], "A" * 28, "é" * 28)
        ]
        wrong.append({**(right.ext or {}), **proof, "queueId": "1"})
        wrong.append({**(right.ext or {}), **proof, "added": "1"})
        wrong.append({**(right.ext or {}), **proof, acl.ACCESS_KEY: ADMIN})
        wrong.append({**(right.ext or {}), **proof, acl.ACCESS_KEY: "nobody-has-this-name"})
        for ext in wrong:
            # A new user name each time would hide the limit of failed tries: one is enough here.
            answer = await ask(address, Command(RequestCode.GET_MAX_OFFSET, ext=ext), None)
            assert (answer.code, answer.remark) == (REFUSED, "check signature failed."), ext
        changed = Command(RequestCode.GET_MAX_OFFSET, ext={**(right.ext or {}), **proof}, body=b"x")
        assert (await ask(address, changed, None)).code == REFUSED


@pytest.mark.spec("A7", "A8")
async def test_the_dialects_of_clients_are_accepted(tmp_path: Path) -> None:
    async with guarded(tmp_path, ORDERS) as servers:
        address = servers.broker.address
        for added in (
            {"_UNIQUE_KEY_QUERY": "true"},
            {"OnsChannel": "ALIYUN"},
            {acl.SECURITY_TOKEN: "token"},
            {"note": "Ünïcode-主题"},
        ):
            command = max_offset()
            command.ext = {**(command.ext or {}), **added}
            assert (await ask(address, command)).code != REFUSED, added
        unsigned = max_offset()
        proof = acl.sign(unsigned.ext, b"", APP, APP_SECRET)
        unsigned.ext = {**(unsigned.ext or {}), **proof, "_UNIQUE_KEY_QUERY": "true"}
        assert (await ask(address, unsigned, None)).code != REFUSED


@pytest.mark.spec("A19", "A23", "A25")
async def test_a_refused_send_stores_nothing_on_the_fast_path_either(tmp_path: Path) -> None:
    async with guarded(tmp_path, ORDERS) as servers:
        async with aio.Admin(**servers.as_admin) as admin:
            await admin.create_topic("orders", 1)
            await admin.create_topic("other", 1)
        address = servers.broker.address

        def send(topic: str) -> Command:
            fields = {"a": "p", "b": topic, "c": "TBW102", "d": "8", "e": "0", "f": "0"}
            fields |= {
                "g": "1700000000000",
                "h": "0",
                "i": "",
                "j": "0",
                "k": "false",
                "m": "false",
            }
            return Command(RequestCode.SEND_MESSAGE_V2, ext=fields, body=b"x")

        def stored(topic: str) -> int:
            return servers.broker.state.storage.max_offset(topic, 0)

        async with Pool(lambda peer, request: None) as pool:
            for _ in range(3):
                assert (await ask(address, send("orders"), pool=pool)).code == 0
            before = stored("orders")
            assert before == 3
            for _ in range(3):
                wrong = await ask(address, send("orders"), APP, "wrong", pool=pool)
                assert wrong.code == REFUSED
                assert (await ask(address, send("other"), pool=pool)).code == REFUSED
                for topic in ("SCHEDULE_TOPIC_XXXX", "%DLQ%billing", "RMQ_SYS_TRANS_HALF_TOPIC"):
                    assert (await ask(address, send(topic), pool=pool)).code == REFUSED
            replayed = send("orders")
            proof = acl.sign(replayed.ext, b"x", APP, APP_SECRET)
            replayed.ext = {**(replayed.ext or {}), **proof}
            replayed.body = b"y"
            assert (await ask(address, replayed, None, pool=pool)).code == REFUSED
        assert stored("orders") == before
        assert stored("other") == 0


@pytest.mark.spec("A10", "A20", "A66")
async def test_a_change_holds_from_the_next_request_on(tmp_path: Path) -> None:
    async with guarded(tmp_path) as servers, Pool(lambda peer, request: None) as pool:
        address = servers.broker.address
        assert (await ask(address, max_offset(), pool=pool)).code == REFUSED
        servers.grant(ORDERS)
        await servers.take_changes()
        assert (await ask(address, max_offset(), pool=pool)).code != REFUSED
        servers.users.change(
            lambda users: users.with_user(replace(users.require(APP), status=UserStatus.DISABLE))
        )
        await servers.take_changes()
        await eventually(lambda: pool.find(address) is None)
        assert (await ask(address, max_offset())).code == REFUSED


async def test_a_right_counts_from_its_addresses_only(tmp_path: Path) -> None:
    elsewhere = Entry.parse("Topic:orders", ["Get"], sources=["10.0.0.0/8"])
    async with guarded(tmp_path, elsewhere) as servers:
        address = servers.broker.address
        assert (await ask(address, max_offset())).code == REFUSED
        servers.grant(Entry.parse("Topic:orders", ["Get"], sources=["127.0.0.0/8"]))
        await servers.take_changes()
        assert (await ask(address, max_offset())).code != REFUSED


@pytest.mark.spec("A11", "A12")
async def test_two_secrets_are_valid_until_the_old_one_expires(tmp_path: Path) -> None:
    async with guarded(tmp_path, ORDERS) as servers:
        now = servers.broker.state.clock.time_ms()

        def rotate(grace_ms: int, at_ms: int) -> None:
            servers.users.change(
                lambda users: users.with_user(
                    rotated(users.require(APP), at_ms, grace_ms=grace_ms, value="second-secret")
                )
            )

        rotate(3_600_000, now)
        await servers.take_changes()
        for secret in (APP_SECRET, "second-secret"):
            assert (await ask(servers.broker.address, max_offset(), APP, secret)).code != REFUSED
        rotate(1, now - 10_000)
        await servers.take_changes()
        assert (await ask(servers.broker.address, max_offset(), APP, APP_SECRET)).code == REFUSED


@pytest.mark.spec("A12")
async def test_the_last_use_of_each_secret_is_kept(tmp_path: Path) -> None:
    async with guarded(tmp_path, ORDERS) as servers:
        now = servers.broker.state.clock.time_ms()
        servers.users.change(
            lambda users: users.with_user(
                rotated(users.require(APP), now, grace_ms=3_600_000, value="second-secret")
            )
        )
        await servers.take_changes()
        old, new = servers.users.load().require(APP).secrets
        assert (await ask(servers.broker.address, max_offset(), APP, "second-secret")).code == 0
        assert (await ask(servers.broker.address, max_offset(), APP, "wrong")).code == REFUSED
    assert load_uses(tmp_path)[APP].keys() == {new.id}
    assert load_uses(tmp_path)[APP][new.id] >= now
    # Several servers write it: what another saw is kept, and the newest time counts.
    other = SecretUses(servers.users)
    other.note(APP, old.id, now)
    other.note(APP, new.id, 1)
    assert other.are_due
    other.save()
    assert not other.are_due
    uses = load_uses(tmp_path)[APP]
    assert uses[old.id] == now <= uses[new.id]
    assert (tmp_path / "auth-uses.json").stat().st_mode & 0o077 == 0


@pytest.mark.spec("A68")
async def test_a_file_that_is_edited_by_hand_counts_and_a_broken_one_does_not(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    async with guarded(tmp_path, ORDERS) as servers:
        address, path = servers.broker.address, servers.users.path

        async def is_served() -> bool:
            return (await ask(address, max_offset())).code != REFUSED

        text = path.read_text()
        path.write_text(text.replace("Topic:orders", "Topic:other"))
        await eventually(lambda: _not(is_served()))
        path.write_text(text.replace('"Allow"', "Allow"))
        await eventually(lambda: "users stay as they were" in caplog.text)
        assert not await is_served()
        assert APP_SECRET not in caplog.text
        path.write_text(text)
        await eventually(is_served)


async def _not(answer: Awaitable[bool]) -> bool:
    return not await answer


@pytest.mark.spec("A13")
async def test_a_refused_one_way_request_gets_no_answer_and_a_line(tmp_path: Path) -> None:
    def commit(name: str | None) -> Command:
        ext = {"topic": "orders", "queueId": "0", "consumerGroup": "billing", "commitOffset": "7"}
        if name is not None:
            ext |= acl.sign(ext, b"", name, APP_SECRET)
        return Command(RequestCode.UPDATE_CONSUMER_OFFSET, ext=ext, flag=2)

    async with guarded(tmp_path) as servers:
        async with aio.Admin(**servers.as_admin) as admin:
            await admin.create_topic("orders", 1)
            await admin.create_group("billing")
        async with await RawConnection.open(servers.broker.port) as raw:
            for name in (None, "eve", APP):
                await raw.send_command(commit(name))
            # The first answer is that of the request which asks for one.
            last = Command(RequestCode.GET_MAX_OFFSET, ext={"topic": "orders", "queueId": "0"})
            assert (await raw.ask(last)).code == REFUSED
        assert not servers.broker.state.offsets.of_group("billing")
    lines = [json.loads(line) for line in (tmp_path / "audit.jsonl").read_text().splitlines()]
    refused = [one for one in lines if one["action"] == "UPDATE_CONSUMER_OFFSET"]
    assert [(one["user"], one["decision"]) for one in refused if one["decision"] == "deny"] == [
        ("", "deny"),
        ("eve", "deny"),
        (APP, "deny"),
    ]


@pytest.mark.spec("A71")
async def test_the_audit_names_the_entry_that_decided(tmp_path: Path) -> None:
    rights = (
        Entry.parse("Topic:orders", ["Get"], "Deny"),
        Entry.parse("Topic:mine", ["Create"]),
    )
    async with guarded(tmp_path, *rights) as servers:
        assert (await ask(servers.broker.address, max_offset())).code == REFUSED
        fields = {"topic": "mine", "readQueueNums": "1", "writeQueueNums": "1", "perm": "6"}
        more = {"defaultTopic": "TBW102", "topicFilterType": "SINGLE_TAG", "order": "false"}
        create = Command(RequestCode.UPDATE_AND_CREATE_TOPIC, ext={**fields, **more})
        assert (await ask(servers.broker.address, create)).code == 0
    lines = [json.loads(line) for line in (tmp_path / "audit.jsonl").read_text().splitlines()]
    said = {(one["action"], one["decision"]): one["entry"] for one in lines if one["resources"]}
    assert said["GET_MAX_OFFSET", "deny"] == str(rights[0])
    assert said["UPDATE_AND_CREATE_TOPIC", "allow"] == str(rights[1])


@pytest.mark.spec("A71")
async def test_an_audit_file_that_cannot_be_written_stops_nothing(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    (tmp_path / "audit.jsonl").symlink_to("/dev/full")
    async with guarded(tmp_path, ORDERS) as servers:
        for _ in range(3):
            assert (await ask(servers.broker.address, max_offset("other"))).code == REFUSED
            assert (await ask(servers.broker.address, max_offset())).code != REFUSED
        await eventually(lambda: "audit lines lost" in caplog.text)
        (tmp_path / "audit.jsonl").unlink()
        await ask(servers.broker.address, max_offset("other"))
    lines = [json.loads(line) for line in (tmp_path / "audit.jsonl").read_text().splitlines()]
    assert any("dropped" in line for line in lines)
    assert any(line.get("resources") == ["Topic:other"] for line in lines)


@pytest.mark.spec("A21")
async def test_many_wrong_tries_are_refused_without_computing(tmp_path: Path) -> None:
    async with guarded(tmp_path, ORDERS) as servers:
        address = servers.broker.address
        for _ in range(12):
            assert (await ask(address, max_offset(), APP, "wrong")).code == REFUSED
        assert (await ask(address, max_offset())).code == REFUSED
        assert (await ask(address, max_offset(), ADMIN, ADMIN_SECRET)).code != REFUSED


@pytest.mark.spec("A21")
async def test_others_at_the_same_address_do_not_lock_out_a_proven_connection(
    tmp_path: Path,
) -> None:
    async with guarded(tmp_path, ORDERS) as servers, Pool(lambda peer, request: None) as pool:
        address = servers.broker.address
        assert (await ask(address, max_offset(), pool=pool)).code != REFUSED
        for _ in range(15):
            assert (await ask(address, max_offset(), APP, "wrong")).code == REFUSED
        assert (await ask(address, max_offset())).code == REFUSED, "a new one must wait"
        for _ in range(3):
            assert (await ask(address, max_offset(), pool=pool)).code != REFUSED
        # It is no way to try secrets: wrong ones are still counted, and the connection closes.
        assert (await ask(address, max_offset(), APP, "wrong", pool=pool)).code == REFUSED


@pytest.mark.spec("A21")
async def test_a_long_name_waits_like_a_short_one(tmp_path: Path) -> None:
    name = "n" * 100
    async with guarded(tmp_path) as servers:
        long_one = new_user(name, 0, value="long-secret-1", type_=UserType.SUPER)
        servers.users.change(lambda users: users.with_user(long_one))
        await servers.take_changes()
        address = servers.broker.address
        assert (await ask(address, max_offset(), name, "long-secret-1")).code != REFUSED
        for _ in range(12):
            assert (await ask(address, max_offset(), name, "wrong")).code == REFUSED
        assert (await ask(address, max_offset(), name, "long-secret-1")).code == REFUSED


@pytest.mark.spec("A21", "A71")
async def test_wrong_signatures_give_one_line_with_their_number(tmp_path: Path) -> None:
    async with guarded(tmp_path, ORDERS) as servers:
        async with await RawConnection.open(servers.broker.port) as raw:
            for _ in range(40):
                ext = {"topic": "orders", "queueId": "0"}
                ext |= acl.sign(ext, b"", APP, "wrong")
                await raw.ask(Command(RequestCode.GET_MAX_OFFSET, ext=ext))
        await ask(servers.broker.address, max_offset(), "eve", "wrong")
    lines = [json.loads(line) for line in (tmp_path / "audit.jsonl").read_text().splitlines()]
    said = [(one["user"], one["reason"]) for one in lines if one["decision"] == "deny"]
    assert said == [
        (APP, "check signature failed."),
        ("eve", "check signature failed."),
        (APP, "check signature failed. (39 requests since the last line)"),
    ]


async def test_the_number_of_wrong_signatures_is_written_each_minute() -> None:
    clock, lines = FakeClock(), list[AuditLine]()
    failed = FailedLines(lines.append, clock)
    line = AuditLine(0, "b", "u", "h:1", False, 30, "X", (), False, reason="wrong")
    for second in range(150):
        failed.add("h", "u", line._replace(time_ms=second))
        await clock.advance(1)
    assert [(one.time_ms, one.reason) for one in lines] == [
        (0, "wrong"),
        (59, "wrong (59 requests since the last line)"),
        (119, "wrong (60 requests since the last line)"),
    ]
    await clock.advance(300)
    assert len(lines) == 4
    failed.add("h", "u", line)
    assert lines[-1] == line, "the pair was silent and is new again"


async def test_invented_users_share_a_line() -> None:
    lines = list[AuditLine]()
    failed = FailedLines(lines.append, FakeClock())
    line = AuditLine(0, "b", "u", "h:1", False, 30, "X", (), False, reason="wrong")
    for number in range(MAX_PAIRS + 500):
        failed.add("h", f"user-{number}", line)
    assert len(lines) == MAX_PAIRS + 1
    failed.close()
    (last,) = lines[MAX_PAIRS + 1 :]
    assert "499 requests of other users and addresses" in str(last.reason)


async def test_a_long_body_is_refused_before_it_is_read(tmp_path: Path) -> None:
    """The guard reads bodies on the loop, so it reads no more than the handlers do."""
    heartbeat = b'{"clientID":"c","consumerDataSet":[' + b'{"groupName":"g"},' * 40_000
    topics = b'{"topicConfigList":[' + b'{"topicName":"t"},' * 40_000
    too_long = topics + b" " * (2 << 20)
    async with guarded(tmp_path, ORDERS) as servers:
        for code, body, is_read in (
            (RequestCode.HEART_BEAT, heartbeat[:-1] + b"]}", False),
            (RequestCode.UPDATE_AND_CREATE_TOPIC_LIST, topics[:-1] + b"]}", True),
            (RequestCode.UPDATE_AND_CREATE_TOPIC_LIST, too_long, False),
        ):
            answer = await ask(servers.broker.address, Command(code, body=body))
            assert (answer.code == REFUSED) is is_read, answer.remark
            assert is_read or f"body of {len(body)} bytes" in str(answer.remark)


@pytest.mark.spec("A48", "A74")
async def test_lists_have_the_rows_a_user_has_a_right_on(tmp_path: Path) -> None:
    async with guarded(tmp_path, ORDERS) as servers:
        async with aio.Admin(**servers.as_admin) as admin:
            await admin.create_topic("orders", 1)
            await admin.create_topic("other", 1)
            assert {"orders", "other"} <= set(await admin.topics())
        async with aio.Admin(**servers.as_user()) as user:
            assert set(await user.topics()) == {"orders"}
        command = Command(RequestCode.GET_ALL_TOPIC_CONFIG)
        answer = await ask(servers.broker.address, command)
        table = json.loads(bytes(answer.body))["topicConfigTable"]  # type: ignore[arg-type]
        assert set(table) == {"orders"}


@pytest.mark.spec("A31")
async def test_a_held_pull_is_refused_when_the_right_is_gone(tmp_path: Path) -> None:
    async with guarded(tmp_path, ORDERS, BILLING) as servers:
        async with aio.Admin(**servers.as_admin) as admin:
            await admin.create_topic("orders", 1)
            await admin.create_group("billing")
        pull = Command(
            RequestCode.PULL_MESSAGE,
            ext={
                "consumerGroup": "billing",
                "topic": "orders",
                "queueId": "0",
                "queueOffset": "0",
                "maxMsgNums": "32",
                "sysFlag": "6",
                "commitOffset": "0",
                "suspendTimeoutMillis": "20000",
                "subscription": "*",
                "subVersion": "0",
                "expressionType": "TAG",
            },
        )
        waiting = asyncio.ensure_future(ask(servers.broker.address, pull))
        await eventually(lambda: bool(servers.broker.state.held.queues))
        servers.users.change(lambda users: users.without_entries(APP))
        await servers.take_changes()
        async with aio.Producer("p", **servers.as_admin) as producer:
            await producer.send(Message("orders", b"secret"))
        answer = await asyncio.wait_for(waiting, 60)
        assert (answer.code, answer.body) == (REFUSED, b"")


@pytest.mark.spec("A70", "A71")
async def test_the_audit_file_has_refusals_and_changes_and_no_secret(tmp_path: Path) -> None:
    async with guarded(tmp_path) as servers:
        async with aio.Admin(**servers.as_admin) as admin:
            await admin.create_topic("orders", 1)
        await ask(servers.broker.address, max_offset())
    text = (tmp_path / "audit.jsonl").read_text()
    lines = [json.loads(line) for line in text.splitlines()]
    changes = [line for line in lines if line["action"] == "UPDATE_AND_CREATE_TOPIC"]
    assert changes[0]["user"] == ADMIN
    refused = [line for line in lines if line["decision"] == "deny"]
    assert refused[0]["user"] == APP
    assert "Topic:orders" in refused[0]["resources"]
    assert set(refused[0]) == {
        *("ts", "server", "user", "remote", "tls", "code", "action"),
        *("resources", "decision", "entry", "reason"),
    }
    for secret in (ADMIN_SECRET, APP_SECRET, "Signature"):
        assert secret not in text


async def test_a_missing_right_is_an_error_that_names_it(tmp_path: Path) -> None:
    async with guarded(tmp_path, BILLING, ORDERS) as servers:
        async with aio.Admin(**servers.as_admin) as admin:
            await admin.create_topic("orders", 1)
        async with aio.Admin(**servers.as_user()) as user:
            with pytest.raises(NoPermission, match="Delete on Topic:orders"):
                await user.delete_topic("orders")


async def test_the_way_out_of_a_missing_right_keeps_the_others(tmp_path: Path) -> None:
    elsewhere = Entry.parse("Topic:bills", ["Pub"], sources=["10.0.0.0/8"])
    async with guarded(tmp_path, BILLING, ORDERS, elsewhere) as servers:
        async with aio.Admin(**servers.as_admin) as admin:
            await admin.create_topic("orders", 1)
            await admin.create_topic("bills", 1)
        async with aio.Admin(**servers.as_user()) as user:
            with pytest.raises(NoPermission) as missing:
                await user.delete_topic("orders")
            with pytest.raises(NoPermission) as limited:
                await user.delete_topic("bills")
    ways = "--action Pub --action Sub --action Delete --action Get"
    assert f"penstock acl grant {APP} --resource 'Topic:orders' {ways}" in str(missing.value)
    assert f"grant {APP} --resource 'Topic:bills' --action Pub" in str(limited.value)


async def test_the_way_out_for_a_new_topic_is_to_create_it_and_to_send(tmp_path: Path) -> None:
    async with guarded(tmp_path, BILLING, ORDERS) as servers:
        send = Command(
            RequestCode.SEND_MESSAGE,
            ext={
                "producerGroup": "p",
                "topic": "orders",
                "defaultTopic": "TBW102",
                "defaultTopicQueueNums": "4",
                "queueId": "0",
                "sysFlag": "0",
                "bornTimestamp": "1",
                "flag": "0",
            },
            body=b"b",
        )
        answer = await ask(servers.broker.address, send)
    assert answer.code == ResponseCode.TOPIC_NOT_EXIST
    ways = "--action Pub --action Sub --action Create --action Get"
    assert f"--resource 'Topic:orders' {ways}" in (answer.remark or "")


async def test_a_refusal_of_the_name_server_is_no_missing_name_server(tmp_path: Path) -> None:
    async with guarded(tmp_path, ORDERS) as servers:
        async with aio.Producer("p", send_timeout=30, **servers.as_user()) as producer:
            with pytest.raises(NoPermission, match="has no permission to access Topic:other"):
                await producer.send(Message("other", b"x"))
        async with aio.Producer("p", **servers.as_user(secret="wrong")) as producer:
            with pytest.raises(NoPermission, match="check signature failed"):
                await producer.send(Message("orders", b"x"))


def _binary(command: Command, before: dict[str, str]) -> bytes:
    """A frame with a binary header in which the fields of ``before`` come first, too."""
    fields = b"".join(
        struct.pack(">h", len(key)) + key.encode() + struct.pack(">i", len(value)) + value.encode()
        for ext in (before, command.ext or {})
        for key, value in ext.items()
    )
    header = struct.pack(">hBhiii", command.code, 0, 513, 7, 0, 0)
    header += struct.pack(">i", len(fields)) + fields
    return struct.pack(">ii", 4 + len(header), 1 << 24 | len(header)) + header


@pytest.mark.spec("A18")
async def test_of_duplicate_fields_the_last_one_counts_for_all(tmp_path: Path) -> None:
    async with guarded(tmp_path, ORDERS) as servers:
        async with aio.Admin(**servers.as_admin) as admin:
            await admin.create_topic("orders", 1)
            await admin.create_topic("other", 1)
        for topic, claimed, signed_topic, is_served in (
            # What counts is signed and allowed; what comes before it means nothing.
            ("orders", "other", "orders", True),
            # The signature is about what the handler does not read.
            ("other", "orders", "orders", False),
            # Signed, but the right is that on the other topic.
            ("other", "orders", "other", False),
        ):
            proof = acl.sign({"topic": signed_topic, "queueId": "0"}, b"", APP, APP_SECRET)
            command = max_offset(topic)
            command.ext = {**(command.ext or {}), **proof}
            async with await RawConnection.open(servers.broker.port) as raw:
                await raw.send(_binary(command, {"topic": claimed, acl.SIGNATURE: "A" * 28}))
                answer = await raw.receive()
            assert (answer.code == 0) is is_served, (topic, claimed, answer.remark)


def _registration(version: str) -> Command:
    """The first request of an Apache broker to its name server, as recorded."""
    with gzip.open(VECTORS / f"frames-{version}.jsonl.gz", "rt") as lines:
        first = next(
            row for row in map(json.loads, lines) if row["code"] == RequestCode.REGISTER_BROKER
        )
    return decode_command(FrameDecoder().feed(bytes.fromhex(first["frame_hex"]))[0])


@pytest.mark.spec("A72", "A75")
async def test_brokers_of_apache_register_if_they_sign(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    async with guarded(tmp_path) as servers, Pool(lambda peer, request: None) as pool:
        address, routes = servers.name_server.address, servers.name_server.routes
        old = _registration("4.9.7")
        old.ext = {**(old.ext or {}), "brokerName": "broker-old"}
        refused = await ask(address, old, None, pool=pool)
        assert refused.code == REFUSED
        assert "innerClientAuthenticationCredentials" in caplog.text
        new = _registration("5.5.0")
        new.ext = {**(new.ext or {}), "brokerName": "broker-new"}
        assert (await ask(address, new, ADMIN, ADMIN_SECRET, pool=pool)).code == 0
        names = set(routes.cluster_info().broker_addr_table)
        assert names == {"broker-a", "broker-new"}
