"""Trace entries: what is written is what Java reads, and what Java writes is read."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.support.trace_entries import decode_traces

from penstock.protocol.traces import (
    ConsumeBegun,
    ConsumeEnded,
    Published,
    Trace,
    TransactionEnded,
    encode_trace,
)

words = st.text(st.characters(exclude_characters="\x01\x02", exclude_categories=["Cs"])).filter(
    lambda text: text != "null"
)
numbers = st.integers(0, 2**62)
traces = st.one_of(
    st.builds(
        Published,
        numbers,
        *[words] * 7,
        numbers,
        numbers,
        st.integers(0, 4),
        words,
        st.booleans(),
    ),
    st.builds(ConsumeBegun, numbers, *[words] * 4, numbers, words),
    st.builds(
        ConsumeEnded, words, words, numbers, st.booleans(), words, st.integers(0, 4), numbers, words
    ),
    st.builds(
        TransactionEnded, numbers, *[words] * 7, st.integers(0, 4), words, words, st.booleans()
    ),
)


@given(st.lists(traces, max_size=5))
def test_what_is_written_is_read_back(entries: list[Trace]) -> None:
    body = "".join(map(encode_trace, entries)).encode()
    assert decode_traces(body) == entries


@given(st.binary(max_size=200) | st.text("\x01\x02PubSubBeforAt019-").map(str.encode))
def test_what_makes_no_sense_is_skipped(body: bytes) -> None:
    decode_traces(body)


def test_an_entry_is_written_field_by_field_as_java_does() -> None:
    sent = Published(
        1700000000020, "DefaultRegion", "shop", "orders", "ID", "paid", "", "10.0.1.1:10911", 3, 2,
        0, "OFFSET", True,
    )  # fmt: skip
    assert encode_trace(sent) == "\x01".join(
        ["Pub", "1700000000020", "DefaultRegion", "shop", "orders", "ID", "paid", "null",
         "10.0.1.1:10911", "3", "2", "0", "OFFSET", "true\x02"]
    )  # fmt: skip


@pytest.mark.parametrize(
    ("line", "expected"),
    [
        # Without keys, and with the offset id left out as before 4.7.
        (
            "Pub|1|R|g|t|ID|null|k|h|3|2|0|true",
            Published(1, "R", "g", "t", "ID", "", "k", "h", 3, 2, 0, "", True),
        ),
        ("SubBefore|1|R|g|REQ|ID|2|null", ConsumeBegun(1, "R", "g", "REQ", "ID", 2, "")),
        ("SubAfter|REQ|ID|5|false|k|4", ConsumeEnded("REQ", "ID", 5, False, "k", 4)),
        ("SubAfter|REQ|ID|5|true|k|0|9|g", ConsumeEnded("REQ", "ID", 5, True, "k", 0, 9, "g")),
        (
            "EndTransaction|1|R|g|t|ID|null|k|h|2|TX|COMMIT_MESSAGE|false",
            TransactionEnded(
                1, "R", "g", "t", "ID", "", "k", "h", 2, "TX", "COMMIT_MESSAGE", False
            ),
        ),
    ],
)
def test_what_releases_of_java_write_is_read(line: str, expected: Trace) -> None:
    assert decode_traces((line.replace("|", "\x01") + "\x02").encode()) == [expected]
