"""Requests as other clients write them, from the first byte to the typed header.

Java writes text in every ext field. The Node client writes bare integers and booleans, the C++
client mixes both and ends its JSON with a newline, the Go client sends batches with short names.
"""

from __future__ import annotations

import struct
from typing import Any

import orjson
import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.support.common_fields import CommonFields
from tests.support.request_types import REQUESTS

from penstock.errors import ProtocolError
from penstock.protocol.acl import access_key, sign, verify
from penstock.protocol.codes import RequestCode
from penstock.protocol.commands import Command, Language, decode_command, encode_command, reply
from penstock.protocol.frames import BINARY, JSON, FrameDecoder
from penstock.protocol.headers.codec import decode_header, encode_header
from penstock.protocol.headers.offsets import UpdateConsumerOffset
from penstock.protocol.headers.pull import PullMessage, PullMessageResult
from penstock.protocol.headers.send import SendMessage, SendMessageV2


def received(header: dict[str, Any], body: bytes = b"", *, end: bytes = b"") -> Command:
    """A JSON request as a peer sends it, decoded."""
    text = orjson.dumps(header) + end
    (frame,) = FrameDecoder().feed(
        struct.pack(">II", 4 + len(text) + len(body), len(text)) + text + body
    )
    return decode_command(frame)


def typed(command: Command) -> Any:
    cls = REQUESTS[command.code].header
    assert cls is not None
    return decode_header(cls, command.ext)


def test_a_send_of_the_node_client_with_native_numbers_and_booleans() -> None:
    command = received(
        {
            "code": 310,
            "language": "JAVA",
            "version": 121,
            "opaque": 1,
            "flag": 0,
            "extFields": {
                **{"a": "pg", "b": "T", "c": "TBW102", "d": 4, "e": 1, "f": 0},
                **{"g": 1_700_000_000_000, "h": 0, "i": "TAGS\x01A\x02", "j": 0, "k": False},
                "l": None,
                "m": False,
            },
        },
        b"hello",
    )
    assert typed(command) == SendMessageV2(
        *("pg", "T", "TBW102", 4, 1, 0, 1_700_000_000_000, 0), properties="TAGS\x01A\x02"
    )
    assert command.body == b"hello"


def test_a_pull_of_the_cpp_client_mixes_numbers_and_text_and_ends_with_a_newline() -> None:
    command = received(
        {
            "code": 11,
            "extFields": {
                **{"AccessKey": "", "OnsChannel": "", "Signature": ""},
                **{"consumerGroup": "g", "topic": "T", "queueId": 0, "queueOffset": "7"},
                **{"maxMsgNums": 32, "sysFlag": 6, "commitOffset": "-1"},
                **{"suspendTimeoutMillis": "15000", "subVersion": "1", "subscription": "*"},
            },
            "flag": 0,
            "language": "CPP",
            "opaque": 12,
            "version": 63,
        },
        end=b"\n",
    )
    assert typed(command) == PullMessage("g", "T", 0, 7, 32, 6, -1, 15000, 1, subscription="*")
    assert command.language is Language.CPP
    assert access_key(command.ext) is None


def test_the_cpp_client_never_means_a_batch() -> None:
    ext = encode_header(SendMessage("pg", "T", "TBW102", 4, 1, 0, 1, 0))
    command = received(
        {"code": 10, "flag": 0, "opaque": 1, "extFields": {**ext, "batch": "1", "unitMode": "0"}}
    )
    header = typed(command)
    assert (header.batch, header.unit_mode) == (False, False)


def test_a_batch_of_the_go_client_has_short_names() -> None:
    ext = {
        **{"a": "pg", "b": "T", "c": "TBW102", "d": "4", "e": "0", "f": "0", "g": "1", "h": "0"},
        **{"i": "", "j": "0", "k": "false", "l": "0", "m": "true"},
    }
    header = typed(
        received(
            {
                **{"code": 320, "language": "GO", "version": 317, "opaque": 5, "flag": 0},
                "remark": "",
                "extFields": ext,
            }
        )
    )
    assert header.batch
    assert header.properties == ""
    assert header.max_reconsume_times == 0


