"""The queues in store directories, with the same methods as `Cluster`; used on the driver.

A store is opened for reading only, as by the store tools: that of a running broker, a copy, or one
that Apache RocketMQ wrote. Opening finds the end of the commit log and builds the queue entries
that are in no file yet; these are sent with the tasks, so that executors only read.
"""

from __future__ import annotations

import difflib
import itertools
import json
import logging
import re
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from types import TracebackType
from typing import Final, NamedTuple, Self

from penstock.errors import InvalidArgument, NotFound, StoreDamaged
from penstock.model import MessageQueue
from penstock.model.names import (
    DLQ_PREFIX,
    RETRY_PREFIX,
)
from penstock.protocol.validation import is_system_topic
from penstock.spark.source.data_loss import lost
from penstock.spark.source.options import ReadOptions
from penstock.spark.source.ranges import Range
from penstock.store.config import StoreConfig
from penstock.store.consume_queue import UNIT_BYTES
from penstock.store.store import MessageStore
from penstock.store.tools.locate import find_stores

log = logging.getLogger(__name__)

_OFFSETS_FILE: Final = "config/consumerOffset.json"
_TOPICS_FILE: Final = "config/topics.json"


class StoreFiles(NamedTuple):
    """The root of a store and the sizes of its files."""

    root: str
    log_bytes: int
    queue_bytes: int


class Tail(NamedTuple):
    """Entries of a queue from ``start`` on that no file has yet."""

    start: int
    entries: bytes


class StoreCatalog:
    """The queues of a store, or of all stores in a DATA directory."""

    def __init__(self, options: ReadOptions) -> None:
        self._options = options
        self._stores: dict[str, MessageStore] = {}
        path = local_path(options.path or "")
        found = find_stores(path)
        if options.broker_name is not None and len(found) > 1:
            raise InvalidArgument(
                f"option brokerName {options.broker_name!r} for {path}, which has the stores "
                f"{', '.join(store.name for store in found)}",
                expected="the path of one store beside it",
                hint=f"option path {found[0].root!r}",
            )
        # A scan does not need the key index, and need not wait for it.
        config = StoreConfig(message_index_enable=False)
        try:
            for store in found:
                name = options.broker_name or store.name
                opened = MessageStore.open_readonly(store.root, config)
                self._stores[name] = opened
                if opened.damage is not None and options.fail_on_data_loss:
                    raise StoreDamaged(
                        opened.damage.what,
                        expected=opened.damage.expected,
                        hint=f"penstock store verify {store.root}; to read what is before the "
                        "damage, set option failOnDataLoss to false",
                    )
        except BaseException:
            self.close()
            raise

    def close(self) -> None:
        """Close the files."""
        for store in self._stores.values():
            store.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self.close()

    def refresh(self) -> int:
        """Find what was written meanwhile; return the number of messages."""
        return sum(store.refresh() for store in self._stores.values())

    @property
    def tail_bytes(self) -> int:
        """The memory used by entries that may be in files by now."""
        return sum(
            len(queue.tail)
            for store in self._stores.values()
            for queue in store.queue_table.queues.values()
        )

    # Queues

    def queues(self, options: ReadOptions) -> list[MessageQueue]:
        """The queues to read."""
        there = sorted(self._all())
        if options.assignment:
            for queue in options.assignment:
                if queue not in there:
                    raise self._missing(f"option assign names {queue}", str(queue), map(str, there))
            return list(options.assignment)
        topics = {queue.topic for queue in there}
        if options.topics:
            for topic in options.topics:
                if topic not in topics and topic not in (made := self._made()):
                    raise self._missing(f"topic {topic!r}", topic, topics | made)
            wanted = set(options.topics)
        elif options.pattern is not None:
            wanted = set(_matching(options.pattern, topics))
        else:
            wanted = {topic for topic in topics if not is_system_topic(topic)}
        return [queue for queue in there if queue.topic in wanted]

    def _all(self) -> Iterator[MessageQueue]:
        access = self._options.access
        for broker, store in self._stores.items():
            for topic, queue_id in store.queues():
                short = access.short_name(topic)
                if access.long_name(short) == topic:
                    yield MessageQueue(short, broker, queue_id)

    def _made(self) -> set[str]:
        """Topics in the brokers' tables: one without messages has no queue files."""
        access = self._options.access
        noted = itertools.chain.from_iterable(_topics(s.root) for s in self._stores.values())
        shown = {topic: access.short_name(topic) for topic in noted if not is_system_topic(topic)}
        return {short for topic, short in shown.items() if access.long_name(short) == topic}

    def _missing(self, what: str, name: str, there: Iterable[str]) -> InvalidArgument:
        names = sorted(there)
        near = difflib.get_close_matches(name, names, n=1)
        shown = ", ".join(names[:20]) or "nothing"
        return InvalidArgument(
            f"{what} is not in {self._options.path}",
            expected=f"some of {shown}{' ...' if len(names) > 20 else ''}",
            hint=near[0] if near else None,
        )

    # Offsets

    def latest(self, queues: Iterable[MessageQueue]) -> dict[MessageQueue, int]:
        """One past the last message of each queue."""
        return {queue: self._store(queue).max_offset(*self._stored(queue)) for queue in queues}

    def earliest(self, queues: Iterable[MessageQueue]) -> dict[MessageQueue, int]:
        """The first message of each queue that is still there."""
        return {queue: self._store(queue).min_offset(*self._stored(queue)) for queue in queues}

    def at_time(self, queues: Iterable[MessageQueue], timestamp_ms: int) -> dict[MessageQueue, int]:
        """The first message of each queue that was stored at that time or later."""
        return {
            queue: self._store(queue).offset_at(*self._stored(queue), timestamp_ms)
            for queue in queues
        }

    def committed(
        self, queues: Iterable[MessageQueue], *, guessed: bool = True
    ) -> dict[MessageQueue, int]:
        """The group's offsets as the broker last wrote them, which it does every 5 s."""
        found: dict[MessageQueue, int] = {}
        for queue in queues:
            table = _committed(self._store(queue).root)
            topic, queue_id = self._stored(queue)
            offset = table.get(f"{topic}@{self._options.puller}", {}).get(str(queue_id))
            if offset is not None:
                found[queue] = offset
        return found

    def files(self) -> dict[str, StoreFiles]:
        """The files of each broker, for executors."""
        return {
            broker: StoreFiles(
                str(Path(store.root).absolute()),
                store.commit_log.segment_size,
                store.queue_table.segment_bytes,
            )
            for broker, store in self._stores.items()
        }

    def cut(self, part: Range) -> Range:
        """A range up to the queue's end: a checkpoint may be newer than a copy of the store.

        That is data loss, and an error with failOnDataLoss.
        """
        (end,) = self.latest([part.queue]).values()
        if part.high <= end:
            return part
        what = f"{part.queue} ends at {end}, and messages up to {part.high - 1} were to be read"
        if self._options.fail_on_data_loss:
            raise lost(what)
        log.warning("%s; skipped", what)
        return Range(part.queue, min(part.low, end), end)

    def tail(self, part: Range) -> Tail:
        """The entries of a range that are in no file yet."""
        queue = self._store(part.queue).queue_table.get(*self._stored(part.queue))
        if queue is None or queue.tail_start >= part.high:
            return Tail(part.high, b"")
        start = max(part.low, queue.tail_start)
        first = (start - queue.tail_start) * UNIT_BYTES
        last = (part.high - queue.tail_start) * UNIT_BYTES
        return Tail(start, bytes(queue.tail[first:last]))

    def _store(self, queue: MessageQueue) -> MessageStore:
        try:
            return self._stores[queue.broker_name]
        except KeyError:
            raise InvalidArgument(
                f"{self._options.path} has no store of the broker of {queue}",
                expected=f"one of {', '.join(self._stores)}",
            ) from None

    def _stored(self, queue: MessageQueue) -> tuple[str, int]:
        return self._options.access.long_name(queue.topic), queue.queue_id


