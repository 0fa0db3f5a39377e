"""What Apache's clients and brokers asked of Apache's name server, asked of ours over a socket.

Compared are the code, the names of the ext fields and the members of the body. The recordings are
samples, so the topics of the registrations they leave out are registered before.
"""

from __future__ import annotations

import asyncio
import gzip
import json
from typing import Any

import pytest
from tests.support.paths import VECTORS
from tests.support.wire import body_of

from penstock.nameserver import NameServer, NameServerConfig
from penstock.protocol.codes import RequestCode
from penstock.protocol.commands import Command, decode_command
from penstock.protocol.fastjson.dialect import loads
from penstock.protocol.frames import FrameDecoder

RUNS = [
    ("5.5.0", "full"),
    ("5.5.0", "binary"),
    ("5.5.0", "register"),
    ("5.5.0", "compressed"),
    ("5.5.0", "acting"),
    ("4.9.7", "full"),
    ("4.9.7", "binary"),
    ("4.9.7", "register"),
    ("4.9.7", "compressed"),
]
Frame = dict[str, Any]

# By request and difference: our own code where the recording, a sample, lacks what came before.
EXPLAINED = {
    # The registration of that topic was not recorded.
    ("GET_ROUTEINFO_BY_TOPIC", "code"): 17,
    # The text was put by a request that was not recorded.
    ("GET_KV_CONFIG", "code"): 22,
    ("GET_KVLIST_BY_NAMESPACE", "code"): 22,
    # One topic alone, after a whole table that was not recorded.
    ("REGISTER_BROKER", "code"): 1,
    ("QUERY_DATA_VERSION", "body"): 0,
}
# Apache's own name server cannot read what its broker compressed; ours can, and refuses it for
# what it says.
LENIENT = ("5.5.0", "compressed", "REGISTER_BROKER")


def frames(release: str, run: str) -> list[Frame]:
    with gzip.open(VECTORS / f"frames-{release}.jsonl.gz", "rt") as lines:
        found = [json.loads(line) for line in lines]
    return [f for f in found if f["run"] == run and "namesrv" in f["direction"]]


def recorded_body(frame: Frame) -> bytes:
    length = frame["body_length"]
    return bytes.fromhex(frame["frame_hex"])[-length:] if length else b""


def members(value: Any) -> Any:
    """The names in a body; tables by topic, broker or cluster count as their first entry."""
    if isinstance(value, dict):
        if value and not all(isinstance(k, str) and k[0].islower() and k.isalpha() for k in value):
            return {"*": members(next(iter(value.values())))}
        return {k: members(v) for k, v in sorted(value.items())}
    return [members(item) for item in value[:1]] if isinstance(value, list) else None


def without_acting(shape: Any) -> Any:
    """A shape without the one member that ours leaves out where it says nothing."""
    if isinstance(shape, dict):
        return {k: without_acting(v) for k, v in shape.items() if k != "enableActingMaster"}
    return [without_acting(item) for item in shape] if isinstance(shape, list) else shape


def differences(ours: Command, theirs: Frame) -> set[str]:
    if ours.code != theirs["code"]:
        return {"code"}
    found = set()
    their_ext = theirs["ext_fields"]
    is_json = theirs["serialize_type"] == "JSON" and not ours.serializer
    # Only JSON tells a map that is empty from none.
    if is_json and (ours.ext is None) != (their_ext is None):
        found.add("ext")
    if set(ours.ext or ()) != set(their_ext or ()):
        found.add("ext")
    data, mine = recorded_body(theirs), body_of(ours)
    if bool(data) != bool(mine):
        found.add("body")
    elif data:
        shape = members(loads(data))
        assert without_acting(members(loads(mine))) == without_acting(shape)
    return found


class Player:
    """The connections of a recording, played again."""

    def __init__(self, port: int) -> None:
        self._port = port
        self._streams: dict[str, tuple[asyncio.StreamReader, asyncio.StreamWriter]] = {}

    async def ask(self, frame: Frame) -> Command | None:
        """Send a recorded request; its answer, or None where none is to come."""
        name = frame["connection"]
        if name not in self._streams:
            self._streams[name] = await asyncio.open_connection("127.0.0.1", self._port)
        reader, writer = self._streams[name]
        writer.write(bytes.fromhex(frame["frame_hex"]))
        if frame["flag"] & 2:
            return None
        decoder = FrameDecoder()
        async with asyncio.timeout(10):
            while True:
                for answer in map(decode_command, decoder.feed(await reader.read(1 << 16))):
                    assert answer.flag & 1
                    if answer.request_id == frame["opaque"]:
                        return answer

    def close(self) -> None:
        for _, writer in self._streams.values():
            writer.close()


@pytest.mark.parametrize(("release", "run"), RUNS)
async def test_every_recorded_request_is_answered_alike(release: str, run: str) -> None:
    recorded = frames(release, run)
    answers = {(f["connection"], f["opaque"]): f for f in recorded if f["flag"] & 1}
    unexplained: list[str] = []
    compared = 0
    async with NameServer(NameServerConfig(listen_port=0)) as server:
        player = Player(server.port)
        for frame in recorded:
            if frame["flag"] & 1:
                continue
            ours = await player.ask(frame)
            theirs = answers.get((frame["connection"], frame["opaque"]))
            if theirs is None:
                # One-way, or the unknown code that 4.9.7 never answers.
                assert ours is None or ours.code == 3
                continue
            assert ours is not None
            compared += 1
            # A binary header is answered with a binary header, JSON with JSON.
            assert ours.serializer == (frame["serialize_type"] == "ROCKETMQ")
            name = frame["request_code_name"]
            if (release, run, name) == LENIENT:
                continue
            for what in differences(ours, theirs):
                if EXPLAINED.get((name, what)) != ours.code:
                    unexplained.append(f"{frame['step']} {name}: {what} {ours.code} {ours.remark}")
        player.close()
    assert unexplained == []
    assert compared >= len(answers)


async def test_the_texts_that_tools_keep_are_answered_alike() -> None:
    # PUT_KV_CONFIG is among the samples for another key only, so the text is put here.
    recorded = frames("5.5.0", "full")
    answers = {(f["connection"], f["opaque"]): f for f in recorded if f["flag"] & 1}
    kinds = ("GET_KV_CONFIG", "GET_KVLIST_BY_NAMESPACE", "DELETE_KV_CONFIG")
    asked = [f for f in recorded if f["request_code_name"] in kinds and not f["flag"] & 1]
    assert {f["request_code_name"] for f in asked} == set(kinds)
    async with NameServer(NameServerConfig(listen_port=0)) as server:
        player = Player(server.port)
        (put,) = (
            f for f in recorded if f["code"] == RequestCode.PUT_KV_CONFIG and not f["flag"] & 1
        )
        ext = {"namespace": "GOLDEN", "key": "key", "value": "value"}
        header = {**{k: put[k] for k in ("code", "flag", "language", "opaque", "version")}}
        text = json.dumps({**header, "serializeTypeCurrentRPC": "JSON", "extFields": ext}).encode()
        data = (len(text) + 4).to_bytes(4, "big") + len(text).to_bytes(4, "big") + text
        answer = await player.ask({**put, "frame_hex": data.hex()})
        assert answer is not None
        assert answer.code == 0
        for frame in asked:
            ours = await player.ask(frame)
            theirs = answers[frame["connection"], frame["opaque"]]
            assert ours is not None
            assert (ours.code, ours.ext) == (theirs["code"], theirs["ext_fields"])
            assert body_of(ours) == recorded_body(theirs)
        player.close()
