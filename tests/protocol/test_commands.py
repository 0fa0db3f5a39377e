"""Commands in both serialisations: the reference's vectors, round trips, hostile headers."""

from __future__ import annotations

from typing import Any

import orjson
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from penstock.errors import ProtocolError
from penstock.protocol.commands import (
    Command,
    Language,
    body_size,
    decode_command,
    encode_command,
    encode_head,
    reply,
)
from penstock.protocol.frames import BINARY, JSON, Frame, FrameDecoder

SEND_FIELDS = {
    "a": "pg",
    "b": "TopicTest",
    "c": "TBW102",
    "d": "4",
    "e": "1",
    "f": "0",
    "g": "1700000000000",
    "h": "0",
    "i": "TAGS\x01TagA\x02",
    "j": "0",
    "k": "false",
    "m": "false",
    "n": "broker-a",
}

# The vectors V1 to V5 of the protocol reference.
VECTORS: dict[str, tuple[Command, str]] = {
    "V1 a JSON request": (
        Command(105, 1, ext={"topic": "TopicTest"}),
        "00000089000000857b22636f6465223a3130352c226578744669656c6473223a7b22746f706963223a22546f"
        "70696354657374227d2c22666c6167223a302c226c616e6775616765223a22505954484f4e222c226f706171"
        "7565223a312c2273657269616c697a655479706543757272656e74525043223a224a534f4e222c2276657273"
        "696f6e223a3437397d",
    ),
    "V2 the same with a binary header": (
        Command(105, 1, ext={"topic": "TopicTest"}, serializer=BINARY),
        "0000002d0100002900690301df000000010000000000000000000000140005746f70696300000009546f7069"
        "6354657374",
    ),
    "V3 a JSON response": (
        Command(0, 7, flag=1, ext={"offset": "42"}),
        "000000810000007d7b22636f6465223a302c226578744669656c6473223a7b226f6666736574223a22343222"
        "7d2c22666c6167223a312c226c616e6775616765223a22505954484f4e222c226f7061717565223a372c2273"
        "657269616c697a655479706543757272656e74525043223a224a534f4e222c2276657273696f6e223a343739"
        "7d",
    ),
    "V4 a oneway request": (
        Command(
            15,
            8,
            flag=2,
            ext={
                "bname": "broker-a",
                "commitOffset": "42",
                "consumerGroup": "cg",
                "queueId": "1",
                "topic": "TopicTest",
            },
        ),
        "000000d2000000ce7b22636f6465223a31352c226578744669656c6473223a7b22626e616d65223a2262726f"
        "6b65722d61222c22636f6d6d69744f6666736574223a223432222c22636f6e73756d657247726f7570223a22"
        "6367222c2271756575654964223a2231222c22746f706963223a22546f70696354657374227d2c22666c6167"
        "223a322c226c616e6775616765223a22505954484f4e222c226f7061717565223a382c2273657269616c697a"
        "655479706543757272656e74525043223a224a534f4e222c2276657273696f6e223a3437397d",
    ),
    "V5 a send with a binary header": (
        Command(310, 9, ext=SEND_FIELDS, body=b"Hello", serializer=BINARY),
        "000000b8010000af01360301df0000000900000000000000000000009a000161000000027067000162000000"
        "09546f7069635465737400016300000006544257313032000164000000013400016500000001310001660000"
        "0001300001670000000d3137303030303030303030303000016800000001300001690000000a544147530154"
        "6167410200016a000000013000016b0000000566616c736500016d0000000566616c736500016e0000000862"
        "726f6b65722d6148656c6c6f",
    ),
}


def decoded(stream: bytes) -> Command:
    (frame,) = FrameDecoder().feed(stream)
    return decode_command(frame)


def json_command(head: dict[str, Any] | bytes) -> Command:
    header = head if isinstance(head, bytes) else orjson.dumps(head)
    return decode_command(Frame(JSON, header, b""))


@pytest.mark.parametrize(("command", "stream"), VECTORS.values(), ids=VECTORS)
def test_a_vector_encodes_to_its_bytes(command: Command, stream: str) -> None:
    assert encode_command(command).hex() == stream


