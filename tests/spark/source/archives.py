"""Archives as ``penstock.spark.archive`` leaves them, made without Spark."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq

from penstock.columnar.schema import ALL, arrow_schema
from penstock.spark.pipelines.archive.directory import opened
from penstock.spark.pipelines.archive.state import STAGING, DataFile
from penstock.spark.pipelines.files import open_files
from penstock.spark.pipelines.spans import Span


def rows_of(offsets: Sequence[int]) -> pa.Table:
    """Rows of one queue with all columns, one a second."""
    start = datetime(2026, 11, 16, tzinfo=UTC)
    rows = [
        {
            "topic": "orders",
            "broker": "broker-a",
            "queue_id": 0,
            "offset": offset,
            "keys": [f"key-{offset}"],
            "body": b"body",
            "properties": {"KEYS": f"key-{offset}"},
            "store_timestamp": start + timedelta(seconds=offset, microseconds=123_456),
        }
        for offset in offsets
    ]
    return pa.Table.from_pylist(rows, arrow_schema(ALL))


def archive_rows(
    directory: Path,
    parts: Sequence[pa.Table],
    *,
    topic: str = "orders",
    gaps: Sequence[Span] = (),
    with_spans: bool = True,
    epochs: Mapping[tuple[str, int], int] | None = None,
) -> Path:
    """Add files with these rows to an archive, one commit each."""
    with opened(open_files(directory), topic) as archive:
        for rows in parts:
            state = archive.state.with_epochs(epochs or {})
            number = state.version
            (directory / STAGING).mkdir(parents=True, exist_ok=True)
            staged = f"{STAGING}/{number}.parquet"
            pq.write_table(rows, directory / staged, row_group_size=64)
            path = f"day=2026-11-16/part-{number}.parquet"
            times = [int(at.timestamp() * 1000) for at in rows["store_timestamp"].to_pylist()]
            spans = spans_of(rows)
            file = DataFile(
                path,
                "2026-11-16",
                rows.num_rows,
                (directory / staged).stat().st_size,
                min(times),
                max(times),
                tuple(spans) if with_spans else (),
            )
            ends = {span.queue: span for span in (*gaps, *spans)}
            archive.commit(state.after_chunk(ends.values(), [file], [(staged, path)], gaps))
            gaps = ()
    return directory


def spans_of(rows: pa.Table) -> list[Span]:
    """The first and last offset of each queue."""
    found = rows.group_by(["broker", "queue_id"]).aggregate([("offset", "min"), ("offset", "max")])
    return [
        Span(row["broker"], row["queue_id"], row["offset_min"], row["offset_max"] + 1)
        for row in found.to_pylist()
    ]


def compact(directory: Path, rows: pa.Table) -> None:
    """Replace all files by one with these rows, as a compaction does."""
    with opened(open_files(directory), "orders") as archive:
        state = archive.state
        (directory / STAGING).mkdir(parents=True, exist_ok=True)
        staged = f"{STAGING}/compacted.parquet"
        pq.write_table(rows, directory / staged)
        path = f"day=2026-11-16/part-{state.version}-all.parquet"
        first, last = state.files[0].from_ms, state.files[-1].to_ms
        size = (directory / staged).stat().st_size
        spans = tuple(spans_of(rows))
        new = DataFile(path, "2026-11-16", rows.num_rows, size, first, last, spans)
        archive.commit(state.after_compaction(state.files, [new], [(staged, path)]))
