"""Directories for the records of pipelines: on this machine, or in a file system of Hadoop.

Both kinds guarantee what the pipelines rely on: a created file appears whole or not at all, and
only one of two writers that create the same file succeeds.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import re
import shutil
import time
import uuid
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol
from urllib.parse import unquote

from penstock.errors import InvalidArgument, PenstockError

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

LOCK_NAME = "lock"
_PATTERN = re.compile(r"[{}\[\]*?\\]")
_SCHEME = re.compile(r"([A-Za-z][A-Za-z0-9+.-]+):")


# A secret of S3 may have a slash that should have been escaped; a host and port may not.
_CREDENTIALS = re.compile(
    r"((?:s3[an]?|gs|gcs)://)[^\s@]*:[^\s@]*@|([a-z][a-z0-9+.-]*://)[^\s/@]*:[^\s/@]*@",
    re.IGNORECASE,
)


class DirectoryBusy(PenstockError):
    """Another run works in the same directory."""


class Files(Protocol):
    """One directory; every path is relative to it and uses slashes."""

    @property
    def root(self) -> str:
        """The directory as Spark takes it; ``str`` gives it as the user wrote it."""

    def exists(self, path: str) -> bool: ...

    def size(self, path: str) -> int: ...

    def names(self, path: str) -> list[str]:
        """What is in a directory, sorted; one that does not exist is empty."""

    def read(self, path: str) -> bytes: ...

    def create(self, path: str, data: bytes) -> None:
        """Make a file with all of ``data``; `FileExistsError` if there is one already."""

    def move(self, source: str, target: str) -> None:
        """Rename a file; the directories of ``target`` are made."""

    def delete(self, path: str) -> None:
        """Remove a file or a whole directory, if it exists."""

    def age_seconds(self, path: str) -> float: ...

    def locked(self, path: str) -> contextlib.AbstractContextManager[bool]:
        """Lock ``path`` for the block; yields whether it really is locked."""


def shown_url(text: str) -> str:
    """A text with URLs for users and logs: without the credentials that a URL may have.

    A name alone before an @ is none: Azure's URLs have that of a container there.
    """
    return _CREDENTIALS.sub(lambda found: f"{found[1] or found[2]}***@", text)


def is_local(directory: str | os.PathLike[str]) -> bool:
    """Whether a directory is on this machine, by its name."""
    scheme = _SCHEME.match(os.fspath(directory))
    return scheme is None or scheme[1].lower() == "file"


def open_files(directory: str | os.PathLike[str], spark: SparkSession | None = None) -> Files:
    """The directory of a path on this machine, or of a URL that Spark's Hadoop knows."""
    text = os.fspath(directory)
    if not text.strip():
        raise InvalidArgument("the directory's name is empty", expected="a path or a URL")
    if pattern := _PATTERN.search(text):
        raise InvalidArgument(
            f"directory {shown_url(text)!r} has {pattern[0]!r} in its name",
            expected="a name without the characters that Spark takes for a pattern",
        )
    scheme = _SCHEME.match(text)
    if scheme is None:
        return LocalFiles(Path(text))
    if scheme[1].lower() == "file":
        return LocalFiles(Path(unquote(re.sub(r"^file:(//[^/]*)?", "", text))))
    if spark is None:
        raise InvalidArgument(
            f"directory {shown_url(text)!r} is not on this machine",
            expected="a Spark session that knows how to reach it",
        )
    return HadoopFiles(text, spark)


class LocalFiles:
    """A directory on this machine, or one mounted on all machines of a cluster."""

    def __init__(self, root: Path) -> None:
        self._root = root.absolute()

    def __str__(self) -> str:
        return str(self._root)

    @property
    def root(self) -> str:
        # Hadoop may have another default file system. It does not decode the rest, so this is
        # not Path.as_uri.
        return f"file://{self._root}"

    def exists(self, path: str) -> bool:
        return (self._root / path).exists()

    def size(self, path: str) -> int:
        return (self._root / path).stat().st_size

    def names(self, path: str) -> list[str]:
        try:
            return sorted(entry.name for entry in (self._root / path).iterdir())
        except FileNotFoundError:
            return []

    def read(self, path: str) -> bytes:
        return (self._root / path).read_bytes()

    def create(self, path: str, data: bytes) -> None:
        target = self._root / path
        target.parent.mkdir(parents=True, exist_ok=True)
        draft = target.with_name(f".{target.name}.{uuid.uuid4().hex}")
        try:
            with draft.open("xb") as file:
                file.write(data)
                file.flush()
                os.fsync(file.fileno())
            # A link fails if the name exists; a rename would replace another run's file.
            os.link(draft, target)
        finally:
            draft.unlink(missing_ok=True)
        _sync(target.parent)

    def move(self, source: str, target: str) -> None:
        old, new = self._root / source, self._root / target
        new.parent.mkdir(parents=True, exist_ok=True)
        _sync(old)
        old.rename(new)
        _sync(new.parent)
        # Hadoop writes a checksum beside a file; it is not needed any more.
        (old.parent / f".{old.name}.crc").unlink(missing_ok=True)

    def delete(self, path: str) -> None:
        target = self._root / path
        if target.is_dir():
            shutil.rmtree(target)
        else:
            target.unlink(missing_ok=True)

    def age_seconds(self, path: str) -> float:
        return time.time() - (self._root / path).stat().st_mtime

    @contextlib.contextmanager
    def locked(self, path: str) -> Iterator[bool]:
        """The kernel releases the lock when its holder ends, in any way."""
        where = self._root / path
        try:
            where.mkdir(parents=True, exist_ok=True)
            opened = (where / LOCK_NAME).open("wb")
        except OSError as error:
            lacks = "written to" if self._root.is_dir() else "created"
            why = (error.strerror or str(error)).lower()
            raise InvalidArgument(
                f"directory {self._root} cannot be {lacks}: {why}",
                expected="a directory that you may write to, or a new one",
            ) from error
        with opened as file:
            try:
                fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                raise DirectoryBusy(
                    f"another run works in {self._root}",
                    expected="one run at a time",
                    hint="wait until it has ended, or name another directory",
                ) from None
            yield True