@pytest.mark.parametrize(("command", "stream"), VECTORS.values(), ids=VECTORS)
def test_a_vector_decodes_to_its_command(command: Command, stream: str) -> None:
    assert decoded(bytes.fromhex(stream)) == command


def test_the_json_form_of_the_send_vector_escapes_separators_and_has_its_lengths() -> None:
    stream = encode_command(Command(310, 9, ext=SEND_FIELDS, body=b"Hello"))
    assert stream[:8] == bytes.fromhex("0000011e00000115")
    assert rb'"i":"TAGS\u0001TagA\u0002"' in stream


# ----------------------------------------------------------------------------------- round trips

int32s = st.integers(-(2**31), 2**31 - 1)
texts = st.text(st.characters(codec="utf-8"), max_size=20)
commands = st.builds(
    Command,
    code=int32s,
    request_id=int32s,
    flag=int32s,
    ext=st.none() | st.dictionaries(texts, texts, max_size=5),
    body=st.binary(max_size=30),
    remark=st.none() | texts,
    language=st.sampled_from(Language),
    version=int32s,
)


@given(commands)
@example(Command(0, ext={}, remark=""))
@example(Command(1, ext={"": "", "quote": '"\\\n\x00\x7f\u2028'}))
def test_a_command_survives_json(command: Command) -> None:
    assert decoded(encode_command(command)) == command


@given(commands)
@example(Command(32768))
@example(Command(-32769))
@example(Command(10, version=40_000))
def test_a_command_survives_the_binary_header(command: Command) -> None:
    command.serializer = BINARY
    received = decoded(encode_command(command))
    if not (-(2**15) <= command.code < 2**15 and -(2**15) <= command.version < 2**15):
        command.serializer = JSON
    else:
        # The binary form has one way to write nothing.
        command.remark = command.remark or None
        command.ext = {key: text for key, text in (command.ext or {}).items() if key} or None
        received.ext = received.ext or None
    assert received == command


def test_pop_codes_do_not_fit_a_binary_header_and_go_as_json() -> None:
    stream = encode_command(Command(200050, 3, ext={"topic": "T"}, serializer=BINARY))
    assert stream[4] == JSON
    assert decoded(stream) == Command(200050, 3, ext={"topic": "T"}, serializer=JSON)


def test_a_key_too_long_for_a_binary_header_goes_as_json() -> None:
    command = Command(10, ext={"k" * 40_000: "v"}, serializer=BINARY)
    received = decoded(encode_command(command))
    assert received.ext == command.ext
    assert received.serializer == JSON


def test_a_header_that_fits_no_frame_is_refused() -> None:
    with pytest.raises(ProtocolError, match=r"command 10 with a header of 1[0-9]+ bytes"):
        encode_head(Command(10, remark="x" * 2**24), 0)
    with pytest.raises(ProtocolError, match="a body of 2147483647"):
        encode_head(Command(10), 2**31 - 1)


def test_the_head_is_ready_to_be_followed_by_the_body() -> None:
    command = Command(11, 5, body=[b"one", memoryview(b"..two..")[2:5], bytearray(b"three")])
    assert body_size(command.body) == 11
    assert encode_command(command) == encode_head(command, 11) + b"onetwothree"
    assert decoded(encode_command(command)).body == b"onetwothree"


def test_the_size_of_a_view_counts_bytes_not_items() -> None:
    assert body_size(memoryview(bytes(16)).cast("q")) == 16
    assert body_size(b"") == body_size([]) == 0


# -------------------------------------------------------------------------------- what flags mean


def test_the_flag_tells_requests_responses_and_oneway_requests_apart() -> None:
    kinds = [
        (Command(1, flag=flag).is_response, Command(1, flag=flag).is_oneway) for flag in (0, 1, 2)
    ]
    assert kinds == [(False, False), (True, False), (False, True)]


