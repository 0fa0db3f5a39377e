"""What Apache's client asked of Apache's 5.5.0 broker, asked of ours: the answers have one shape.

Sends and pulls have tests of their own; here it is everything else that a client or a tool asks.
Compared are the code, the names of the ext fields, and the members of the body, whatever their
values.
"""

from __future__ import annotations

import asyncio
import contextlib
import gzip
import json
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

from penstock.broker import Broker
from penstock.protocol.codes import RequestCode
from penstock.protocol.commands import RESPONSE, Command, decode_command, encode_command
from penstock.protocol.frames import FrameDecoder
from penstock.protocol.headers.admin import UpdateTopic
from penstock.protocol.json_dialect import loads
from penstock.testing.wire import Wire, body_of

MakeBroker = Callable[..., Awaitable[Broker]]
VECTORS = Path(__file__).parent.parent / "vectors" / "frames-5.5.0.jsonl.gz"
Frame = dict[str, Any]

NOT_HERE = {
    "SEND_MESSAGE", "SEND_MESSAGE_V2", "SEND_BATCH_MESSAGE", "PULL_MESSAGE", "LITE_PULL_MESSAGE",
    "CONSUMER_SEND_MSG_BACK",
}  # fmt: skip
# Apache writes what it has where we have nothing to tell, or the other way round.
EXPLAINED = {
    ("RECALL_MESSAGE", "code"): "timers are refused",
    ("POP_MESSAGE", "code"): "pop is refused",
    ("ACK_MESSAGE", "code"): "pop is refused",
    ("CHANGE_MESSAGE_INVISIBLETIME", "code"): "pop is refused",
    ("SET_MESSAGE_REQUEST_MODE", "code"): "pop is refused",
    ("QUERY_ASSIGNMENT", "code"): "clients assign queues among themselves",
    ("QUERY_CONSUMER_OFFSET", "ext"): "an empty map, beside the code that says not found",
    ("GET_CONSUMER_LIST_BY_GROUP", "ext"): "an empty map, beside the code of an unknown group",
    ("QUERY_MESSAGE", "code"): "the recording asks for the time it was made at",
    ("QUERY_CONSUME_QUEUE", "body"): "no filter data: filters are not kept on disk",
    ("GET_ALL_DELAY_OFFSET", "body"): "no version: nobody replicates it",
    ("VIEW_MESSAGE_BY_ID", "code"): "the record lies elsewhere in our log",
    ("CONSUME_MESSAGE_DIRECTLY", "code"): "the record lies elsewhere in our log",
    ("GET_CONSUMER_RUNNING_INFO", "answer"): "what the client said was not recorded",
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


def recording() -> list[Frame]:
    with gzip.open(VECTORS, "rt") as lines:
        frames = [json.loads(line) for line in lines]
    between = ("client->broker", "broker->client")
    return [f for f in frames if f["run"] == "full" and f["direction"] in between]


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


def differences(ours: Command, theirs: Frame) -> list[str]:
    if ours.code != theirs["code"]:
        return ["code"]
    found = []
    our_ext, their_ext = ours.ext, theirs["ext_fields"]
    if (our_ext is None) != (their_ext is None) or set(our_ext or ()) != set(their_ext or ()):
        found.append("ext")
    data = recorded_body(theirs)
    if bool(data) != bool(body_of(ours)):
        found.append("body")
    elif data[:1] == b"{":
        mine, wanted = members(loads(body_of(ours))), members(loads(data))
        # Runtime info may tell more, as its words of 4.9 do.
        if mine != wanted and not (
            "table" in mine and mine["table"].keys() >= wanted["table"].keys() - _OF_ITS_PATHS
        ):
            found.append("body")
    return found


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


async def test_answers_have_the_shape_of_apaches(make_broker: MakeBroker) -> None:
    broker = await make_broker()
    async with await Wire.connect(broker.port) as wire:
        for topic, queues, perm in (
            ("golden-four", 4, 6), ("golden-empty", 1, 6), ("golden-wo", 1, 2),
        ):  # fmt: skip
            ask_for = UpdateTopic(topic, "TBW102", queues, queues, perm, "SINGLE_TAG", False)
            await wire.ok(RequestCode.UPDATE_AND_CREATE_TOPIC, ask_for)
    frames = recording()
    answers = {key_of(f): f for f in frames if is_answer(f) and f["direction"] == "broker->client"}
    from_clients = {
        key_of(f): f for f in frames if is_answer(f) and f["direction"] == "client->broker"
    }
    replies = {
        f["code"]: from_clients[key_of(f)]
        for f in frames
        if f["direction"] == "broker->client" and not is_answer(f) and key_of(f) in from_clients
    }
    clients: dict[str, Client] = {}
    unexplained: list[str] = []
    compared: set[str] = set()
    for frame in frames:
        if frame["direction"] != "client->broker" or is_answer(frame):
            continue
        client = clients.get(frame["connection"])
        if client is None:
            reader, writer = await asyncio.open_connection("127.0.0.1", broker.port)
            client = clients[frame["connection"]] = Client(reader, writer)
            client.will_answer(replies)
        ours = await ask(clients, client, frame)
        theirs, name = answers.get(key_of(frame)), frame["request_code_name"]
        if theirs is None or name in NOT_HERE:
            continue
        if ours is None:
            if (name, "answer") not in EXPLAINED:
                unexplained.append(f"{frame['step']} {name}: no answer")
            continue
        compared.add(name)
        unexplained += [
            f"{frame['step']} {name}: {what} {ours.code} {ours.remark} {ours.ext}"
            for what in differences(ours, theirs)
            if (name, what) not in EXPLAINED
        ]
    for client in clients.values():
        client.close()
    assert unexplained == []
    assert len(compared) > 45