def test_an_offset_commit_of_the_node_client_may_be_minus_one() -> None:
    ext = {"consumerGroup": "g", "topic": "T", "queueId": 3, "commitOffset": -1}
    command = received({"code": 15, "flag": 0, "opaque": 9, "extFields": ext})
    assert typed(command) == UpdateConsumerOffset("g", "T", 3, -1)


def test_what_we_answer_has_text_in_every_field() -> None:
    request = received({"code": 11, "flag": 0, "opaque": 9, "language": "GO", "version": 317})
    answer = reply(request, 19, encode_header(PullMessageResult(0, 7, 0, 7)), remark="nothing")
    stream = encode_command(answer)
    head = orjson.loads(stream[8:])
    assert head["extFields"] == {
        "suggestWhichBrokerId": "0",
        "nextBeginOffset": "7",
        "minOffset": "0",
        "maxOffset": "7",
    }
    assert (head["opaque"], head["flag"], head["remark"]) == (9, 1, "nothing")
    # C++ and Node read all four bytes as the header's length: the type must be 0.
    assert stream[4] == JSON


def test_no_blank_and_no_null_stands_in_what_we_write() -> None:
    assert encode_command(Command(34, 1))[8:] == (
        b'{"code":34,"flag":0,"language":"PYTHON","opaque":1,'
        b'"serializeTypeCurrentRPC":"JSON","version":479}'
    )


def test_a_stream_request_carries_its_mark_beside_its_own_fields() -> None:
    ext = {"topic": "T", "ReqT": "0", "lo": "true", "__ZONE_NAME": "z", "oway": "false"}
    command = received({"code": 105, "flag": 0, "opaque": 2, "extFields": ext})
    assert typed(command).topic == "T"
    common = decode_header(CommonFields, command.ext)
    assert common == CommonFields(
        request_type="0", is_logical_queue=True, zone_name="z", is_oneway=False
    )


def test_a_signed_binary_request_has_its_fields_twice_and_still_verifies() -> None:
    ext = {"topic": "T", "queueId": "1"}
    signed = {**ext, **sign(ext, b"", "RocketMQ", "12345678")}
    once = encode_command(Command(30, 1, ext=ext, serializer=BINARY))
    fast = once[8 + 21 :]
    (frame,) = FrameDecoder().feed(encode_command(Command(30, 1, ext=signed, serializer=BINARY)))
    header = bytearray(frame.header[:17])
    fields = fast + frame.header[21:]
    header += len(fields).to_bytes(4) + fields
    command = decode_command(frame._replace(header=bytes(header)))
    assert command.ext == signed
    assert verify(command.ext, b"", "12345678")


@pytest.mark.parametrize("code", [310, 11, 15, 37, 103, 200050])
@given(data=st.data())
def test_any_header_of_a_request_is_typed_or_refused(code: int, data: st.DataObject) -> None:
    cls = REQUESTS[code].header
    assert cls is not None
    scalars = st.none() | st.booleans() | st.integers(-(2**63), 2**63 - 1) | st.text(max_size=5)
    numbers = st.integers(-5, 5) | st.integers(-5, 5).map(str)
    ext = data.draw(
        st.dictionaries(st.sampled_from(sorted(cls.__struct_encode_fields__)), numbers | scalars)
    )
    try:
        command = received({"code": code, "flag": 0, "opaque": 1, "extFields": ext})
        header = typed(command)
    except ProtocolError:
        return
    assert decode_header(cls, encode_header(header)) == header


def test_every_code_of_a_request_is_an_integer_that_a_command_can_carry() -> None:
    for code in REQUESTS:
        (frame,) = FrameDecoder().feed(encode_command(Command(code, serializer=BINARY)))
        assert decode_command(frame).code == code
        assert (frame.serializer == JSON) == (code >= RequestCode.POP_MESSAGE)
