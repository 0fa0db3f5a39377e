"""``read``: a range of a topic, a store directory or an archive as a stream of record batches.

Planning, fetching and decoding are those of the Spark source, which needs no Spark for them.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterable, Iterator, Mapping
from contextlib import closing
from itertools import chain
from typing import Final, Unpack

import pyarrow as pa

from penstock.arrow.archives import is_archive, read_archive
from penstock.client.arguments import Time
from penstock.client.cluster_access import AccessKeywords, ClusterAccess
from penstock.columnar.schema import ALL, arrow_schema
from penstock.errors import InvalidArgument
from penstock.model import MessageQueue
from penstock.spark.access_options import access_options
from penstock.spark.pipelines.files import shown_url
from penstock.spark.source.archive_index import ArchiveIndex
from penstock.spark.source.archive_reading import read_archived
from penstock.spark.source.cluster import Cluster
from penstock.spark.source.fetch import Fetcher
from penstock.spark.source.options import ReadOptions, nested_offsets, parse_read
from penstock.spark.source.positions import OffsetsSource, Positions
from penstock.spark.source.ranges import Range
from penstock.spark.source.seam import SeamOffsets, joined_sides
from penstock.spark.source.store_catalog import StoreCatalog
from penstock.spark.source.store_reading import PathRange, read_ranges

_PATH: Final = re.compile(r"[/\\]|^[.~]|^file:")
"""No name of a topic has any of these."""
_ENDS: Final = {"first": "earliest", "earliest": "earliest", "last": "latest", "latest": "latest"}

Place = str | Time | Mapping[MessageQueue, int]


def read(
    source: str | os.PathLike[str],
    *,
    topic: str | None = None,
    archive: str | os.PathLike[str] | None = None,
    start: Place = "first",
    end: Place = "last",
    columns: Iterable[str] | None = None,
    tags: str = "*",
    keys: Iterable[str] | None = None,
    fail_on_data_loss: bool = True,
    check_crcs: bool = True,
    namesrv: str | Iterable[str] | None = None,
    **keywords: Unpack[AccessKeywords],
) -> pa.RecordBatchReader:
    """Read messages as Arrow record batches, in their order within each queue.

    ``source`` is a topic, or several separated by commas. A path (with a slash, or a `Path`) is a
    store directory or an archive; ``topic`` then selects from a store. With ``archive``, the
    directory of an archive of the topic, what it holds is read from its files and only the rest
    from brokers or the store: one table of all of history. ``start`` and ``end`` (exclusive) are
    ``"first"``, ``"last"``, a store time, or an offset for each queue. What is read is decided at
    the call: messages that come later are not in the result.

    ``columns`` are built in that order, by default all. ``tags`` is an expression such as
    ``"paid || created"``; ``keys`` keeps messages with one of them. Messages that are gone or
    damaged are an error; with ``fail_on_data_loss=False`` they are left out with a warning, and a
    damaged body is null.

    Example:
        duckdb.sql("SELECT tags, count(*) FROM reader GROUP BY tags")
    """
    names = _columns(columns)
    path = os.fspath(source) if _is_path(source) else None
    options = {
        "columns": ",".join(names),
        "tags": tags,
        "failOnDataLoss": str(fail_on_data_loss).lower(),
        "checkCrcs": str(check_crcs).lower(),
        **_position("starting", start),
        **_position("ending", end),
    }
    if keys is not None:
        options["keys"] = _keys(keys)
    if path is None:
        if topic is not None:
            raise InvalidArgument(
                f"topic {topic!r} and a source that is a topic, {os.fspath(source)!r}",
                expected="topic only with a store directory",
            )
        options["topic"] = os.fspath(source)
    elif is_archive(path):
        if archive is not None:
            raise InvalidArgument(
                f"archive {shown_url(os.fspath(archive))!r}, and a source that is one, "
                f"{shown_url(path)!r}",
                expected="a topic or a store directory beside an archive",
            )
        return read_archive(path, parse_read({**options, "path": path}), names, topic)
    else:
        options["path"] = path
        if topic is not None:
            options["topic"] = topic
    if archive is not None:
        options["archive"] = os.fspath(archive)
    access = ClusterAccess.of(namesrv, **keywords)
    parsed = parse_read({**access_options(access), **options})
    batches = _from_topic(parsed, names) if path is None else _from_store(parsed, names)
    return pa.RecordBatchReader.from_batches(arrow_schema(names), batches)


def _from_topic(options: ReadOptions, names: tuple[str, ...]) -> Iterator[pa.RecordBatch]:
    archived, live = _sides(options, Cluster(options.access, options.puller), names)
    return chain(archived, Fetcher(options).batches(live, names))


def _from_store(options: ReadOptions, names: tuple[str, ...]) -> Iterator[pa.RecordBatch]:
    with closing(StoreCatalog(options)) as catalog:
        archived, live = _sides(options, catalog, names)
        cut = [catalog.cut(part) for part in live]
        planned = [PathRange(part, catalog.tail(part)) for part in cut if part.count > 0]
        files = catalog.files()
    return chain(archived, read_ranges(planned, files, options, names))


def _sides(
    options: ReadOptions, live: OffsetsSource, names: tuple[str, ...]
) -> tuple[Iterator[pa.RecordBatch], list[Range]]:
    """The rows that an archive has of what is read, and the ranges that it does not have."""
    needs_queue = options.path is None and options.archive is None
    if options.archive is None:
        ranges = Positions(options, live, needs_queue=needs_queue).batch_ranges()
        return iter(()), [part for part in ranges if part.count > 0]
    index = ArchiveIndex(options.archive)
    offsets = SeamOffsets(index, live, options)
    ranges = Positions(options, offsets, needs_queue=needs_queue).batch_ranges()
    sides = joined_sides(index, offsets, [part for part in ranges if part.count > 0], options)
    return read_archived(index, sides.archived, options, names), sides.live


# --------------------------------------------------------------------------------- the arguments


def _is_path(source: str | os.PathLike[str]) -> bool:
    return not isinstance(source, str) or _PATH.search(source) is not None


def _columns(columns: Iterable[str] | None) -> tuple[str, ...]:
    if columns is None:
        return ALL
    if isinstance(columns, str):
        raise InvalidArgument(f"columns is the text {columns!r}", expected="a list of names")
    names = tuple(columns)
    for name in names:
        if name not in ALL or names.count(name) > 1:
            raise InvalidArgument(f"column {name!r}", expected=f"each once of {', '.join(ALL)}")
    if not names:
        raise InvalidArgument("no columns", expected=f"some of {', '.join(ALL)}")
    return names


def _keys(keys: Iterable[str]) -> str:
    if isinstance(keys, str):
        raise InvalidArgument(f"keys is the text {keys!r}", expected="a list of keys")
    return ",".join(keys)


def _position(which: str, place: Place) -> dict[str, str]:
    """The options of the Spark source for a beginning or an end."""
    import json

    from penstock.client.arguments import timestamp_ms

    if isinstance(place, Mapping):
        return {f"{which}Offsets": json.dumps(nested_offsets(place))}
    if isinstance(place, str) and place.lower() in _ENDS:
        return {f"{which}Offsets": _ENDS[place.lower()]}
    return {f"{which}Timestamp": str(timestamp_ms(place))}
