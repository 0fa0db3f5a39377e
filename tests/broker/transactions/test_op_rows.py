"""Op records made as rows are those that are made one by one."""

from __future__ import annotations

import tempfile
from collections.abc import Sequence
from pathlib import Path

from hypothesis import given, settings
from hypothesis import strategies as st

from penstock.broker.transactions.half_records import closing
from penstock.broker.transactions.op_rows import ENOUGH, closing_rows
from penstock.model.names import OP_HALF_TOPIC
from penstock.store import MessageStore, StoreConfig

HOST = b"\x7f\0\0\1\0\0\x2a\x9f"
NOW_MS = 1_700_000_000_123
CONFIG = StoreConfig(mapped_file_size_commit_log=1 << 14, mapped_file_size_consume_queue=200)

offsets = st.integers(0, 10**12).flatmap(
    lambda first: st.lists(st.integers(first, first + 30), min_size=1, max_size=40)
)


def stored(root: Path, turns: Sequence[Sequence[int]], *, by_rows: bool) -> dict[str, bytes]:
    """The log and the queue of a store after these turns."""
    store = MessageStore(root, CONFIG, time_ms=lambda: NOW_MS + 5)
    store.open()
    for turn in turns:
        rows = closing_rows(turn, NOW_MS, HOST) if by_rows else None
        if rows is None:
            appended = [store.append(draft) for draft in closing(turn, NOW_MS, HOST)]
            first = appended[0].queue_offset
        else:
            first = store.append_rows(OP_HALF_TOPIC, 0, rows)
        store.write()
        assert store.max_offset(OP_HALF_TOPIC, 0) == first + len(turn)
    store.close()
    return {
        str(path.relative_to(root)): path.read_bytes()
        for kind in ("commitlog", "consumequeue")
        for path in sorted((root / kind).rglob("*"))
        if path.is_file()
    }


@settings(max_examples=25, deadline=None)
@given(st.lists(offsets, min_size=1, max_size=4))
def test_rows_leave_the_same_files(turns: list[list[int]]) -> None:
    with tempfile.TemporaryDirectory() as one, tempfile.TemporaryDirectory() as other:
        by_rows = stored(Path(one), turns, by_rows=True)
        assert by_rows == stored(Path(other), turns, by_rows=False)


def test_usual_offsets_make_rows() -> None:
    assert closing_rows(range(100, 100 + ENOUGH), NOW_MS, HOST) is not None
    # Few records, numbers of several lengths, or the address of an IPv6 host.
    assert closing_rows(range(100, 99 + ENOUGH), NOW_MS, HOST) is None
    assert closing_rows(range(90, 90 + ENOUGH), NOW_MS, HOST) is None
    assert closing_rows(range(100, 100 + ENOUGH), NOW_MS, bytes(20)) is None
