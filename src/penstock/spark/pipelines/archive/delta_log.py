"""The files of an archive as a table of Delta Lake: a log beside them that names the same files.

The log has one JSON file for each version, made by creating it, as a state of the archive is. It
only repeats what the state says, so a run that was killed before it wrote the log loses nothing:
the next one writes what is missing. Nothing of Delta has to be installed for that.
"""

from __future__ import annotations

import time
import uuid
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, Final

import orjson

from penstock.errors import StoreDamaged
from penstock.spark.pipelines.archive.state import DataFile, State
from penstock.spark.pipelines.files import DirectoryBusy, Files

if TYPE_CHECKING:
    from pyspark.sql.types import StructType

DELTA_LOG: Final = "_delta_log"
_APPLICATION: Final = "penstock-archive"
Action = dict[str, Any]


def is_delta(files: Files) -> bool:
    """Whether an archive is also a table of Delta."""
    return bool(_versions(files))


def create_delta(files: Files) -> None:
    """Make an archive a table of Delta, without rows yet; `update_delta` adds them."""
    from penstock.spark.source.columns import spark_schema

    now = _now_ms()
    schema: StructType = spark_schema().add("day", "date")
    metadata = {
        "id": str(uuid.uuid4()),
        "format": {"provider": "parquet", "options": {}},
        "schemaString": schema.json(),
        "partitionColumns": ["day"],
        # The whole log is read here to find out which files it names.
        "configuration": {"delta.enableExpiredLogCleanup": "false"},
        "createdTime": now,
    }
    protocol = {"minReaderVersion": 1, "minWriterVersion": 2}
    _write(files, 0, [_info("CREATE TABLE", now), {"protocol": protocol}, {"metaData": metadata}])


def update_delta(files: Files, state: State) -> None:
    """Make the log name the files of a state, in one version; nothing if it does already."""
    versions = _versions(files)
    if versions != list(range(len(versions))):
        raise StoreDamaged(
            f"the log of the Delta table {files} has versions {versions[:3]}... and not all from 0",
            expected="a log that only penstock.spark.archive writes, and no program shortens",
            hint=f"remove the directory {DELTA_LOG}, and make the table anew with delta=True",
        )
    named, reached = _replayed(files, versions)
    if reached == state.version:
        return
    wanted = {file.path: file for file in state.files}
    added = [file for path, file in wanted.items() if path not in named]
    removed = {path: rows for path, rows in named.items() if path not in wanted}
    # The same rows in other files: readers that follow the table need not see them again.
    is_compaction = bool(removed) and sum(removed.values()) == sum(file.rows for file in added)
    now = _now_ms()
    _write(
        files,
        len(versions),
        [
            _info("OPTIMIZE" if is_compaction else "WRITE", now),
            {"txn": {"appId": _APPLICATION, "version": state.version, "lastUpdated": now}},
            *_changes(added, removed, now, changes_rows=not is_compaction),
        ],
    )


def _changes(
    added: Sequence[DataFile], removed: Mapping[str, int], now: int, *, changes_rows: bool
) -> list[Action]:
    return [
        *(
            {"remove": {"path": path, "deletionTimestamp": now, "dataChange": changes_rows}}
            for path in sorted(removed)
        ),
        *(
            {
                "add": {
                    "path": file.path,
                    "partitionValues": {"day": file.day},
                    "size": file.bytes,
                    "modificationTime": now,
                    "dataChange": changes_rows,
                    "stats": orjson.dumps(_statistics(file)).decode(),
                }
            }
            for file in added
        ),
    ]


def _statistics(file: DataFile) -> dict[str, Any]:
    """What lets a reader skip a file by time; times are rounded to milliseconds, outwards."""
    return {
        "numRecords": file.rows,
        "minValues": {"store_timestamp": _iso(file.from_ms)},
        "maxValues": {"store_timestamp": _iso(file.to_ms + 1)},
    }


def _iso(moment_ms: int) -> str:
    from datetime import UTC, datetime, timedelta

    moment = datetime.fromtimestamp(0, UTC) + timedelta(milliseconds=moment_ms)
    return f"{moment:%Y-%m-%dT%H:%M:%S}.{moment_ms % 1000:03d}Z"


def _replayed(files: Files, versions: Sequence[int]) -> tuple[dict[str, int], int]:
    """The files that the log names, with their rows, and the version of the state behind it."""
    named: dict[str, int] = {}
    reached = -1
    for version in versions:
        for line in files.read(_name(version)).splitlines():
            action = orjson.loads(line)  # every version is one of ours
            if add := action.get("add"):
                named[add["path"]] = int(orjson.loads(add["stats"])["numRecords"])
            elif remove := action.get("remove"):
                named.pop(remove["path"], None)
            elif (written := action.get("txn")) and written["appId"] == _APPLICATION:
                reached = written["version"]
    return named, reached


def _versions(files: Files) -> list[int]:
    names = (name.removesuffix(".json") for name in files.names(DELTA_LOG))
    return sorted(int(name) for name in names if name.isdigit())


def _name(version: int) -> str:
    return f"{DELTA_LOG}/{version:020d}.json"


def _write(files: Files, version: int, actions: Sequence[Action]) -> None:
    try:
        files.create(_name(version), b"\n".join(map(orjson.dumps, actions)) + b"\n")
    except FileExistsError:
        raise DirectoryBusy(
            f"another program wrote version {version} of the Delta table {files} meanwhile",
            expected="a table that only penstock.spark.archive writes",
            hint="nothing is lost: run it again",
        ) from None


def _info(operation: str, now: int) -> Action:
    return {"commitInfo": {"timestamp": now, "operation": operation, "engineInfo": "penstock"}}


def _now_ms() -> int:
    return time.time_ns() // 1_000_000
