"""Signing requests and checking signatures."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock.protocol.acl import access_key, sign, verify

ACCESS, SECRET = "RocketMQ", "12345678"
SEND_FIELDS = {
    **{"a": "pg", "b": "TopicTest", "c": "TBW102", "d": "4", "e": "1", "f": "0"},
    **{"g": "1700000000000", "h": "0", "i": "TAGS\x01TagA\x02", "j": "0"},
    **{"k": "false", "m": "false", "n": "broker-a"},
}
texts = st.text(st.characters(codec="utf-8"), max_size=10)
fields = st.dictionaries(texts, texts, max_size=5)


def test_vector_12a_a_request_without_body() -> None:
    assert sign({"topic": "TopicTest", "queueId": "1"}, b"", ACCESS, SECRET) == {
        "AccessKey": "RocketMQ",
        "Signature": "WuDH0ZqVURR+7gyUb+C65vmx7Jw=",
    }


def test_vector_12b_a_send_with_its_body() -> None:
    signature = sign(SEND_FIELDS, b"Hello", ACCESS, SECRET)["Signature"]
    assert signature == "rjDJX9/qZptJbIcRjD8UpxT4bOQ="


def test_a_body_in_pieces_is_signed_like_the_whole() -> None:
    pieces: list[bytes | memoryview] = [b"He", memoryview(b"llo")]
    assert sign(SEND_FIELDS, pieces, ACCESS, SECRET) == sign(SEND_FIELDS, b"Hello", ACCESS, SECRET)


def test_a_request_without_fields_signs_key_and_body() -> None:
    added = sign(None, b"{}", ACCESS, SECRET)
    assert verify(added, b"{}", SECRET)
    assert not verify(added, b"{ }", SECRET)


def test_a_security_token_is_sent_and_signed() -> None:
    added = sign({"topic": "T"}, b"", ACCESS, SECRET, "token")
    assert added["SecurityToken"] == "token"
    assert added["Signature"] != sign({"topic": "T"}, b"", ACCESS, SECRET)["Signature"]
    assert verify({"topic": "T", **added}, b"", SECRET)
    assert not verify({"topic": "T", **added, "SecurityToken": "other"}, b"", SECRET)


@given(fields, st.binary(max_size=20), texts, texts)
def test_a_signed_request_verifies_with_its_key_only(
    ext: dict[str, str], body: bytes, key: str, secret: str
) -> None:
    signed = {**ext, **sign(ext, body, key, secret)}
    assert verify(signed, body, secret)
    assert not verify(signed, body, secret + "x")
    assert not verify(signed, body + b"x", secret)


def test_a_field_added_after_signing_breaks_the_signature() -> None:
    signed = {"topic": "T", **sign({"topic": "T"}, b"", ACCESS, SECRET)}
    assert not verify({**signed, "bname": "broker-a"}, b"", SECRET)


def test_the_unique_key_mark_may_be_signed_or_not() -> None:
    mark = {"_UNIQUE_KEY_QUERY": "true"}
    query = {"topic": "T", "key": "k"}
    before = {**query, **mark, **sign({**query, **mark}, b"", ACCESS, SECRET)}
    after = {**query, **mark, **sign(query, b"", ACCESS, SECRET)}
    assert verify(before, b"", SECRET)
    assert verify(after, b"", SECRET)
    assert not verify({**after, "_UNIQUE_KEY_QUERY": "true", "key": "other"}, b"", SECRET)


def test_names_are_sorted_as_java_sorts_them() -> None:
    # U+FF5E comes before U+1F600 by character, after its first half in UTF-16.
    one = sign({"\uff5e": "1", "\U0001f600": "2", "A": "0"}, b"", ACCESS, SECRET)
    other = sign({"x": "2", "y": "1", "A": "0"}, b"", ACCESS, SECRET)
    assert one["Signature"] == other["Signature"]


@pytest.mark.parametrize("signature", ["", "not base64", "\u00e9", "W" * 1000])
def test_a_signature_that_is_none_does_not_verify(signature: str) -> None:
    assert not verify({"AccessKey": ACCESS, "Signature": signature}, b"", SECRET)


def test_no_signature_does_not_verify() -> None:
    assert not verify({"topic": "T"}, b"", SECRET)


def test_an_empty_access_key_is_none() -> None:
    assert access_key({"AccessKey": ACCESS}) == ACCESS
    assert access_key({"AccessKey": ""}) is None
    assert access_key({}) is None
    assert access_key(None) is None
