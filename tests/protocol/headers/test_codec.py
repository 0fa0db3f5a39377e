"""The codec of typed headers: names, types, defaults, and how a bad field is refused."""

from __future__ import annotations

import re

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec import field
from msgspec.structs import astuple
from tests.support.common_fields import CommonFields

from penstock.errors import HeaderFieldError, ProtocolError
from penstock.protocol.headers.codec import (
    Header,
    Int32,
    Int64,
    decode_each,
    decode_header,
    encode_header,
    header_fields,
)
from penstock.protocol.headers.pull import PullMessage
from penstock.protocol.headers.send import (
    SEND_V2_KEYS,
    SendMessage,
    SendMessageResult,
    SendMessageV2,
    decode_send_v2,
    encode_send_v2,
)


class Sample(Header):
    """One field of every kind."""

    plain_text: str
    queue_id: Int32
    log_offset: Int64
    is_force: bool
    odd_name: str = field(name="cLiEnTiD")
    text: str = "TAG"
    small: Int32 = -1
    large: Int64 = 2**40
    on: bool = True
    off: bool = False
    maybe_text: str | None = None
    maybe_small: Int32 | None = None
    maybe_large: Int64 | None = None
    maybe_bool: bool | None = None


REQUIRED = {
    "plainText": "a",
    "queueId": "3",
    "logOffset": "5000000000",
    "isForce": "true",
    "cLiEnTiD": "c",
}


def test_wire_names_are_camel_case_unless_given() -> None:
    assert [item.wire for item in header_fields(Sample)][:6] == [
        "plainText",
        "queueId",
        "logOffset",
        "isForce",
        "cLiEnTiD",
        "text",
    ]


def test_absent_optional_fields_take_their_defaults() -> None:
    assert decode_header(Sample, REQUIRED) == Sample("a", 3, 5_000_000_000, True, "c")


def test_defaults_are_written_and_nulls_are_not() -> None:
    assert encode_header(Sample("a", 3, 5_000_000_000, True, "c")) == {
        **REQUIRED,
        "text": "TAG",
        "small": "-1",
        "large": "1099511627776",
        "on": "true",
        "off": "false",
    }


def test_present_optional_fields_are_read() -> None:
    ext = {
        **REQUIRED,
        **{"text": "SQL92", "small": "7", "large": "-9", "on": "false", "off": "true"},
        **{"maybeText": "", "maybeSmall": "-1", "maybeLarge": str(2**63 - 1), "maybeBool": "TRUE"},
    }
    header = decode_header(Sample, ext)
    assert header == Sample(
        *("a", 3, 5_000_000_000, True, "c"),
        *("SQL92", 7, -9, False, True),
        *("", -1, 2**63 - 1, True),
    )
    assert encode_header(header) == {**ext, "maybeBool": "true"}


def test_unknown_fields_are_ignored_and_left_where_they_are() -> None:
    ext = {**REQUIRED, "new": "x", "bname": "broker-a"}
    assert decode_header(Sample, ext) == decode_header(Sample, REQUIRED)
    assert ext["new"] == "x"


@pytest.mark.parametrize("text", ["true", "TRUE", "True", "tRuE"])
def test_true_is_true_in_any_case(text: str) -> None:
    assert decode_header(Sample, {**REQUIRED, "off": text, "maybeBool": text}).off
    assert decode_header(Sample, {**REQUIRED, "maybeBool": text}).maybe_bool is True


@pytest.mark.parametrize("text", ["1", "yes", "on", "false", "FALSE", "", " true", "t\u0155ue"])
def test_anything_else_is_false(text: str) -> None:
    header = decode_header(Sample, {**REQUIRED, "isForce": text, "on": text, "maybeBool": text})
    assert (header.is_force, header.on, header.maybe_bool) == (False, False, False)


@pytest.mark.parametrize("name", REQUIRED)
def test_a_missing_required_field_is_refused_by_name(name: str) -> None:
    rest = {key: text for key, text in REQUIRED.items() if key != name}
    with pytest.raises(HeaderFieldError, match=f"Sample header without field '{name}'; expected"):
        decode_header(Sample, rest)