def _sync(path: Path) -> None:
    handle = os.open(path, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


class HadoopFiles:
    """A directory of any file system that the session's Hadoop is set up for."""

    def __init__(self, root: str, spark: SparkSession) -> None:
        self._root = root.rstrip("/")
        # Through the JVM's classes, as the session's executors do, with their credentials.
        from penstock.spark.jvm import hadoop_configuration, java_array, jvm_of

        jvm = jvm_of(spark)
        if jvm is None:
            raise InvalidArgument(
                f"directory {shown_url(root)!r} cannot be reached through Spark Connect",
                expected="a classic Spark session, or a directory of this machine",
            )
        configuration = hadoop_configuration(spark)
        self._path = jvm.org.apache.hadoop.fs.Path
        # The argument of a rename that does not replace.
        rename = jvm.org.apache.hadoop.fs.Options.Rename
        self._not_replacing = java_array(spark, rename, [rename.NONE])
        try:
            self._fs = self._path(self._root).getFileSystem(configuration)
            self._context = jvm.org.apache.hadoop.fs.FileContext.getFileContext(
                self._path(self._root).toUri(), configuration
            )
        except Exception as error:
            raise InvalidArgument(
                f"directory {shown_url(root)!r} cannot be opened: {shown_url(_first_line(error))}",
                expected="a URL of a file system that this Spark is set up for",
            ) from error

    def __str__(self) -> str:
        return shown_url(self._root)

    @property
    def root(self) -> str:
        return self._root

    def _at(self, path: str) -> Any:
        return self._path(f"{self._root}/{path}") if path else self._path(self._root)

    def exists(self, path: str) -> bool:
        return bool(self._fs.exists(self._at(path)))

    def size(self, path: str) -> int:
        return int(self._fs.getFileStatus(self._at(path)).getLen())

    def names(self, path: str) -> list[str]:
        if not self.exists(path):
            return []
        return sorted(str(s.getPath().getName()) for s in self._fs.listStatus(self._at(path)))

    def read(self, path: str) -> bytes:
        stream = self._fs.open(self._at(path))
        try:
            return bytes(stream.readAllBytes())
        finally:
            stream.close()

    def create(self, path: str, data: bytes) -> None:
        target = self._at(path)
        if self.exists(path):
            raise FileExistsError(path)
        draft = self._path(target.getParent(), f".{target.getName()}.{uuid.uuid4().hex}")
        stream = self._fs.create(draft, False)
        try:
            stream.write(bytearray(data))
        finally:
            stream.close()
        try:
            # Unlike the file system's own, this rename refuses an existing name.
            self._context.rename(draft, target, self._not_replacing)
        except Exception as error:
            self._fs.delete(draft, False)
            if self.exists(path):
                raise FileExistsError(path) from error
            raise

    def move(self, source: str, target: str) -> None:
        new = self._at(target)
        self._fs.mkdirs(new.getParent())
        if not self._fs.rename(self._at(source), new):
            raise PenstockError(f"{source} of {self} could not be renamed to {target}")

    def delete(self, path: str) -> None:
        self._fs.delete(self._at(path), True)

    def age_seconds(self, path: str) -> float:
        changed_ms = int(self._fs.getFileStatus(self._at(path)).getModificationTime())
        return time.time() - changed_ms / 1000

    @contextlib.contextmanager
    def locked(self, path: str) -> Iterator[bool]:
        """There is no lock here; of two runs, one fails when both create the same file."""
        yield False


def _first_line(error: BaseException) -> str:
    return str(error).strip().partition("\n")[0]
