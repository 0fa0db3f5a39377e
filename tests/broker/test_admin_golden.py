"""What Apache's clients asked of Apache's brokers, asked of ours: the answers have one shape.

The code, the names of the ext fields and the members of the body are compared, their values are
not. The recordings are samples: many sends are left out, so a queue may hold less here than it
did there, and a pull may end with another of the four pull codes. What is refused is refused alike.
"""

from __future__ import annotations

import asyncio
import contextlib
import dataclasses
import gzip
import json
from collections.abc import Awaitable, Callable
from typing import Any

import pytest
from tests.support.paths import VECTORS
from tests.support.wire import Wire, body_of

from penstock.broker import Broker
from penstock.protocol.codes import RequestCode
from penstock.protocol.commands import RESPONSE, Command, decode_command, encode_command
from penstock.protocol.fastjson.dialect import loads
from penstock.protocol.frames import FrameDecoder
from penstock.protocol.headers.admin import UpdateTopic
from penstock.store import StoreConfig

MakeBroker = Callable[..., Awaitable[Broker]]
Frame = dict[str, Any]

# Apache writes what it has where we have nothing to tell, or the other way round.
EXPLAINED = {
    ("RECALL_MESSAGE", "code"): "its message was sent at another time",
    ("POP_MESSAGE", "code"): "pop is refused",
    ("ACK_MESSAGE", "code"): "the receipt is one of another broker",
    ("CHANGE_MESSAGE_INVISIBLETIME", "code"): "the receipt is one of another broker",
    ("SET_MESSAGE_REQUEST_MODE", "code"): "the group is not there: no heartbeat was recorded",
    ("QUERY_ASSIGNMENT", "body"): "the recording has no heartbeat of the group",
    ("QUERY_MESSAGE", "code"): "the recording asks for the time it was made at",
    ("QUERY_CONSUME_QUEUE", "body"): "no filter data: filters are not kept on disk",
    ("VIEW_MESSAGE_BY_ID", "code"): "the record lies elsewhere in our log",
    ("CONSUMER_SEND_MSG_BACK", "code"): "the record lies elsewhere in our log",
    ("CONSUME_MESSAGE_DIRECTLY", "code"): "the record lies elsewhere in our log",
    ("GET_CONSUMER_RUNNING_INFO", "answer"): "what the client said was not recorded",
    ("PULL_MESSAGE request_reply", "code"): "the heartbeat before it was not recorded",
}
EXPLAINED_4_9 = {
    ("QUERY_CONSUMER_OFFSET raw.query_offset_unknown", "code"): "5.x: not found, 4.9: 0",
    ("INVOKE_BROKER_TO_RESET_OFFSET admin.reset_offset_offline", "code"): "5.x resets by itself",
    ("PULL_MESSAGE push.start", "code"): "a subscription that is not the latest is used",
    ("PULL_MESSAGE bin.push", "code"): "a subscription that is not the latest is used",
}
# 5.3.2 gave these mistakes a code of their own.
SINCE_5_3_2 = {(1, 29)}
PULL_CODES = {0, 19, 20, 21}
SUSPEND = 2
# Settings that the operator changed between two steps, in requests that were not recorded.
CHANGED_BEFORE = {
    "send.error_bad_queue": b"brokerPermission=6\n",
    "send.error_no_topic": b"autoCreateTopicEnable=false\n",
}