def test_no_ext_at_all_misses_the_first_field() -> None:
    with pytest.raises(HeaderFieldError, match="without field 'plainText'; expected plainText as"):
        decode_header(Sample, None)


@pytest.mark.parametrize(
    "name", ["queueId", "logOffset", "small", "large", "maybeSmall", "maybeLarge"]
)
@pytest.mark.parametrize("text", ["", "x", "1.5", "0x10", "--1", "9" * 5000, "true", "nul"])
def test_an_unreadable_integer_is_refused_by_name(name: str, text: str) -> None:
    with pytest.raises(HeaderFieldError, match=f"field '{name}' of a Sample header is") as caught:
        decode_header(Sample, {**REQUIRED, name: text})
    assert len(str(caught.value)) < 200


@pytest.mark.parametrize(
    ("text", "number"), [("+5", 5), ("007", 7), ("-0", 0), ("1e3", 1000), ("2.0", 2)]
)
def test_unusual_spellings_of_an_integer_are_read(text: str, number: int) -> None:
    header = decode_header(Sample, {**REQUIRED, "queueId": text, "maybeLarge": text})
    assert (header.queue_id, header.maybe_large) == (number, number)


def test_null_as_text_is_an_absent_number_and_a_false_boolean() -> None:
    header = decode_header(Sample, {**REQUIRED, "maybeText": "null", "maybeSmall": "null"})
    assert (header.maybe_text, header.maybe_small) == ("null", None)
    header = decode_header(Sample, {**REQUIRED, "isForce": "null", "maybeBool": "null"})
    assert (header.is_force, header.maybe_bool) == (False, False)
    with pytest.raises(HeaderFieldError, match="'queueId'"):
        decode_header(Sample, {**REQUIRED, "queueId": "null"})


@given(st.data())
def test_the_fast_conversion_agrees_with_the_rules_field_by_field(data: st.DataObject) -> None:
    texts = st.one_of(
        st.integers(-(2**64), 2**64).map(str), st.sampled_from(["true", "FALSE", "1", "", "yes"])
    )
    keys = [field.wire for field in header_fields(Sample)]
    ext = {**REQUIRED, **data.draw(st.dictionaries(st.sampled_from(keys), texts))}
    try:
        expected = decode_each(Sample, ext)
    except HeaderFieldError as error:
        with pytest.raises(HeaderFieldError, match=re.escape(str(error))):
            decode_header(Sample, ext)
    else:
        assert decode_header(Sample, ext) == expected


@pytest.mark.parametrize("name", ["queueId", "small", "maybeSmall"])
@pytest.mark.parametrize("number", [2**31, -(2**31) - 1, 10**30])
def test_an_integer_beyond_32_bits_is_refused(name: str, number: int) -> None:
    with pytest.raises(HeaderFieldError, match=f"'{name}' .* expected a 32-bit integer"):
        decode_header(Sample, {**REQUIRED, name: str(number)})


@pytest.mark.parametrize("name", ["logOffset", "large", "maybeLarge"])
@pytest.mark.parametrize("number", [2**63, -(2**63) - 1, 10**30])
def test_an_integer_beyond_64_bits_is_refused(name: str, number: int) -> None:
    with pytest.raises(HeaderFieldError, match=f"'{name}' .* expected a 64-bit integer"):
        decode_header(Sample, {**REQUIRED, name: str(number)})


@pytest.mark.parametrize("number", [0, -1, 1023, 1024, 2**31 - 1, -(2**31)])
def test_every_32_bit_integer_is_read_whether_it_is_looked_up_or_parsed(number: int) -> None:
    assert decode_header(Sample, {**REQUIRED, "queueId": str(number)}).queue_id == number
    assert decode_header(Sample, {**REQUIRED, "maybeSmall": str(number)}).maybe_small == number


@pytest.mark.parametrize("number", [2**63 - 1, -(2**63), 0])
def test_the_edges_of_64_bits_are_read(number: int) -> None:
    assert decode_header(Sample, {**REQUIRED, "logOffset": str(number)}).log_offset == number


