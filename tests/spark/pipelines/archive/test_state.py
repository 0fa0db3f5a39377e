"""What an archive is to read next, in which portions, and which files it writes together."""

from __future__ import annotations

import orjson
import pytest

from penstock.admin.reports import QueueRange
from penstock.errors import InvalidArgument, NotFound, StoreDamaged
from penstock.spark.pipelines.archive.state import (
    DataFile,
    State,
    compactions,
    from_json,
    plan,
    state_versions,
    to_json,
)
from penstock.spark.pipelines.spans import Span, chunks

MIB = 1 << 20


def held(queue_id: int, low: int, high: int) -> QueueRange:
    return QueueRange("orders", "broker-a", queue_id, low, high, 0)


def file(day: str, number: int, size: int) -> DataFile:
    return DataFile(f"day={day}/part-{number}.parquet", day, 10, size, 0, 1)


def test_a_first_run_takes_everything_that_the_queues_hold() -> None:
    work = plan(State("orders"), [held(1, 0, 0), held(0, 5, 9)])
    assert work.spans == (Span("broker-a", 0, 5, 9),)
    assert work.count == 4
    assert work.gaps == ()


def test_a_later_run_begins_where_the_last_one_ended() -> None:
    state = State("orders").after_chunk([Span("broker-a", 0, 0, 7)], (), ())
    assert plan(state, [held(0, 2, 9), held(1, 0, 1)]).spans == (
        Span("broker-a", 0, 7, 9),
        Span("broker-a", 1, 0, 1),
    )


def test_messages_that_are_gone_stop_the_run_unless_a_gap_is_allowed() -> None:
    state = State("orders").after_chunk([Span("broker-a", 0, 0, 7)], (), ())
    with pytest.raises(NotFound, match=r"3 messages from offset 7 of queue 0 .*'orders'.*deleted"):
        plan(state, [held(0, 10, 12)])
    work = plan(state, [held(0, 10, 12)], fail_on_data_loss=False)
    assert work.gaps == (Span("broker-a", 0, 7, 10),)
    assert work.spans == (Span("broker-a", 0, 10, 12),)


def test_the_gaps_of_all_runs_are_kept() -> None:
    first, second = Span("broker-a", 0, 7, 10), Span("broker-a", 0, 20, 21)
    state = State("orders").after_chunk([first], (), (), [first])
    state = state.after_chunk([second], (), (), [second]).after_chunk((), (), ())
    assert state.after_compaction((), (), ()).gaps == (first, second)


def test_a_topic_that_was_made_anew_is_not_mixed_with_the_old_one() -> None:
    state = State("orders").after_chunk([Span("broker-a", 0, 0, 7)], (), ())
    with pytest.raises(InvalidArgument, match="up to offset 7, the queue ends at 3"):
        plan(state, [held(0, 0, 3)])


def test_a_topic_that_was_made_anew_is_recognised_by_its_epoch() -> None:
    queue = "broker-a", 0
    state = State("orders").with_epochs({queue: 500})
    state = state.after_chunk([Span(*queue, 0, 7)], (), ())
    assert plan(state, [held(0, 2, 9)], epochs={queue: 500}).count == 2
    assert plan(state, [held(0, 2, 9)], epochs={}).count == 2, "a slave does not answer it"
    with pytest.raises(InvalidArgument, match=r"'orders' was deleted and created again since"):
        plan(state, [held(0, 2, 9)], epochs={queue: 501})
    # An archive of an earlier program, and a queue that is not archived, have no epoch.
    older = State("orders").after_chunk([Span(*queue, 0, 7)], (), ())
    assert plan(older, [held(0, 2, 9), held(1, 0, 1)], epochs={queue: 1, ("broker-a", 1): 1})
    assert from_json(to_json(state), "here") == state
    document = orjson.loads(to_json(older))
    del document["epochs"]
    assert from_json(orjson.dumps(document), "here") == older


@pytest.mark.parametrize("rows", [1, 2, 3, 7, 100, 1000])
def test_chunks_are_disjoint_complete_and_not_larger_than_asked(rows: int) -> None:
    spans = [Span("a", 0, 10, 60), Span("a", 1, 0, 3), Span("b", 0, 5, 105)]
    cut = chunks(spans, rows)
    for span in spans:
        parts = [part for chunk in cut for part in chunk if part.queue == span.queue]
        assert [part.start for part in parts] == [span.start, *(p.end for p in parts[:-1])]
        assert parts[-1].end == span.end
    # Rounding may put one message more into a chunk for each queue.
    assert max(sum(part.count for part in chunk) for chunk in cut) <= rows + len(spans)
    assert all(part.count for chunk in cut for part in chunk)


def test_nothing_to_read_is_no_chunk() -> None:
    assert chunks([], 10) == []


def test_a_day_that_is_over_is_left_with_few_files_and_the_newest_waits() -> None:
    old = [file("2026-11-14", number, MIB) for number in range(2)]
    newest = [file("2026-11-15", number, MIB) for number in range(3)]
    big = file("2026-11-14", 9, 100 * MIB)
    chosen = compactions([*newest, big, *old], target_bytes=128 * MIB, newest_after=4)
    assert chosen == [tuple(old)]
    assert compactions([*newest, *old], target_bytes=128 * MIB, newest_after=3) == [
        tuple(old),
        tuple(newest),
    ]


def test_one_small_file_is_left_alone() -> None:
    files = [file("2026-11-14", 0, MIB), file("2026-11-15", 0, MIB)]
    assert compactions(files, target_bytes=128 * MIB, newest_after=16) == []


def test_a_state_reads_back_as_it_was_written() -> None:
    state = State("orders").after_chunk(
        [Span("broker-a", 0, 0, 7), Span("broker-b", 3, 5, 6)],
        [file("2026-11-14", 0, 5)],
        [("_penstock/staging/x/part", "day=2026-11-14/part-0.parquet")],
        [Span("broker-a", 0, 0, 2)],
    )
    state = state.after_compaction(state.files, [file("2026-11-14", 1, 9)], [("a", "b")])
    assert from_json(to_json(state), "here") == state


@pytest.mark.parametrize(
    "text", [b"", b"[]", b'{"format": 1}', to_json(State("x"))[:40], b'{"format":1,"topic":1}']
)
def test_a_damaged_state_is_named_and_never_taken_for_an_empty_one(text: bytes) -> None:
    with pytest.raises(StoreDamaged, match="archive state /some/where cannot be read"):
        from_json(text, "/some/where")


def test_a_format_of_the_future_is_refused() -> None:
    with pytest.raises(InvalidArgument, match="has format 2; expected format 1"):
        from_json(to_json(State("x")).replace(b'"format": 1', b'"format": 2'), "here")


def test_only_state_files_count_as_states() -> None:
    names = ["state-000000000010.json", "state-000000000009.json", "lock", ".state-1.json.ab"]
    assert state_versions(names) == [9, 10]
