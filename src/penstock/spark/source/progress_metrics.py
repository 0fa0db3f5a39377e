"""How far a stream is behind, from its progress: Spark gives sources in Python no metrics. Pure."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

from penstock.errors import InvalidArgument
from penstock.spark.source.options import offsets_of

if TYPE_CHECKING:
    from pyspark.sql.streaming.listener import StreamingQueryProgress
    from pyspark.sql.streaming.query import StreamingQuery


def offsets_behind_latest(
    stream: StreamingQuery | StreamingQueryProgress | dict[str, Any],
) -> list[dict[str, float]]:
    """How many messages each source of a stream is behind, under the names of Kafka's source.

    Takes a query, its progress, or the progress as a dictionary. For each source of format
    ``penstock``, in their order: ``minOffsetsBehindLatest``, ``maxOffsetsBehindLatest`` and
    ``avgOffsetsBehindLatest`` over its queues, and ``sumOffsetsBehindLatest``. Kafka's source has
    the first three in ``metrics``, which Spark leaves empty for sources in Python. A query without
    progress so far has none.

    Example:
        offsets_behind_latest(query)[0]["maxOffsetsBehindLatest"]
    """
    progress: Any = getattr(stream, "lastProgress", stream)
    if progress is None:
        return []
    found = []
    for source in _read(progress)["sources"]:
        end, latest = (_offsets(source.get(key)) for key in ("endOffset", "latestOffset"))
        if end is None:
            continue
        # Before the first report there is nothing later that is known.
        behind = [max(0, at - end.get(queue, 0)) for queue, at in (latest or end).items()] or [0]
        found.append(
            {
                "minOffsetsBehindLatest": float(min(behind)),
                "maxOffsetsBehindLatest": float(max(behind)),
                "avgOffsetsBehindLatest": sum(behind) / len(behind),
                "sumOffsetsBehindLatest": float(sum(behind)),
            }
        )
    return found


def _read(progress: Any) -> dict[str, Any]:
    if isinstance(progress, dict):
        document: Any = progress
    else:
        text = getattr(progress, "json", None)
        document = json.loads(text) if isinstance(text, str) else None
    if not isinstance(document, dict) or not isinstance(document.get("sources"), list):
        raise InvalidArgument(
            f"progress of type {type(progress).__name__}",
            expected="a streaming query, its lastProgress or that of a listener's event",
        )
    return document


def _offsets(written: object) -> dict[Any, int] | None:
    """The offsets of a source of ours; None: it is another's, or there are none yet."""
    if isinstance(written, str):
        written = json.loads(written)
    if not isinstance(written, dict) or not isinstance(written.get("offsets"), dict):
        return None
    return offsets_of(written["offsets"])
