"""Receipt handles and offset lists of pop."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock.errors import ProtocolError
from penstock.protocol.headers.receipts import (
    FlaggedQueue,
    ReceiptHandle,
    format_message_offsets,
    format_order_counts,
    format_start_offsets,
    parse_message_offsets,
    parse_order_counts,
    parse_start_offsets,
)

numbers = st.integers(0, 2**63 - 1)
queues = st.builds(FlaggedQueue, st.integers(0, 2), st.integers(-1, 2**31 - 1))
names = st.text(st.characters(codec="ascii", exclude_characters=" "), min_size=1)


def test_vector_16_a_handle() -> None:
    text = "100 1700000000000 60000 2 0 broker-a 3 103"
    handle = ReceiptHandle(100, 1_700_000_000_000, 60_000, 2, 0, "broker-a", 3, 103)
    assert str(handle) == text
    assert ReceiptHandle.parse(text) == handle


@given(st.builds(ReceiptHandle, *[numbers] * 5, names, numbers, numbers))
def test_a_handle_survives_its_text(handle: ReceiptHandle) -> None:
    assert ReceiptHandle.parse(str(handle)) == handle


@pytest.mark.spec("P21")
@pytest.mark.parametrize("more", ["", " 4096", " 0 4096"], ids=["client", "proxy", "changed"])
def test_items_that_proxies_add_are_ignored(more: str) -> None:
    text = "100 1700000000000 60000 2 0 broker-a 3 103"
    assert ReceiptHandle.parse(text + more) == ReceiptHandle.parse(text)


@pytest.mark.spec("P21")
@pytest.mark.parametrize(
    "text",
    [
        "",
        "100",
        "1 2 3 4 5 b 7",
        "x 2 3 4 5 b 7 8",
        "1 2 3 4 5 b 7 " + "9" * 9999,
    ],
)
def test_a_text_that_is_no_handle_is_refused(text: str) -> None:
    with pytest.raises(ProtocolError, match=r"receipt handle .* expected eight items") as caught:
        ReceiptHandle.parse(text)
    assert len(str(caught.value)) < 250


def test_start_offsets_read_as_the_reference_writes_them() -> None:
    starts = {FlaggedQueue(0, 3): 100, FlaggedQueue(1, 0): 5}
    assert parse_start_offsets("0 3 100;1 0 5") == starts
    assert format_start_offsets(starts) == "0 3 100;1 0 5"


def test_message_offsets_keep_the_order_of_delivery() -> None:
    offsets = {FlaggedQueue(0, 3): [100, 101, 103], FlaggedQueue(1, 0): [5]}
    assert parse_message_offsets("0 3 100,101,103;1 0 5") == offsets
    assert format_message_offsets(offsets) == "0 3 100,101,103;1 0 5"


def test_order_counts_are_per_queue_or_per_message() -> None:
    counts = {(FlaggedQueue(0, 3), None): 2, (FlaggedQueue(0, 3), 103): 1}
    assert parse_order_counts("0 3 2;0 qo3%103 1") == counts
    assert format_order_counts(counts) == "0 3 2;0 qo3%103 1"


@pytest.mark.parametrize("text", [None, ""])
def test_nothing_popped_is_an_empty_table(text: str | None) -> None:
    assert parse_start_offsets(text) == {}
    assert parse_message_offsets(text) == {}
    assert parse_order_counts(text) == {}


@given(st.dictionaries(queues, numbers, max_size=4))
def test_start_offsets_survive_their_text(starts: dict[FlaggedQueue, int]) -> None:
    assert parse_start_offsets(format_start_offsets(starts)) == starts


@given(st.dictionaries(queues, st.lists(numbers, min_size=1, max_size=4), max_size=4))
def test_message_offsets_survive_their_text(offsets: dict[FlaggedQueue, list[int]]) -> None:
    assert parse_message_offsets(format_message_offsets(offsets)) == offsets


@given(st.dictionaries(st.tuples(queues, st.none() | numbers), numbers, max_size=4))
def test_order_counts_survive_their_text(
    counts: dict[tuple[FlaggedQueue, int | None], int],
) -> None:
    assert parse_order_counts(format_order_counts(counts)) == counts


@given(st.text(st.sampled_from("0123 ;,%qo-x"), max_size=20))
def test_noise_gives_a_table_or_a_protocol_error(text: str) -> None:
    for parse in (parse_start_offsets, parse_message_offsets, parse_order_counts):
        try:
            parse(text)
        except ProtocolError as error:
            assert "expected" in str(error)  # noqa: PT017 - some noise is well-formed