@pytest.mark.parametrize("serializer", [JSON, BINARY])
def test_a_reply_echoes_number_and_serialisation_and_is_a_response(serializer: int) -> None:
    request = Command(11, -7, flag=0, version=121, language=Language.GO, serializer=serializer)
    answer = reply(request, 19, {"minOffset": "0"}, b"body", "no new message")
    assert answer == Command(
        19, -7, 1, {"minOffset": "0"}, b"body", "no new message", serializer=serializer
    )
    assert answer.is_response
    assert answer.language is Language.PYTHON
    assert answer.version == 479


def test_a_reply_is_a_bare_success_by_default() -> None:
    assert reply(Command(34, 3)) == Command(0, 3, 1)


# --------------------------------------------------------------------------- what others may send

MINIMAL = {"code": 10, "flag": 0, "opaque": 1}


def test_a_minimal_json_header_has_javas_defaults() -> None:
    assert json_command(MINIMAL) == Command(10, 1, language=Language.JAVA, version=0)


def test_a_json_header_without_a_flag_is_a_plain_request() -> None:
    command = json_command({"code": 10, "opaque": 1})
    assert command == json_command(MINIMAL)
    assert not command.is_response
    assert not command.is_oneway


def test_null_is_as_good_as_absent() -> None:
    nulls = {"language": None, "version": None, "remark": None, "extFields": None, "flag": None}
    assert json_command({**MINIMAL, **nulls}) == json_command(MINIMAL)


def test_numbers_booleans_and_null_in_ext_become_text_or_nothing() -> None:
    ext = {"queueId": 0, "commitOffset": "2", "batch": True, "unitMode": False, "x": None, "y": 1.5}
    assert json_command({**MINIMAL, "extFields": ext}).ext == {
        "queueId": "0",
        "commitOffset": "2",
        "batch": "true",
        "unitMode": "false",
        "y": "1.5",
    }


def test_a_number_wider_than_64_bits_in_ext_is_kept_as_some_text() -> None:
    ext = json_command(b'{"code":10,"flag":0,"opaque":1,"extFields":{"offset":%d}}' % 10**30).ext
    assert ext is not None
    assert type(ext["offset"]) is str


def test_a_trailing_newline_as_the_cpp_client_sends_it_is_no_harm() -> None:
    assert json_command(orjson.dumps(MINIMAL) + b"\n").code == 10


def test_unknown_keys_are_ignored_and_the_last_of_equal_keys_wins() -> None:
    header = b'{"code":1,"code":10,"flag":0,"opaque":1,"serializeTypeCurrentRPC":"JSON","new":[1]}'
    assert json_command(header) == json_command(MINIMAL)


@pytest.mark.parametrize(
    ("language", "meaning"),
    [("GO", Language.GO), (13, Language.NODE_JS), ("COBOL", Language.OTHER), (99, Language.OTHER)],
)
def test_languages_are_known_by_name_and_number_and_unknown_ones_tolerated(
    language: object, meaning: Language
) -> None:
    assert json_command({**MINIMAL, "language": language}).language is meaning


def test_a_language_of_the_wrong_type_is_tolerated_too() -> None:
    assert json_command({**MINIMAL, "language": ["JAVA"]}).language is Language.OTHER


@pytest.mark.parametrize("number", range(14))
def test_every_language_has_a_number_in_binary(number: int) -> None:
    command = Command(34, language=Language(number), serializer=BINARY)
    assert encode_command(command)[10] == number
    assert decoded(encode_command(command)) == command


def test_an_unknown_language_number_in_binary_is_tolerated() -> None:
    stream = bytearray(encode_command(Command(34, serializer=BINARY)))
    stream[10] = 200
    assert decoded(bytes(stream)).language is Language.OTHER


def binary_ext(*fields: tuple[bytes, bytes]) -> Frame:
    ext = b"".join(
        len(key).to_bytes(2) + key + len(value).to_bytes(4) + value for key, value in fields
    )
    fixed = bytes.fromhex("000a0001df000000010000000000000000")
    return Frame(BINARY, fixed + len(ext).to_bytes(4) + ext, b"")