class Client:
    """One connection of the recording, played again."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._reader = reader
        self._writer = writer
        self._decoder = FrameDecoder()
        self._answers: dict[int, Command] = {}
        self._replies: dict[int, Frame] = {}

    def will_answer(self, replies: dict[int, Frame]) -> None:
        self._replies = replies

    def send(self, data: bytes) -> None:
        self._writer.write(data)

    async def read_some(self, seconds: float) -> None:
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(seconds):
                for frame in self._decoder.feed(await self._reader.read(1 << 16)):
                    self._take(decode_command(frame))

    def _take(self, command: Command) -> None:
        if command.flag & RESPONSE:
            self._answers[command.request_id] = command
        elif not command.is_oneway and command.code in self._replies:
            recorded = self._replies[command.code]
            self.send(
                encode_command(
                    Command(
                        recorded["code"],
                        request_id=command.request_id,
                        flag=RESPONSE,
                        body=recorded_body(recorded),
                    )
                )
            )

    def answer(self, request_id: int) -> Command | None:
        return self._answers.pop(request_id, None)

    def close(self) -> None:
        self._writer.close()


def recorded_body(frame: Frame) -> bytes:
    length = frame["body_length"]
    return bytes.fromhex(frame["frame_hex"])[-length:] if length else b""


def recording(release: str, run: str) -> list[Frame]:
    with gzip.open(VECTORS / f"frames-{release}.jsonl.gz", "rt") as lines:
        frames = [json.loads(line) for line in lines]
    between = ("client->broker", "broker->client")
    return [f for f in frames if f["run"] == run and f["direction"] in between]


def is_answer(frame: Frame) -> bool:
    return bool(frame["flag"] & RESPONSE)


def key_of(frame: Frame) -> tuple[str, int]:
    return frame["connection"], frame["opaque"]


def members(value: Any) -> Any:
    """The names in a body; tables of topics, groups, queues and clients count as their first."""
    if isinstance(value, dict):
        if value and not all(isinstance(k, str) and k[0].islower() and k.isalpha() for k in value):
            return {"*": members(next(iter(value.values())))}
        return {key: members(member) for key, member in sorted(value.items())}
    if isinstance(value, list):
        return [members(item) for item in value[:1]]
    return None


def differences(request: Frame, ours: Command, theirs: Frame, release: str) -> list[str]:
    """Where the answers differ; ours are those of 5.x, which has more to say than 4.9."""
    codes = theirs["code"], ours.code
    is_4_9 = release.startswith("4.")
    is_pull = "PULL" in request["request_code_name"]
    if codes[0] != codes[1] and not (is_pull and set(codes) <= PULL_CODES):
        return [] if is_4_9 and codes in SINCE_5_3_2 else ["code"]
    found = []
    our_ext, their_ext = ours.ext, theirs["ext_fields"]
    if is_4_9:
        is_same = set(our_ext or ()) >= set(their_ext or ())
    else:
        is_same = set(our_ext or ()) == set(their_ext or ())
        # Only JSON tells a map that is empty from none.
        is_same &= bool(ours.serializer) or (our_ext is None) == (their_ext is None)
    if not is_same:
        found.append("ext")
    data = recorded_body(theirs)
    if codes[0] == codes[1] and bool(data) != bool(body_of(ours)):
        found.append("body")
    elif data[:1] == b"{":
        mine, wanted = members(loads(body_of(ours))), members(loads(data))
        # Runtime info may tell more, as its words of 4.9 do.
        if not (
            (includes(mine, wanted) if is_4_9 else mine == wanted)
            or ("table" in mine and mine["table"].keys() >= wanted["table"].keys() - _OF_ITS_PATHS)
        ):
            found.append("body")
    return found


def includes(mine: Any, wanted: Any) -> bool:
    """Whether every member of ``wanted`` is there."""
    if isinstance(wanted, dict):
        return isinstance(mine, dict) and all(
            key in mine and includes(mine[key], value) for key, value in wanted.items()
        )
    if isinstance(wanted, list):
        return isinstance(mine, list) and (not (wanted and mine) or includes(mine[0], wanted[0]))
    return True


_OF_ITS_PATHS = {"commitLogDiskRatio_store/commitlog"}


async def ask(clients: dict[str, Client], client: Client, request: Frame) -> Command | None:
    client.send(bytes.fromhex(request["frame_hex"]))
    if request["flag"] & 2:
        return None
    for _ in range(20):
        for other in clients.values():
            await other.read_some(0.002 if other is not client else 0.05)
        answer = client.answer(request["opaque"])
        if answer is not None or "PULL" in request["request_code_name"]:
            return answer
    return None


async def prepare(wire: Wire) -> None:
    """Topics that were there before the recording, or made by requests it leaves out."""
    for topic, queues, perm, order in (
        ("golden-four", 4, 6, False), ("golden-empty", 1, 6, False), ("golden-wo", 1, 2, False),
        ("golden-order", 1, 6, True), ("golden-bin", 1, 6, False),
    ):  # fmt: skip
        ask_for = UpdateTopic(topic, "TBW102", queues, queues, perm, "SINGLE_TAG", order)
        await wire.ok(RequestCode.UPDATE_AND_CREATE_TOPIC, ask_for)


@pytest.mark.parametrize(
    ("release", "run", "kinds"),
    [("5.5.0", "full", 57), ("5.5.0", "binary", 7), ("4.9.7", "full", 47), ("4.9.7", "binary", 7)],
)
async def test_answers_have_the_shape_of_apaches(
    make_broker: MakeBroker, small_store: StoreConfig, release: str, run: str, kinds: int
) -> None:
    broker = await make_broker(store_config=dataclasses.replace(small_store, max_message_size=8192))
    frames = recording(release, run)
    answers = {key_of(f): f for f in frames if is_answer(f) and f["direction"] == "broker->client"}
    from_clients = {
        key_of(f): f for f in frames if is_answer(f) and f["direction"] == "client->broker"
    }
    replies = {
        f["code"]: from_clients[key_of(f)]
        for f in frames
        if f["direction"] == "broker->client" and not is_answer(f) and key_of(f) in from_clients
    }
    explained = {**EXPLAINED, **(EXPLAINED_4_9 if release == "4.9.7" else {})}
    clients: dict[str, Client] = {}
    unexplained: list[str] = []
    compared: set[str] = set()
    async with await Wire.connect(broker.port) as operator:
        await prepare(operator)
        changes = dict(CHANGED_BEFORE)
        for frame in frames:
            if frame["direction"] != "client->broker" or is_answer(frame):
                continue
            if (change := changes.pop(frame["step"], None)) is not None:
                await operator.ok(RequestCode.UPDATE_BROKER_CONFIG, body=change)
            client = clients.get(frame["connection"])
            if client is None:
                reader, writer = await asyncio.open_connection("127.0.0.1", broker.port)
                client = clients[frame["connection"]] = Client(reader, writer)
                client.will_answer(replies)
            ours = await ask(clients, client, frame)
            theirs, name = answers.get(key_of(frame)), frame["request_code_name"]
            if theirs is None:
                continue
            names = (name, f"{name} {frame['step']}")
            if ours is None:
                waits = "PULL" in name and int(frame["ext_fields"]["sysFlag"]) & SUSPEND
                if not waits and (name, "answer") not in explained:
                    unexplained.append(f"{frame['step']} {name}: no answer")
                continue
            compared.add(name)
            unexplained += [
                f"{frame['step']} {name}: {what} {ours.code} {ours.remark} {ours.ext}"
                for what in differences(frame, ours, theirs, release)
                if not any((key, what) in explained for key in names)
            ]
    for client in clients.values():
        client.close()
    assert unexplained == []
    assert len(compared) >= kinds
