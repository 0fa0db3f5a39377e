"""Directories that are only read, without Spark: on this machine, or by the URL of a storage.

Arrow's own file systems reach S3, Google's and Azure's storages and HDFS, from the driver as well
as from the workers of executors, with the credentials that each of these Pythons finds.
"""

from __future__ import annotations

import os
import re
from pathlib import Path
from typing import Final, Protocol

import pyarrow as pa
import pyarrow.parquet as pq
from pyarrow import fs

from penstock.errors import InvalidArgument, StoreDamaged
from penstock.spark.pipelines.files import LocalFiles, is_local, open_files, shown_url

_NAMES_OF_HADOOP: Final = {"s3a": "s3", "s3n": "s3", "gcs": "gs"}
_SCHEME: Final = re.compile(r"^([A-Za-z][A-Za-z0-9+.-]+):(?=//)")


class ReadableFiles(Protocol):
    """One directory; every path is relative to it and uses slashes."""

    def exists(self, path: str) -> bool: ...

    def names(self, path: str) -> list[str]:
        """What is in a directory, sorted; one that does not exist is empty."""

    def read(self, path: str) -> bytes: ...


class ParquetFiles(ReadableFiles, Protocol):
    """A directory with Parquet files."""

    def parquet(self, path: str) -> pq.ParquetFile:
        """Open a file; ``FileNotFoundError`` if it is gone, `StoreDamaged` if it is none."""


def open_readable(directory: str | os.PathLike[str]) -> ParquetFiles:
    """The directory of a path on this machine, or of a URL that Arrow knows."""
    if is_local(directory):
        files = open_files(directory)
        return LocalParquet(Path(str(files)))
    return UrlFiles(os.fspath(directory))


class LocalParquet(LocalFiles):
    """A directory on this machine."""

    def parquet(self, path: str) -> pq.ParquetFile:
        where = f"{self}/{path}"
        try:
            return pq.ParquetFile(where)
        except pa.ArrowInvalid as error:
            raise _damaged(where, error) from error


class UrlFiles:
    """A directory of a storage that Arrow has a file system for."""

    def __init__(self, url: str) -> None:
        self._url = url.rstrip("/")
        scheme = _SCHEME.match(url)
        known = _SCHEME.sub(_arrow_scheme, self._url) if scheme else self._url
        try:
            self._files, self._root = fs.FileSystem.from_uri(known)
        except (pa.ArrowException, OSError, ValueError) as error:
            raise InvalidArgument(
                f"directory {shown_url(url)!r} cannot be opened: "
                f"{shown_url(str(error).partition(chr(10))[0])}",
                expected="a path, or a URL that Arrow knows: s3://, gs://, abfs:// or hdfs://",
                hint="mount it, or read it with penstock.spark.read_archive and unite both frames",
            ) from None  # Arrow's error has the URL as it is.

    def __str__(self) -> str:
        return shown_url(self._url)

    def _at(self, path: str) -> str:
        return f"{self._root}/{path}" if path else self._root

    def exists(self, path: str) -> bool:
        return bool(self._files.get_file_info(self._at(path)).type != fs.FileType.NotFound)

    def names(self, path: str) -> list[str]:
        found = self._files.get_file_info(fs.FileSelector(self._at(path), allow_not_found=True))
        return sorted(info.base_name for info in found)

    def read(self, path: str) -> bytes:
        with self._files.open_input_file(self._at(path)) as file:
            return bytes(file.read())

    def parquet(self, path: str) -> pq.ParquetFile:
        try:
            # Buffered ahead: each small read of a storage is a request.
            return pq.ParquetFile(self._at(path), filesystem=self._files, pre_buffer=True)
        except pa.ArrowInvalid as error:
            raise _damaged(f"{self}/{path}", error) from error


def _arrow_scheme(found: re.Match[str]) -> str:
    return f"{_NAMES_OF_HADOOP.get(found[1].lower(), found[1].lower())}:"


def _damaged(where: str, error: Exception) -> StoreDamaged:
    """A file of an archive that is no Parquet file."""
    return StoreDamaged(
        f"the archive's file {where} cannot be read: {error}",
        expected="a Parquet file that penstock wrote",
        hint="restore it from a copy",
    )
