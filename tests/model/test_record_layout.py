"""The layout of a record: derived structs and offsets against RocketMQ's numbers."""

from __future__ import annotations

import pytest

from penstock.model.record_layout import (
    BODY_POSITION,
    BORN_HOST_V6,
    HEADS,
    ITEM_HEAD,
    MIN_ITEM_BYTES,
    MIN_RECORD_BYTES,
    STORE_HOST_V6,
    head_offset,
    head_part,
    head_span,
    head_struct,
    head_structs,
)


@pytest.mark.parametrize(
    ("name", "offset"),
    [
        ("size", 0),
        ("magic", 4),
        ("queue_id", 12),
        ("queue_offset", 20),
        ("log_position", 28),
        ("sys_flag", 36),
        ("born_host", 48),
        ("store_timestamp", 56),
        ("store_host", 64),
        ("reconsume_times", 72),
        ("body_length", 84),
    ],
)
def test_a_field_is_where_rocketmq_puts_it(name: str, offset: int) -> None:
    assert head_offset(name) == offset
    assert head_span(name).start == offset


def test_wide_hosts_move_the_fields_behind_them() -> None:
    assert head_offset("store_timestamp", BORN_HOST_V6) == 68
    assert head_offset("store_timestamp", STORE_HOST_V6) == 56
    assert [head.size for head in HEADS] == [88, 100, 100, 112]
    assert [head.size for head in head_structs("size")] == [88, 100, 100, 112]


def test_the_smallest_record_and_batch_item() -> None:
    assert (BODY_POSITION, MIN_RECORD_BYTES) == (88, 91)
    assert (ITEM_HEAD.size, MIN_ITEM_BYTES) == (20, 22)


def test_a_selection_reads_only_its_fields_and_covers_the_whole_head() -> None:
    values = (91, 1, 2, 3, 4, 5, 6, 0, 8, b"b" * 8, 10, b"s" * 8, 12, 13, 14)
    head = HEADS[0].pack(*values)
    assert head_struct("queue_id", "store_timestamp").unpack(head) == (3, 10)
    assert head_part("queue_id", "log_position").unpack(head[12:36]) == (3, 4, 5, 6)
