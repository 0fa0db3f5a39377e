"""The data pipeline on Spark: source, sink, handlers on executors, archive, replay and repair.

Names are imported when they are first used: ``penstock.spark.register`` does not load the reports.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Final

from penstock.errors import MissingPackage

if TYPE_CHECKING:
    from penstock.columnar.bodies.avro import Avro as Avro
    from penstock.columnar.bodies.protobuf import Protobuf as Protobuf
    from penstock.spark.handlers.consume import consume as consume
    from penstock.spark.pipelines.archive.archive import archive as archive
    from penstock.spark.pipelines.archive.reading import read_archive as read_archive
    from penstock.spark.pipelines.dead_letters import dead_letters as dead_letters
    from penstock.spark.pipelines.decode import decode as decode
    from penstock.spark.pipelines.redrive import redrive as redrive
    from penstock.spark.pipelines.redrive import redrive_audit as redrive_audit
    from penstock.spark.pipelines.replay import replay as replay
    from penstock.spark.pipelines.report.group_watch import GroupWatch as GroupWatch
    from penstock.spark.pipelines.report.report import report as report
    from penstock.spark.session_setup.registration import register as register
    from penstock.spark.session_setup.tuned_session import session as session
    from penstock.spark.sink.batch_writer import batch_writer as batch_writer
    from penstock.spark.sink.deduplication import deduplicate as deduplicate
    from penstock.spark.source.progress_metrics import (
        offsets_behind_latest as offsets_behind_latest,
    )

_PIPELINES: Final = "penstock.spark.pipelines"
_HOMES: Final = {
    "Avro": "penstock.columnar.bodies.avro",
    "Protobuf": "penstock.columnar.bodies.protobuf",
    "GroupWatch": f"{_PIPELINES}.report.group_watch",
    "archive": f"{_PIPELINES}.archive.archive",
    "batch_writer": "penstock.spark.sink.batch_writer",
    "consume": "penstock.spark.handlers.consume",
    "deduplicate": "penstock.spark.sink.deduplication",
    "dead_letters": f"{_PIPELINES}.dead_letters",
    "decode": f"{_PIPELINES}.decode",
    "offsets_behind_latest": "penstock.spark.source.progress_metrics",
    "read_archive": f"{_PIPELINES}.archive.reading",
    "redrive": f"{_PIPELINES}.redrive",
    "redrive_audit": f"{_PIPELINES}.redrive",
    "register": "penstock.spark.session_setup.registration",
    "replay": f"{_PIPELINES}.replay",
    "report": f"{_PIPELINES}.report.report",
    "session": "penstock.spark.session_setup.tuned_session",
}
_NEEDED: Final = ("pyspark", "pyarrow", "numpy")


def __getattr__(name: str) -> object:
    home = _HOMES.get(name)
    if home is None:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    try:
        return getattr(importlib.import_module(home), name)
    except ModuleNotFoundError as error:
        package = (error.name or "").partition(".")[0]
        if package not in _NEEDED:
            raise
        raise MissingPackage(
            f"penstock.spark.{name} needs {package}, which is not installed",
            hint="pip install 'penstock[spark,java,report]'",
        ) from error


def __dir__() -> list[str]:
    return sorted({*globals(), *_HOMES})