def test_fields_written_twice_in_binary_count_once_and_the_last_wins() -> None:
    frame = binary_ext((b"a", b"1"), (b"b", b"2"), (b"a", b"3"))
    assert decode_command(frame).ext == {"a": "3", "b": "2"}


def test_an_empty_value_in_binary_is_empty_text_and_an_empty_key_means_nothing() -> None:
    assert decode_command(binary_ext((b"", b"1"), (b"b", b""))).ext == {"b": ""}


# ----------------------------------------------------------------------------------- hostile ones

BAD_JSON: dict[str, tuple[bytes, str]] = {
    "empty": (b"", "is not JSON"),
    "cut off": (b'{"code":10,"flag":0,', "is not JSON"),
    "invalid UTF-8": (b'{"code":10,"flag":0,"opaque":1,"remark":"\xff\xfe"}', "is not JSON"),
    "lone surrogate": (b'{"code":10,"flag":0,"opaque":1,"remark":"\\ud800"}', "is not JSON"),
    "NaN": (b'{"code":NaN,"flag":0,"opaque":1}', "is not JSON"),
    "deep nesting": (b'{"code":10,"flag":0,"opaque":1,"x":' + b"[" * 100_000, "is not JSON"),
    "deep objects": (b'{"x":' * 50_000 + b"1" + b"}" * 50_000, "is not JSON"),
    "a list": (b"[1,2,3]", "is not a JSON object"),
    "a text": (b'"code"', "is not a JSON object"),
    "a number": (b"310", "is not a JSON object"),
    "null": (b"null", "is not a JSON object"),
    "no code": (b'{"flag":0,"opaque":1}', "header without code; expected code as a 32-bit"),
    "no opaque": (b'{"code":10,"flag":0}', "header without opaque"),
    "code as text": (b'{"code":"10","flag":0,"opaque":1}', "code '10' in a header"),
    "code as float": (b'{"code":1.5,"flag":0,"opaque":1}', "code 1.5 in a header"),
    "null code": (b'{"code":null,"flag":0,"opaque":1}', "code None in a header"),
    "huge code": (b'{"code":4294967296,"flag":0,"opaque":1}', "code 4294967296"),
    "huge opaque": (b'{"code":10,"flag":0,"opaque":2147483648}', "opaque 2147483648"),
    "huger opaque": (b'{"code":10,"flag":0,"opaque":%d}' % 10**30, "opaque 1e+30"),
    "infinite opaque": (b'{"code":10,"flag":0,"opaque":%d}' % 10**400, "is not JSON"),
    "huge flag": (b'{"code":10,"flag":-2147483649,"opaque":1}', "flag -2147483649"),
    "version as text": (b'{"code":10,"flag":0,"opaque":1,"version":"5"}', "version '5'"),
    "remark as number": (b'{"code":10,"flag":0,"opaque":1,"remark":7}', "remark 7"),
    "ext as list": (b'{"code":10,"flag":0,"opaque":1,"extFields":["a"]}', "extFields"),
    "ext as text": (b'{"code":10,"flag":0,"opaque":1,"extFields":"a"}', "extFields 'a'"),
    "ext of objects": (
        b'{"code":10,"flag":0,"opaque":1,"extFields":{"a":{"b":1}}}',
        "ext field 'a' is a dict of 1; expected text, a number or a boolean",
    ),
    "ext nested as deep as JSON may be": (
        b'{"code":10,"flag":0,"opaque":1,"extFields":{"a":' + b"[" * 1000 + b"]" * 1000 + b"}}",
        "ext field 'a' is a list of 1",
    ),
    "code nested as deep as JSON may be": (
        b'{"flag":0,"opaque":1,"code":' + b"[" * 1000 + b"]" * 1000 + b"}",
        "code a list of 1 in a header",
    ),
}


@pytest.mark.parametrize(("header", "text"), BAD_JSON.values(), ids=BAD_JSON)
def test_a_bad_json_header_is_refused_by_name(header: bytes, text: str) -> None:
    with pytest.raises(ProtocolError) as caught:
        json_command(header)
    assert text in str(caught.value)
    assert len(str(caught.value)) < 400


