"""Every frame recorded from Apache RocketMQ 4.9.7 and 5.5.0 is understood without a rest."""

from __future__ import annotations

import gzip
import json
import zlib
from itertools import groupby
from typing import Any, NamedTuple

import pytest
from tests.support.common_fields import CommonFields
from tests.support.paths import VECTORS
from tests.support.registrations import encode_registration
from tests.support.request_types import REQUESTS, RawBody, RequestType

from penstock.model.properties import format_properties, parse_properties
from penstock.protocol.bodies.codec import decode_body, encode_body
from penstock.protocol.bodies.registration import decode_registration
from penstock.protocol.codes import RequestCode
from penstock.protocol.commands import Command, decode_command, encode_command
from penstock.protocol.fastjson.dialect import loads
from penstock.protocol.frames import BINARY, JSON, FrameDecoder
from penstock.protocol.headers.codec import Header, decode_header, encode_header
from penstock.protocol.headers.nameserver import RegisterBroker
from penstock.protocol.records.batches import decode_batch, encode_batch
from penstock.protocol.records.codec import Record, decode_record, decode_records, encode_record

SERIALIZERS = {"JSON": JSON, "ROCKETMQ": BINARY}
UNKNOWN_CODE = 9999


class Recorded(NamedTuple):
    """A frame as it was captured, what its recorder saw in it, and which request it belongs to."""

    release: str
    seen: dict[str, Any]
    command: Command
    request: RequestType | None

    def __str__(self) -> str:
        return f"{self.release} line {self.seen['seq']} ({self.seen['step']})"

    @property
    def body(self) -> bytes:
        assert isinstance(self.command.body, bytes)
        return self.command.body

    @property
    def header(self) -> type[Header] | None:
        if self.request is None:
            return None
        if self.command.is_response:
            return self.request.header_of_response(self.command.code)
        return self.request.header

    @property
    def body_type(self) -> type | RawBody | None:
        assert self.request is not None
        return self.request.response_body if self.command.is_response else self.request.body


def recordings() -> dict[str, list[Recorded]]:
    """The frames of both releases, by the name of their request."""
    rows: list[tuple[str, dict[str, Any]]] = []
    for release in ("4.9.7", "5.5.0"):
        with gzip.open(VECTORS / f"frames-{release}.jsonl.gz", "rt") as lines:
            rows += [(release, json.loads(line)) for line in lines]
    codes = {row["request_code_name"]: row["code"] for _, row in rows if not row["flag"] & 1}
    found = [
        Recorded(release, row, command_in(row), REQUESTS.get(codes[row["request_code_name"]]))
        for release, row in rows
    ]
    found.sort(key=request_name)
    return {name: list(frames) for name, frames in groupby(found, key=request_name)}


def request_name(recorded: Recorded) -> str:
    name: str = recorded.seen["request_code_name"]
    return name


def command_in(row: dict[str, Any]) -> Command:
    (frame,) = FrameDecoder().feed(bytes.fromhex(row["frame_hex"]))
    return decode_command(frame)


RECORDINGS = recordings()
EVERY_REQUEST = pytest.mark.parametrize("frames", RECORDINGS.values(), ids=RECORDINGS)


def test_the_recordings_are_whole() -> None:
    assert sum(map(len, RECORDINGS.values())) == 298 + 340
    assert [name for name, frames in RECORDINGS.items() if frames[0].request is None] == [
        f"UNKNOWN_{UNKNOWN_CODE}"
    ]


@EVERY_REQUEST
def test_a_frame_decodes_to_what_its_recorder_saw(frames: list[Recorded]) -> None:
    for recorded in frames:
        command, seen = recorded.command, recorded.seen
        assert command.code == seen["code"], recorded
        assert command.request_id == seen["opaque"], recorded
        assert command.flag == seen["flag"], recorded
        assert command.language.name == seen["language"], recorded
        assert command.version == seen["version"], recorded
        assert command.remark == seen["remark"], recorded
        assert command.ext == seen["ext_fields"], recorded
        assert command.serializer == SERIALIZERS[seen["serialize_type"]], recorded
        assert len(recorded.body) == seen["body_length"], recorded


@EVERY_REQUEST
def test_a_frame_survives_encoding_and_keeps_its_length(frames: list[Recorded]) -> None:
    for recorded in frames:
        stream = encode_command(recorded.command)
        (frame,) = FrameDecoder().feed(stream)
        assert decode_command(frame) == recorded.command, recorded
        # The order of the fields is not canonical; their bytes are the same in any order.
        assert len(stream) * 2 == len(recorded.seen["frame_hex"]), recorded


