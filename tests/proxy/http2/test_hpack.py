"""Header blocks: the examples of the standard, and what is refused."""

from __future__ import annotations

import random

import pytest

from penstock.proxy.http2.hpack import (
    MAX_LIST_BYTES,
    HeaderDecoder,
    HeaderError,
    MalformedHeaders,
    TooManyHeaders,
    decode_huffman,
    literal,
)

SCHEME = {":method": "GET", ":scheme": "http", ":path": "/", ":authority": "www.example.com"}
PLAIN = (
    "828684410f7777772e6578616d706c652e636f6d",
    "828684be58086e6f2d6361636865",
    "828785bf400a637573746f6d2d6b65790c637573746f6d2d76616c7565",
)
HUFFMAN = (
    "828684418cf1e3c2e5f23a6ba0ab90f4ff",
    "828684be5886a8eb10649cbf",
    "828785bf408825a849e95ba97d7f8925a849e95bb8e8b4bf",
)


@pytest.mark.parametrize("blocks", [PLAIN, HUFFMAN], ids=["plain", "huffman"])
def test_requests_of_the_standard(blocks: tuple[str, ...]) -> None:
    decoder = HeaderDecoder()
    first, second, third = (decoder.decode(bytes.fromhex(block)) for block in blocks)
    assert first == SCHEME
    assert second == {**SCHEME, "cache-control": "no-cache"}
    assert third == {
        ":method": "GET",
        ":scheme": "https",
        ":path": "/index.html",
        ":authority": "www.example.com",
        "custom-key": "custom-value",
    }


@pytest.mark.parametrize("character", ["\0", "\r", "\n"])
def test_values_without_line_ends(character: str) -> None:
    decoder = HeaderDecoder()
    block = b"\x40\x01a\x03x" + character.encode() + b"y"
    for _ in range(2):
        with pytest.raises(MalformedHeaders):
            decoder.decode(block)
    # The table is that of the client all the same, and has nothing of it.
    assert decoder.decode(b"\xbe") == {"a": "x y"}


def test_a_block_means_what_the_table_says_at_its_time() -> None:
    decoder = HeaderDecoder()
    decoder.decode(b"\x40\x01a\x01x")
    newest = b"\xbe"
    assert decoder.decode(newest) == {"a": "x"}
    assert decoder.decode(newest) == {"a": "x"}
    decoder.decode(b"\x40\x01b\x01y")
    assert decoder.decode(newest) == {"b": "y"}
    assert decoder.decode(b"\xbf") == {"a": "x"}
    # The table shrinks to nothing, and may grow again.
    assert decoder.decode(b"\x20") == {}
    with pytest.raises(HeaderError):
        decoder.decode(newest)
    decoder.decode(b"\x3f\xe1\x1f\x40\x01c\x01z")
    assert decoder.decode(newest) == {"c": "z"}


def test_the_table_has_a_bound() -> None:
    decoder = HeaderDecoder()
    value = bytes((0x7F, 0xE8, 0x06)) + b"v" * 999  # 127 + 872
    for number in range(50):
        decoder.decode(b"\x40\x04%04d" % number + value)
    assert list(decoder.decode(b"\xbe")) == ["0049"]
    # Three entries of 1035 bytes each fit into 4096.
    assert list(decoder.decode(b"\xc0")) == ["0047"]
    with pytest.raises(HeaderError):
        decoder.decode(b"\xc1")


def test_every_place_of_a_long_table_is_found() -> None:
    decoder = HeaderDecoder()
    names = [f"n{number}" for number in range(100)]
    for name in names:
        decoder.decode(b"\x40" + literal(name, "v")[1:])
    # The static table has 61 entries, and numbers from 127 on have a second byte.
    for index, name in enumerate(reversed(names), 62):
        place = bytes((0x80 | index,)) if index < 127 else bytes((0xFF, index - 127))
        assert decoder.decode(place) == {name: "v"}


def test_headers_of_ours_are_read() -> None:
    text = "x" * 300
    assert HeaderDecoder().decode(literal("name", "value") + literal("long", text)) == {
        "name": "value",
        "long": text,
    }


def test_a_list_that_is_too_long_spoils_nothing() -> None:
    decoder = HeaderDecoder()
    big = literal("a", "x" * 1000)
    assert decoder.decode(b"\x40\x01k\x01v") == {"k": "v"}
    with pytest.raises(TooManyHeaders):
        decoder.decode(big * (MAX_LIST_BYTES // 1000) + b"\x40\x01l\x01w")
    assert decoder.decode(b"\xbe\xbf") == {"l": "w", "k": "v"}


@pytest.mark.parametrize(
    "block",
    [
        "80",  # the index 0
        "ff",  # a number is cut off
        "ffffffffffffffff7f",  # a number is too long
        "c6",  # an index that is not in the table
        "0001",  # a string is cut off
        "000161",
        "00017f",
        "3fe2ff1f",  # a table larger than allowed
        "823f",
        "8220",  # a size after a header
        "000084ffffffff",  # Huffman: the end
        "000081ff",  # eight bits of padding
        "00008100",  # padding of zeros
    ],
)
def test_bad_blocks(block: str) -> None:
    with pytest.raises(HeaderError):
        HeaderDecoder().decode(bytes.fromhex(block))


def test_random_blocks() -> None:
    chance = random.Random(3)
    read = 0
    for _ in range(3000):
        decoder = HeaderDecoder()
        block = bytearray(chance.choice(PLAIN + HUFFMAN).encode() if chance.random() < 0.1 else b"")
        block += chance.randbytes(chance.randrange(60))
        try:
            decoder.decode(bytes(block))
            read += 1
        except (HeaderError, MalformedHeaders, TooManyHeaders):
            pass
    assert read


def test_all_bytes_have_a_huffman_code() -> None:
    # "0" to "9" have codes of 5 and 6 bits, so a text of theirs has every position of a byte.
    assert decode_huffman(bytes.fromhex("089a9659b6ddf1dfd7")[:0]) == b""
    assert decode_huffman(bytes.fromhex("d07abe941054d444a8200595040b8166e082a62d1bff")) == (
        b"Mon, 21 Oct 2013 20:13:21 GMT"
    )
    assert decode_huffman(bytes.fromhex("9d29ad171863c78f0b97c8e9ae82ae43d3")) == (
        b"https://www.example.com"
    )


def test_a_list_that_is_too_long_changes_what_known_blocks_mean() -> None:
    decoder = HeaderDecoder()
    decoder.decode(b"\x40\x01k\x01v")
    newest = b"\xbe"
    assert decoder.decode(newest) == {"k": "v"}
    long = b"\x40\x01k\x01w" + literal("a", "x" * 1000) * (MAX_LIST_BYTES // 1000)
    with pytest.raises(TooManyHeaders):
        decoder.decode(long)
    assert decoder.decode(newest) == {"k": "w"}
