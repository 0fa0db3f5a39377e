"""Broker processes and messages for the tests of the source."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from itertools import islice
from pathlib import Path

from penstock import Admin, Message, MessageQueue, Producer
from penstock.runtime.child_process import ChildProcess
from penstock.spark.source.options import parse_read
from penstock.spark.source.readers import BatchReader
from penstock.store import MessageStore, StoreConfig

SEGMENT = 65_536
"""Bytes of a log segment where segments are to be lost; small, so that a test loses some soon."""
SMALL_SEGMENTS = f"mappedFileSizeCommitLog={SEGMENT}\n"
"""The setting for that; a store of such is copied quickly, too."""


class Up:
    """``penstock up`` as a process that keeps its ports when it is started again."""

    def __init__(self, data: Path, *flags: str, settings: str = "") -> None:
        self.data = data
        self._config = data.with_name(f"{data.name}.conf")
        self.configure(settings)
        self._command: list[str | Path] = [sys.executable, "-m", "penstock", "up"]
        self._command += ["--data", data, "--config", self._config, *flags]
        self._ports = ["0", "0"]
        self.namesrv = ""
        self._process: ChildProcess | None = None

    def configure(self, settings: str) -> None:
        """Change its settings, from the next start on."""
        self._config.write_text(settings)

    def start(self) -> None:
        names, broker = self._ports
        command = [*self._command, "--nameserver-port", names, "--broker-port", broker]
        self._process = ChildProcess(command).start()
        line = self._process.wait_for_line(r"^ready namesrv=(\S+:(\d+)) broker=\S+:(\d+) ")
        self.namesrv, self._ports = line[1], [line[2], line[3]]

    def kill(self) -> None:
        if self._process is not None and self._process.is_running:
            self._process.kill()

    def stop(self) -> None:
        """End it as a service manager does."""
        if self._process is not None:
            self._process.terminate()

    def expire(self, count: int) -> None:
        """While it does not run: let the first segments of its log expire and be deleted."""
        root = self.data / "broker-a"
        for segment in sorted((root / "commitlog").iterdir())[:count]:
            os.utime(segment, (0, 0))
        with MessageStore(root, StoreConfig(mapped_file_size_commit_log=SEGMENT)) as store:
            store.request_clean()
            assert len(store.clean()) >= count


@contextmanager
def running(data: Path, *flags: str, settings: str = "") -> Iterator[Up]:
    up = Up(data, *flags, settings=settings)
    try:
        up.start()
        yield up
    finally:
        up.kill()


def produce(namesrv: str, messages: Iterable[Message], queue: MessageQueue | None = None) -> None:
    """Send messages one by one, so that each takes the usual way.

    The first is waited for: those sent while the route is not known may overtake each other.
    """
    with Producer("spark-tests", namesrv=namesrv) as producer:
        remaining = iter(messages)
        for first in islice(remaining, 1):
            producer.send(first, queue=queue)
        for future in [producer.submit(message, queue=queue) for message in remaining]:
            future.result(30)


def numbered(topic: str, numbers: Iterable[int], size: int = 0) -> list[Message]:
    """Messages whose bodies are numbers, padded to a size."""
    return [Message(topic, b"%d" % n + b" " * max(0, size - len(str(n)))) for n in numbers]


def create(namesrv: str, topic: str, queues: int = 4) -> None:
    with Admin(namesrv=namesrv) as admin:
        admin.create_topic(topic, queues)


def read(
    namesrv: str, columns: Sequence[str] = ("body",), *, cores: int | None = 2, **options: str
) -> list[tuple[object, ...]]:
    """What a batch read gives, through the reader itself and without Spark."""
    given = {"namesrv": namesrv, **options}
    reader = BatchReader(parse_read(given), tuple(columns), cores)
    return [
        row
        for partition in reader.partitions()
        for batch in reader.read(partition)
        for row in zip(*(column.to_pylist() for column in batch.columns), strict=True)
    ]


def numbers(rows: Iterable[tuple[object, ...]]) -> list[int]:
    """The numbers of ``numbered``, in order."""
    return sorted(int(row[0]) for row in rows if isinstance(row[0], bytes))
