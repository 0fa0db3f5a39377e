"""Property strings: the parser's rules, the writer's refusals, and the quick look-up."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock.errors import IllegalMessage
from penstock.model.properties import (
    KEYS,
    MAX_PROPERTIES_BYTES,
    TAGS,
    UNIQUE_KEY,
    encode_properties,
    encode_stored,
    find_value,
    format_properties,
    get_property,
    indexed_values,
    parse_properties,
    value_of,
)

sides = st.text(
    st.characters(exclude_characters="\x01\x02", exclude_categories=["Cs"]), min_size=1, max_size=12
)
pairs = st.dictionaries(sides, sides, max_size=8)
# Small alphabets make the rare shapes common: empty sides, duplicates, separators in a row.
soup = st.lists(st.sampled_from(["A", "B", "\x01", "\x02"]), max_size=24).map("".join)


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("A\x01b\x02C\x01\x02D\x01e", {"A": "b", "D": "e"}),
        ("", {}),
        ("A\x01b", {"A": "b"}),
        ("A\x01b\x02", {"A": "b"}),
        ("A\x01b\x02\x02\x02", {"A": "b"}),
        ("A\x01b\x02A\x01c\x02", {"A": "c"}),
        ("A\x01b\x02A\x01\x02", {"A": "b"}),
        ("\x01b\x02", {}),
        ("A\x01", {}),
        ("A", {}),
        ("AB\x02", {}),
        ("ABC\x02", {}),
        ("A\x01b\x01c\x02", {"A": "b\x01c"}),
        ("\x01\x01A\x02", {}),
        ("标签\x01值\x02", {"标签": "值"}),
    ],
)
def test_entries_are_read_as_rocketmq_reads_them(text: str, expected: dict[str, str]) -> None:
    assert parse_properties(text) == expected
    assert parse_properties(text.encode()) == expected
    assert parse_properties(memoryview(text.encode())) == expected


def java_parse(text: str) -> dict[str, str]:
    """The parser of MessageDecoder, step by step."""
    found: dict[str, str] = {}
    index = 0
    while index < len(text):
        end = text.find("\x02", index)
        end = len(text) if end < 0 else end
        if end - index >= 3:
            separator = text.find("\x01", index)
            if index < separator < end - 1:
                found[text[index:separator]] = text[separator + 1 : end]
        index = end + 1
    return found


@given(soup)
def test_any_text_is_read_as_rocketmq_reads_it(text: str) -> None:
    assert parse_properties(text) == java_parse(text)


@given(st.binary(max_size=100))
def test_any_bytes_are_read_without_an_error(data: bytes) -> None:
    assert parse_properties(data) == parse_properties(data.decode("utf-8", "replace"))


@given(pairs)
def test_what_is_written_is_read(properties: dict[str, str]) -> None:
    text = format_properties(properties)
    assert parse_properties(text) == properties
    assert list(parse_properties(text)) == list(properties)
    assert encode_properties(properties) == text.encode()
    assert text == "" or text.endswith("\x02")


def test_the_vector_of_two_properties_is_written_in_order() -> None:
    assert encode_properties({"TAGS": "TagA", "K": "V"}) == b"TAGS\x01TagA\x02K\x01V\x02"


@pytest.mark.parametrize(
    ("properties", "complaint"),
    [
        ({"A": "b\x01c"}, "contains 0x01 or 0x02"),
        ({"A\x02": "b"}, "contains 0x01 or 0x02"),
        ({"A": "b", "C": "d\x02"}, "'C'"),
        ({"": "b"}, "empty side"),
        ({"A": ""}, "empty side"),
        ({"A": "\ud800"}, "surrogate"),
    ],
)
def test_what_no_reader_would_get_back_is_refused(
    properties: dict[str, str], complaint: str
) -> None:
    with pytest.raises(IllegalMessage, match=complaint):
        format_properties(properties)
    with pytest.raises(IllegalMessage, match=complaint):
        encode_properties(properties)


def test_the_limit_counts_bytes_not_characters() -> None:
    room = MAX_PROPERTIES_BYTES - len("K\x01\x02")
    assert len(encode_properties({"K": "v" * room})) == MAX_PROPERTIES_BYTES
    for value in ("v" * (room + 1), "值" * (room // 3 + 1)):
        with pytest.raises(IllegalMessage, match="at most 32767"):
            format_properties({"K": value})


@given(soup, st.sampled_from(["A", "B", "AB", "C"]))
def test_a_single_look_up_agrees_with_the_parser(text: str, key: str) -> None:
    found = get_property(text.encode(), key.encode())
    assert (found.decode() if found is not None else None) == parse_properties(text).get(key)


@given(pairs)
def test_a_single_look_up_finds_every_key(properties: dict[str, str]) -> None:
    raw = encode_properties(properties)
    for key, value in properties.items():
        assert get_property(raw, key.encode()) == value.encode()
    assert get_property(raw, b"\x00missing\x00") is None


_KEY_LIKE = st.sampled_from(
    [b"TAGS", b"KEYS", b"UNIQ_KEY", b"XTAGS", b"KEYSX", b"a", b" ", b"\x01", b"\x02", b""]
)


@given(st.lists(_KEY_LIKE).map(b"".join))
def test_the_fast_path_for_indexed_values_finds_what_the_plain_path_finds(text: bytes) -> None:
    plain = tuple(value_of(text, key) for key in (UNIQUE_KEY, KEYS, TAGS))
    assert indexed_values(text) == plain


@pytest.mark.parametrize("key", [b"TAGS", b"KEYS", b"UNIQ_KEY", b"DELAY"])
def test_a_key_that_only_ends_alike_does_not_end_the_search(key: bytes) -> None:
    alike = b"X" + key + b"\x01fake\x02"
    real = key + b"\x01real\x02"
    for text in (real + alike, alike + real, real + alike + alike, alike + real + alike):
        start, stop = find_value(text, key + b"\x01")
        assert text[start:stop] == b"real", text
        assert value_of(text, key + b"\x01") == b"real"
        assert get_property(text, key) == b"real"
    for text in (alike, alike + alike):
        assert find_value(text, key + b"\x01") == (0, 0)
        assert get_property(text, key) is None
    assert indexed_values(real + alike) == indexed_values(real)


def test_what_was_read_can_be_stored_again() -> None:
    text = b"a\x01b\x01c\x02K\x01V\x02"
    assert encode_stored(parse_properties(text)) == text
    with pytest.raises(IllegalMessage, match="take 32768 bytes"):
        encode_stored({"K": "v" * (MAX_PROPERTIES_BYTES - 2)})