def local_path(text: str) -> str:
    """A directory as Spark users write it, with or without ``file:``."""
    scheme = re.match(r"([a-zA-Z][\w+.-]+):", text)
    if scheme is None:
        return text
    if scheme[1].lower() != "file":
        raise InvalidArgument(
            f"option path {text!r}",
            expected="a directory of a file system that every executor has mounted",
        )
    return re.sub(r"^file:(//(?=/))?", "", text, flags=re.IGNORECASE)


def _matching(pattern: str, topics: Iterable[str]) -> Iterator[str]:
    wanted = re.compile(pattern)
    for topic in topics:
        # As with a cluster: retry and dead-letter topics only if the pattern has a %.
        is_own = topic.startswith((RETRY_PREFIX, DLQ_PREFIX)) and "%" not in pattern
        if not is_own and not is_system_topic(topic) and wanted.fullmatch(topic):
            yield topic


def _topics(root: str) -> list[str]:
    """The topics in a broker's table, which a copy may lack."""
    try:
        return list(json.loads((Path(root) / _TOPICS_FILE).read_bytes())["topicConfigTable"])
    except (OSError, ValueError, KeyError, TypeError):
        return []


def _committed(root: str) -> Mapping[str, Mapping[str, int]]:
    path = Path(root) / _OFFSETS_FILE
    try:
        table = json.loads(path.read_bytes())["offsetTable"]
    except FileNotFoundError:
        return {}
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise NotFound(
            f"{path} has no readable offsets of groups: {error}",
            hint="startingOffsets earliest, latest or offsets by queue",
        ) from error
    return {
        name: {str(queue): int(offset) for queue, offset in offsets.items()}
        for name, offsets in table.items()
        if isinstance(offsets, dict)
    }
