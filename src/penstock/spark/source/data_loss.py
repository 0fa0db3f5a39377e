"""Messages that are gone or damaged: an error, or a warning with failOnDataLoss=false."""

from __future__ import annotations

import logging
from typing import Final

from penstock.columnar.bad_records import BadRecord
from penstock.columnar.decode import Wanted
from penstock.errors import PenstockError, StoreDamaged
from penstock.spark.source.options import ReadOptions
from penstock.spark.source.ranges import Range

log = logging.getLogger(__name__)

_MAX_WARNINGS: Final = 10
"""For one range; a sender may have made thousands of unreadable messages."""


class DataLost(PenstockError):
    """Messages that were to be read are gone."""


def lost(what: str) -> DataLost:
    """The error for a range that is gone."""
    return DataLost(
        what,
        expected="every message between the checkpoint and the latest offset",
        hint="keep messages longer (fileReservedTime), or set option failOnDataLoss to false "
        "to continue with the rest",
    )


def wanted(options: ReadOptions, columns: tuple[str, ...]) -> Wanted:
    """What the decoder builds of each message."""
    return Wanted(
        columns,
        options.exact_tags,
        options.keys,
        options.include_properties,
        options.check_crcs,
    )


class BadRecords:
    """What a task does about the bad records of one range.

    A damaged one fails the task, unless ``failOnDataLoss`` is false. An unreadable one never does:
    its sender would keep the topic from being read for ever.
    """

    def __init__(self, options: ReadOptions, part: Range, store: str) -> None:
        self._fails = options.fail_on_data_loss
        self._part = part
        self._store = store
        self._count = 0

    def __call__(self, bad: BadRecord) -> None:
        part = self._part
        # One without a known offset came first in a pull that began in this range.
        is_known = bad.queue_offset >= 0
        if is_known and not part.low <= bad.queue_offset < part.high:
            return  # another task reads it, or none
        kind = "damaged" if bad.is_damaged else "not readable"
        what = f"{bad.what} of {part.queue} is {kind}: {bad.why}"
        if bad.is_damaged and self._fails:
            raise StoreDamaged(
                what,
                expected="what was stored",
                hint=f"penstock store verify {self._store}; to read the rest without it, set "
                "option failOnDataLoss to false",
            )
        self._count += 1
        if self._count <= _MAX_WARNINGS:
            log.warning("%s", what)
        elif self._count == _MAX_WARNINGS + 1:
            log.warning("%s has more such messages; they are not listed", part.queue)