def test_a_refused_header_is_a_protocol_error_that_answers_with_system_error() -> None:
    assert issubclass(HeaderFieldError, ProtocolError)
    assert HeaderFieldError.code == 1


def test_a_field_of_a_type_that_no_header_has_is_our_mistake() -> None:
    class Wrong(Header):
        amount: float

    with pytest.raises(KeyError):
        header_fields(Wrong)


# --------------------------------------------------------------------------------- sends, both ways

SENT = SendMessage("pg", "TopicTest", "TBW102", 4, 1, 0, 1_700_000_000_000, 0, "TAGS\x01A\x02")


def test_the_short_names_of_a_send_are_the_letters_in_order() -> None:
    assert "".join(SEND_V2_KEYS.values()) == "abcdefghijklmn"
    assert SEND_V2_KEYS["producer_group"] == "a"
    assert SEND_V2_KEYS["max_reconsume_times"] == "l"
    assert SEND_V2_KEYS["broker_name"] == "n"
    assert "".join(SendMessageV2.__struct_encode_fields__) == "abcdefghijklmn"


def test_both_spellings_of_a_send_mean_the_same() -> None:
    long, short = encode_header(SENT), encode_send_v2(SENT)
    assert long["producerGroup"] == short["a"]
    assert {SEND_V2_KEYS[item.name] for item in header_fields(SendMessage)} >= short.keys()
    assert decode_header(SendMessage, long) == SENT
    assert astuple(decode_send_v2(short)) == astuple(SENT)
    assert encode_header(decode_send_v2(short)) == short


def test_a_send_needs_only_its_first_eight_fields() -> None:
    ext = {key: text for key, text in encode_send_v2(SENT).items() if key in "abcdefgh"}
    header = decode_send_v2(ext)
    assert (header.properties, header.reconsume_times, header.max_reconsume_times) == (
        None,
        0,
        None,
    )
    assert (header.unit_mode, header.batch, header.broker_name) == (False, False, None)


def test_a_missing_letter_is_refused_by_its_letter() -> None:
    ext = encode_send_v2(SENT)
    del ext["e"]
    with pytest.raises(HeaderFieldError, match="SendMessageV2 header without field 'e'"):
        decode_send_v2(ext)


def test_a_batch_flag_of_1_as_the_cpp_client_sends_it_is_not_true() -> None:
    assert not decode_header(SendMessage, {**encode_header(SENT), "batch": "1"}).batch


def test_a_send_answer_carries_what_java_needs() -> None:
    assert encode_header(SendMessageResult("0A00", 1, 42)) == {
        "msgId": "0A00",
        "queueId": "1",
        "queueOffset": "42",
    }


def test_a_misspelling_on_the_wire_is_kept() -> None:
    header = decode_header(
        PullMessage,
        {
            **{"consumerGroup": "g", "topic": "T", "queueId": "0", "queueOffset": "7"},
            **{"maxMsgNums": "32", "sysFlag": "2", "commitOffset": "0"},
            **{"suspendTimeoutMillis": "15000", "subVersion": "1"},
            "proxyFrowardClientId": "c",
        },
    )
    assert header.proxy_forward_client_id == "c"
    assert encode_header(header)["proxyFrowardClientId"] == "c"


def test_common_fields_are_read_apart_and_may_all_be_absent() -> None:
    assert decode_header(CommonFields, None) == CommonFields()
    ext = {"bname": "broker-a", "ns": "space", "nsd": "true", "ReqT": "0", "topic": "T"}
    common = decode_header(CommonFields, ext)
    assert common == CommonFields("broker-a", "space", is_namespaced=True, request_type="0")
    assert encode_header(common) == {key: ext[key] for key in ("bname", "ns", "nsd", "ReqT")}


@given(st.dictionaries(st.sampled_from([*REQUIRED, "small", "maybeLarge", "on"]), st.text()))
def test_any_text_in_any_field_gives_a_header_or_a_header_field_error(ext: dict[str, str]) -> None:
    try:
        header = decode_header(Sample, {**REQUIRED, **ext})
    except HeaderFieldError:
        return
    assert decode_header(Sample, encode_header(header)) == header