FIXED = bytes.fromhex("000a0301df0000000100000000")
BAD_BINARY = {
    "empty": b"",
    "cut off in the fixed part": FIXED,
    "no ext length": FIXED + bytes(4),
    "negative remark": FIXED + b"\xff\xff\xff\xff" + bytes(4),
    "remark beyond the end": FIXED + (1000).to_bytes(4) + bytes(4),
    "remark of 2 GiB": FIXED + b"\x7f\xff\xff\xff" + bytes(4),
    "negative ext": FIXED + bytes(4) + b"\xff\xff\xff\xff",
    "ext beyond the end": FIXED + bytes(4) + (9).to_bytes(4) + b"abc",
    "bytes after ext": FIXED + bytes(8) + b"left over",
    "remark not UTF-8": FIXED + (1).to_bytes(4) + b"\xff" + bytes(4),
    "negative key length": FIXED + bytes(4) + (8).to_bytes(4) + b"\xff\xff" + bytes(6),
    "key beyond the end": FIXED + bytes(4) + (3).to_bytes(4) + b"\x00\x09a",
    "value without a length": FIXED + bytes(4) + (3).to_bytes(4) + b"\x00\x01a",
    "negative value length": FIXED + bytes(4) + (7).to_bytes(4) + b"\x00\x01a" + b"\xff" * 4,
    "value beyond the end": FIXED + bytes(4) + (7).to_bytes(4) + b"\x00\x01a" + (1).to_bytes(4),
    "one byte of a key length": FIXED + bytes(4) + (1).to_bytes(4) + b"\x00",
    "key not UTF-8": FIXED + bytes(4) + (7).to_bytes(4) + b"\x00\x01\xff" + bytes(4),
}


@pytest.mark.parametrize("header", BAD_BINARY.values(), ids=BAD_BINARY)
def test_a_bad_binary_header_is_refused(header: bytes) -> None:
    with pytest.raises(ProtocolError) as caught:
        decode_command(Frame(BINARY, header, b""))
    assert len(str(caught.value)) < 400


def test_an_unknown_serializer_is_refused() -> None:
    with pytest.raises(ProtocolError, match=r"serializer 2; expected 0 \(JSON\) or 1 \(binary\)"):
        decode_command(Frame(2, b"{}", b""))


@given(st.sampled_from([JSON, BINARY]), st.binary(max_size=100))
def test_random_headers_give_a_command_or_a_protocol_error(serializer: int, noise: bytes) -> None:
    try:
        command = decode_command(Frame(serializer, noise, b""))
    except ProtocolError:
        return
    assert decoded(encode_command(command)).code == command.code


@given(commands, st.sampled_from([JSON, BINARY]), st.data())
def test_mutated_headers_give_a_command_or_a_protocol_error(
    command: Command, serializer: int, data: st.DataObject
) -> None:
    command.serializer = serializer
    (frame,) = FrameDecoder().feed(encode_command(command))
    header = bytearray(frame.header)
    for _ in range(data.draw(st.integers(1, 4))):
        header[data.draw(st.integers(0, len(header) - 1))] = data.draw(st.integers(0, 255))
    try:
        received = decode_command(Frame(serializer, bytes(header), b""))
    except ProtocolError:
        return
    assert decoded(encode_command(received)).request_id == received.request_id


json_values = st.recursive(
    st.none() | st.booleans() | st.integers(-(2**63), 2**63 - 1) | st.floats() | texts,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(texts, inner, max_size=3),
    max_leaves=8,
)


@given(
    st.dictionaries(
        st.sampled_from(
            ["code", "flag", "opaque", "language", "version", "remark", "extFields", "other"]
        ),
        json_values | st.integers(-5, 5),
    )
)
def test_any_json_object_gives_a_command_or_a_protocol_error(head: dict[str, Any]) -> None:
    try:
        command = json_command(head)
    except ProtocolError:
        return
    assert all(type(text) is str for text in (command.ext or {}).values())
    assert decoded(encode_command(command)) == command
