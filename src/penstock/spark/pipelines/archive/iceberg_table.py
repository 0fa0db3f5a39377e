"""The files of an archive as a table of Iceberg: its catalog names the same files.

A file in the archive says which table that is. The table only repeats what the state says, and its
property says of which version, so a run that was killed before it changed the table loses nothing:
the next one catches up. pyiceberg does the work, without Spark and without a jar.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

import orjson

from penstock.columnar.schema import ALL, arrow_schema
from penstock.errors import InvalidArgument, MissingPackage
from penstock.spark.pipelines.archive.state import PRIVATE, State
from penstock.spark.pipelines.files import DirectoryBusy, Files

if TYPE_CHECKING:
    from pyiceberg.catalog import Catalog
    from pyiceberg.table import Table

_MARK: Final = f"{PRIVATE}/iceberg.json"
_VERSION: Final = "penstock.archive.version"


def iceberg_name(files: Files) -> str | None:
    """The table that an archive is, as CATALOG.NAMESPACE.TABLE; None: it is none."""
    return str(orjson.loads(files.read(_MARK))["table"]) if files.exists(_MARK) else None


def create_iceberg(files: Files, name: str) -> None:
    """Make an archive a table, without rows yet; `update_iceberg` adds them."""
    known = iceberg_name(files)
    if known == name:
        return
    if known is not None:
        raise InvalidArgument(
            f"the archive {files} is the Iceberg table {known!r}, not {name!r}",
            expected="one table for an archive",
        )
    catalog, identifier = _split(name)
    loaded = _catalog(catalog)
    if loaded.table_exists(identifier):
        raise InvalidArgument(
            f"the Iceberg table {name!r} is there already",
            expected="a new table, which only penstock.spark.archive changes",
        )
    namespace = identifier.rpartition(".")[0]
    loaded.create_namespace_if_not_exists(namespace)
    loaded.create_table(identifier, arrow_schema(ALL))
    files.create(_MARK, orjson.dumps({"table": name}))


def update_iceberg(files: Files, state: State, name: str) -> None:
    """Make the table name the files of a state, in one snapshot; nothing if it does already."""
    from pyiceberg.exceptions import CommitFailedException, NoSuchTableError

    catalog, identifier = _split(name)
    try:
        table = _catalog(catalog).load_table(identifier)
        if table.properties.get(_VERSION) != str(state.version):
            _change(table, files, state)
    except NoSuchTableError as error:
        raise InvalidArgument(
            f"the archive {files} is the Iceberg table {name!r}, which is not in its catalog",
            expected="the table that an earlier run made",
            hint=f"remove {files}/{_MARK}, and name a table again",
        ) from error
    except CommitFailedException as error:
        raise DirectoryBusy(
            f"another program changed the Iceberg table {name!r} meanwhile",
            expected="a table that only penstock.spark.archive changes",
            hint="nothing is lost: run it again",
        ) from error


def _change(table: Table, files: Files, state: State) -> None:
    from pyiceberg.io.pyarrow import parquet_files_to_data_files

    wanted = {f"{files.root}/{file.path}" for file in state.files}
    named = {task.file.file_path: task.file for task in table.scan().plan_files()}
    added = sorted(wanted - named.keys())
    removed = [file for path, file in named.items() if path not in wanted]
    try:
        with table.transaction() as change:
            change.set_properties({_VERSION: str(state.version)})
            if not removed:
                if added:
                    change.add_files(added, check_duplicate_files=False)
                return
            with change.update_snapshot().overwrite() as snapshot:
                for file in removed:
                    snapshot.delete_data_file(file)
                for file in parquet_files_to_data_files(
                    table.io, change.table_metadata, iter(added)
                ):
                    snapshot.append_data_file(file)
    except (ValueError, TypeError) as error:
        raise InvalidArgument(
            f"the files of {files} cannot become rows of an Iceberg table: "
            f"{str(error).strip().partition(chr(10))[0]}",
            expected="an archive whose files have times in microseconds, as they are written now",
            hint="archive the topic to a new directory",
        ) from error


def _split(name: str) -> tuple[str, str]:
    catalog, _, identifier = name.partition(".")
    if "." not in identifier or not catalog or not all(identifier.split(".")):
        raise InvalidArgument(f"Iceberg table {name!r}", expected="CATALOG.NAMESPACE.TABLE")
    return catalog, identifier


def _catalog(name: str) -> Catalog:
    try:
        from pyiceberg.catalog import load_catalog
    except ModuleNotFoundError as error:
        raise MissingPackage(
            "an archive that is a table of Iceberg needs pyiceberg, which is not installed",
            hint="pip install 'penstock[iceberg]'",
        ) from error
    try:
        return load_catalog(name)
    except ValueError as error:
        raise InvalidArgument(
            f"the Iceberg catalog {name!r} cannot be loaded: {error}",
            expected="a catalog that pyiceberg is set up for",
            hint="name it in ~/.pyiceberg.yaml, or in PYICEBERG_CATALOG__... of the environment",
        ) from error