@EVERY_REQUEST
def test_a_header_is_typed_and_nothing_is_left_over(frames: list[Recorded]) -> None:
    for recorded in frames:
        ext = recorded.command.ext or {}
        own: dict[str, str] = {}
        if (cls := recorded.header) is not None:
            header = decode_header(cls, ext)
            own = encode_header(header)
            assert decode_header(cls, own) == header, recorded
        common = encode_header(decode_header(CommonFields, ext))
        assert {**common, **own} == ext, recorded
        assert ext.keys() <= {*CommonFields.__struct_encode_fields__, *own}, recorded


@EVERY_REQUEST
def test_a_request_is_called_as_its_recorder_calls_it(frames: list[Recorded]) -> None:
    for recorded in frames:
        if recorded.request is not None:
            assert recorded.request.name == recorded.seen["request_code_name"]


def test_an_unknown_code_decodes_as_a_bare_command() -> None:
    frames = RECORDINGS[f"UNKNOWN_{UNKNOWN_CODE}"]
    assert {recorded.command.code for recorded in frames} == {UNKNOWN_CODE, 3}
    for recorded in frames:
        assert recorded.body == b""
        assert not recorded.command.ext


# ---------------------------------------------------------------------------------------- bodies


@EVERY_REQUEST
def test_a_body_is_typed_and_survives_encoding(frames: list[Recorded]) -> None:
    for recorded in frames:
        if recorded.body:
            check_body(recorded)


def check_body(recorded: Recorded) -> None:
    kind, body = recorded.body_type, recorded.body
    assert kind is not None, recorded
    if kind is RawBody.RECORD:
        assert encoded(decode_record(body, check_crc=True)) == body, recorded
    elif kind is RawBody.RECORDS:
        records = decode_records(body, check_crc=True)
        assert b"".join(map(encoded, records)) == body, recorded
    elif kind is RawBody.BATCH:
        assert encode_batch(decode_batch(body)) == body, recorded
    elif kind is RawBody.MESSAGE:
        assert recorded.header is not None
    elif recorded.command.code == RequestCode.REGISTER_BROKER:
        check_registration(recorded)
    else:
        assert isinstance(kind, type)
        typed: object = decode_body(kind, body)
        again = encode_body(typed)
        assert decode_body(kind, again) == typed, recorded
        if not hasattr(kind, "from_bytes"):
            assert plain(loads(again)) == plain(loads(body)), recorded


def check_registration(recorded: Recorded) -> None:
    """A registration may be deflated although its header says otherwise."""
    header = decode_header(RegisterBroker, recorded.command.ext)
    version, body = recorded.command.version, recorded.body
    assert header.body_crc32 in (0, zlib.crc32(body) & 0x7FFF_FFFF), recorded
    typed = decode_registration(body, compressed=header.compressed, version=version)
    if body.startswith(b"{"):
        assert plain(loads(encode_registration(typed))) == plain(loads(body)), recorded
    else:
        again = encode_registration(typed, compressed=True, version=version)
        assert zlib.decompress(again) == zlib.decompress(body), recorded


def encoded(record: Record) -> bytes:
    return encode_record(
        record.topic.encode(),
        record.body,
        record.properties,
        record.queue_id,
        record.queue_offset,
        record.log_position,
        record.store_timestamp,
        record.born_timestamp,
        record.born_host,
        record.store_host,
        record.flag,
        record.sys_flag,
        record.reconsume_times,
        record.prepared_transaction_offset,
    )


def plain(value: Any) -> Any:
    """A JSON value in which ``{0: ...}`` and ``{"0": ...}`` are the same."""
    if isinstance(value, dict):
        return {str(key): plain(item) for key, item in value.items()}
    return [plain(item) for item in value] if isinstance(value, list) else value


def property_texts() -> list[str]:
    """The property strings of all sends, batches and records."""
    texts: list[str] = []
    for frames in RECORDINGS.values():
        for recorded in frames:
            ext = recorded.command.ext or {}
            texts += [ext[key] for key in ("i", "properties") if key in ext]
            if recorded.request is None or not recorded.body:
                continue
            if recorded.body_type in (RawBody.RECORD, RawBody.RECORDS):
                texts += [record.properties.decode() for record in decode_records(recorded.body)]
            elif recorded.body_type is RawBody.BATCH:
                texts += [item.properties.decode() for item in decode_batch(recorded.body)]
    return texts


def test_recorded_properties_survive_parsing() -> None:
    texts = property_texts()
    assert len(texts) > 100
    for text in texts:
        properties = parse_properties(text)
        again = format_properties(properties)
        # 4.9.7 leaves out the last separator, and its brokers write WAIT twice in batches.
        if text.count("\x01") == len(properties):
            assert again.removesuffix("\x02") == text.removesuffix("\x02")
        assert parse_properties(again) == properties
