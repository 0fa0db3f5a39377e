"""An archive on disk: open it, finish the work of a killed run, commit to it."""

from __future__ import annotations

import contextlib
import os
import uuid
from collections.abc import Iterator

from penstock.errors import InvalidArgument, NotFound, StoreDamaged
from penstock.spark.pipelines.archive.delta_log import create_delta, is_delta, update_delta
from penstock.spark.pipelines.archive.iceberg_table import (
    create_iceberg,
    iceberg_name,
    update_iceberg,
)
from penstock.spark.pipelines.archive.state import (
    PRIVATE,
    STAGING,
    STATES_KEPT,
    State,
    from_json,
    state_name,
    state_versions,
    to_json,
)
from penstock.spark.pipelines.files import DirectoryBusy, Files, is_local, open_files
from penstock.spark.pipelines.readable_files import ReadableFiles

STAGING_KEPT_SECONDS = 24 * 3600.0
"""Without locks, staged rows younger than this may belong to another run."""


class ArchiveDirectory:
    """The only writer of one archive; `opened` returns it."""

    def __init__(self, files: Files, state: State) -> None:
        self.files = files
        self.state = state
        self._run = uuid.uuid4().hex[:12]
        self._staged = 0

    def new_staging(self) -> str:
        """A directory for rows that are not committed yet."""
        self._staged += 1
        return f"{STAGING}/{self._run}-{self._staged:06d}"

    def make_tables(self, *, delta: bool = False, iceberg: str | None = None) -> None:
        """Make the archive a table of these kinds, too, if it is not one yet."""
        if delta and not is_delta(self.files):
            create_delta(self.files)
        if iceberg is not None:
            create_iceberg(self.files, iceberg)
        self._update_tables()

    def _update_tables(self) -> None:
        if is_delta(self.files):
            update_delta(self.files, self.state)
        if (name := iceberg_name(self.files)) is not None:
            update_iceberg(self.files, self.state, name)

    def commit(self, state: State) -> None:
        """Make ``state`` the current one, then move and delete files accordingly."""
        try:
            self.files.create(state_name(state.version), to_json(state))
        except FileExistsError:
            raise DirectoryBusy(
                f"another run committed to the archive {self.files} meanwhile",
                expected="one run at a time",
                hint="nothing is lost: run it again",
            ) from None
        self.state = state
        self.apply()

    def apply(self) -> None:
        """Move and delete the files that the state names; steps already done are skipped."""
        # Nothing is deleted before all replacements were found.
        for source, target in self.state.moves:
            if not self.files.exists(source) and not self.files.exists(target):
                raise StoreDamaged(
                    f"file {target} of the archive {self.files} is missing",
                    expected="every file that its state names",
                    hint="restore it from a copy, or archive to a new directory",
                )
        # Deleted first, so that a plain reader of the directory never finds a row twice.
        for path in self.state.deletes:
            self.files.delete(path)
        for source, target in self.state.moves:
            if self.files.exists(source):
                self.files.move(source, target)
        self._update_tables()

    def discard_unused(self, *, is_alone: bool) -> None:
        """Remove staged rows that no state names, and old states."""
        for name in self.files.names(STAGING):
            path = f"{STAGING}/{name}"
            if is_alone or self.files.age_seconds(path) > STAGING_KEPT_SECONDS:
                self.files.delete(path)
        for version in state_versions(self.files.names(PRIVATE))[:-STATES_KEPT]:
            self.files.delete(state_name(version))


def load(files: ReadableFiles) -> State | None:
    """The newest state; None if there is no archive."""
    versions = state_versions(files.names(PRIVATE))
    if not versions:
        return None
    name = state_name(versions[-1])
    return from_json(files.read(name), f"{files}/{name}")


def load_existing(files: ReadableFiles) -> State:
    """The newest state of an archive that must be there."""
    state = load(files)
    if state is None:
        for mark, kind in (("_delta_log", "Delta"), ("metadata", "Iceberg")):
            if files.exists(mark):
                raise InvalidArgument(
                    f"{files} is a table of {kind} that is no archive",
                    expected="a directory that penstock.spark.archive wrote to",
                    hint=f"read it with {kind}'s own format, and unite both frames",
                )
        raise NotFound(
            f"there is no archive in {files}",
            expected="a directory that penstock.spark.archive wrote to",
            hint="penstock spark archive TOPIC DIR",
        )
    return state


def check_there(directory: str | os.PathLike[str]) -> None:
    """Refuse a directory of this machine without an archive; only Spark can see others."""
    if is_local(directory):
        load_existing(open_files(directory))


@contextlib.contextmanager
def opened(files: Files, topic: str) -> Iterator[ArchiveDirectory]:
    """The archive of ``topic``, created if needed, with the work of a killed run finished."""
    with files.locked(PRIVATE) as is_alone:
        state = load(files)
        if state is None:
            _refuse_foreign(files)
            state = State(topic)
        elif state.topic != topic:
            raise InvalidArgument(
                f"the archive {files} holds topic {state.topic!r}, not {topic!r}",
                expected="a directory for each topic",
            )
        archive = ArchiveDirectory(files, state)
        archive.apply()
        archive.discard_unused(is_alone=is_alone)
        yield archive
        # Not after an error: staged files may belong to a committed state whose moves were not
        # finished. The next run finishes them, and only then removes the rest.
        archive.discard_unused(is_alone=is_alone)


def data_paths(files: ReadableFiles, state: State) -> dict[str, str]:
    """The current path of each file, even if a run was killed before it moved them."""
    staged = {target: source for source, target in state.moves}
    return {
        file.path: source
        if (source := staged.get(file.path)) is not None and files.exists(source)
        else file.path
        for file in state.files
    }


def _refuse_foreign(files: Files) -> None:
    foreign = [name for name in files.names("") if not name.startswith(("_", "."))]
    if foreign:
        raise InvalidArgument(
            f"directory {files} is not an archive, but holds {foreign[0]!r}",
            expected="an empty directory, one that does not exist, or an archive",
        )
