"""Spark: the streams that commit to groups, and archives with what they lack of their topics."""

from __future__ import annotations

import asyncio
from collections import Counter
from dataclasses import dataclass

from starlette.responses import Response
from starlette.routing import Route

from penstock.admin import QueueRange
from penstock.console.shapes import ArchiveJson, SparkJson, StreamJson
from penstock.console.view import Answer
from penstock.console.visit import Visit, page
from penstock.errors import PenstockError
from penstock.model.names import group_of_stream
from penstock.spark.pipelines.archive.directory import load_existing
from penstock.spark.pipelines.archive.state import Plan, State, plan
from penstock.spark.pipelines.files import open_files

ARCHIVE_SECONDS = 5.0


@dataclass(frozen=True, slots=True)
class Archive:
    """An archive and what its topic has beyond it; or why that is not known."""

    directory: str
    state: State | None = None
    plan: Plan | None = None
    problem: str | None = None


async def spark(visit: Visit) -> Response:
    """Running streams with their lag, and the archives that the console was given."""
    view = visit.view
    producers, archives = await asyncio.gather(view.attempt(view.producers()), _archives(visit))
    counts: Counter[str] = Counter()
    for name, _ in producers.value.rows if producers.value else ():
        if (group := group_of_stream(name)) is not None:
            counts[group] += 1
    streams = [await _stream(visit, group, counts[group]) for group in sorted(counts)]
    return visit.answer(
        "spark.html",
        lambda: SparkJson(streams=streams, archives=[_archive_json(one) for one in archives]),
        streams=streams,
        producers=producers,
        archives=[_archive_json(one) for one in archives],
        silent=sorted(producers.value.silent) if producers.value else [],
    )


async def _stream(visit: Visit, group: str, count: int) -> StreamJson:
    view = visit.view
    lag = await view.attempt(view.group_lag(group))
    row = lag.value.rows[0] if lag.value and lag.value.rows else None
    queues = row.queues if row else ()
    late = [queue.last_timestamp for queue in queues if queue.lag]
    # A stream commits with each batch, so the rate is that of some batches.
    series = f"read:{group}"
    if row is not None:
        view.history.watch(series)
        view.history.add(series, sum(queue.committed for queue in queues))
    rate = view.history.slope(series)
    return {
        "group": group,
        "topics": sorted({queue.topic for queue in queues}),
        "streams": count,
        "rate": None if rate is None else round(rate, 1),
        "lag": None if row is None else row.lag,
        "last_ms": max((queue.last_timestamp for queue in queues), default=0) or None,
        "behind_since_ms": min(late, default=0) or None,
    }


async def _archives(visit: Visit) -> list[Archive]:
    view = visit.view
    states = await view.attempt_all(
        visit.options.archives,
        lambda directory: view.get(
            ("archive", directory), ARCHIVE_SECONDS, lambda: asyncio.to_thread(_load, directory)
        ),
    )
    topics = {answer.value.topic for answer in states.values() if answer.value}
    ranges = await view.attempt_all(sorted(topics), view.topic_stats)
    return [_archive(name, answer, ranges) for name, answer in states.items()]


def _load(directory: str) -> State:
    return load_existing(open_files(directory))


def _archive(
    directory: str, answer: Answer[State], ranges: dict[str, Answer[list[QueueRange]]]
) -> Archive:
    state = answer.value
    if state is None:
        return Archive(directory, problem=answer.error)
    held = ranges[state.topic]
    if held.value is None:
        return Archive(directory, state, problem=held.error)
    try:
        return Archive(directory, state, plan(state, held.value, fail_on_data_loss=False))
    except PenstockError as error:
        return Archive(directory, state, problem=str(error))


def _archive_json(one: Archive) -> ArchiveJson:
    state, files = one.state, one.state.files if one.state else ()
    lost = (*state.gaps, *(one.plan.gaps if one.plan else ())) if state else ()
    return {
        "directory": one.directory,
        "topic": state.topic if state else None,
        "rows": state.rows if state else None,
        "bytes": sum(file.bytes for file in files) if state else None,
        "files": len(files) if state else None,
        "days": len({file.day for file in files}) if state else None,
        "from_ms": min((file.from_ms for file in files), default=None),
        "to_ms": max((file.to_ms for file in files), default=None),
        "behind": one.plan.count if one.plan else None,
        "gaps": sum(gap.count for gap in lost) if state else None,
        "problem": one.problem,
    }


ROUTES = [Route("/spark", page(spark, SparkJson))]
