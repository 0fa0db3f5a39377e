"""Messages that were gone before they could be archived: readers of an archive must know. Pure.

A gap has offsets, but no times: its messages were never read. Its queue has files before and after
it, and their times are its limits. Where these do not decide, the gap counts as within the time
asked.
"""

from __future__ import annotations

import logging

from penstock.spark.pipelines.archive.state import State
from penstock.spark.pipelines.spans import Span
from penstock.spark.source.data_loss import DataLost

log = logging.getLogger(__name__)


def gaps_within(state: State, start_ms: int | None, end_ms: int | None) -> list[Span]:
    """The gaps that may have messages of a range of store time."""
    return [gap for gap in state.gaps if _may_be_within(state, gap, start_ms, end_ms)]


def _may_be_within(state: State, gap: Span, start_ms: int | None, end_ms: int | None) -> bool:
    beside = [
        (file, span) for file in state.files for span in file.spans if span.queue == gap.queue
    ]
    if end_ms is not None:
        earliest = max((file.from_ms for file, span in beside if span.start < gap.start), default=0)
        if earliest >= end_ms:
            return False
    if start_ms is not None:
        latest = [file.to_ms for file, span in beside if span.end > gap.end]
        if latest and min(latest) < start_ms:
            return False
    return True


def check_gaps(
    state: State,
    archive: str,
    start_ms: int | None,
    end_ms: int | None,
    *,
    fail_on_data_loss: bool,
) -> None:
    """Raise `DataLost` for gaps within a range of store time, or warn."""
    gaps = gaps_within(state, start_ms, end_ms)
    if not gaps:
        return
    first = gaps[0]
    more = f", and {len(gaps) - 1} more such gaps" if len(gaps) > 1 else ""
    what = (
        f"messages {first.start} to {first.end - 1} of queue {first.queue_id} of broker "
        f"{first.broker} were gone before they could be archived in {archive}{more}"
    )
    if fail_on_data_loss:
        raise DataLost(
            what,
            expected="every message of the archived queues",
            hint="fail_on_data_loss=False (--allow-gaps) reads the rest without them",
        )
    log.warning("%s; left out", what)
