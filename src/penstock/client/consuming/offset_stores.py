"""Where a group stands: in memory, and behind it on the broker or in a file.

    clustering     BrokerOffsetStore   commits are one-way requests to the queue's broker
    broadcasting   FileOffsetStore     <dir>/<client id>/<group>/offsets.json, with .bak

Both keep a table in memory that consuming moves forward and that is written out every few seconds.
A *frozen* queue takes no more updates: its offset was just repaired, and a handler that ends late
must not undo that.
"""

from __future__ import annotations

import asyncio
import functools
import logging
from collections.abc import Collection, Mapping
from enum import Enum
from pathlib import Path
from typing import Protocol

from penstock.client import requests
from penstock.client.session.calls import Calls
from penstock.client.session.routes import BrokerAddress
from penstock.errors import PenstockError, StoreError
from penstock.model import MessageQueue
from penstock.protocol.bodies.codec import decode_body, encode_body
from penstock.protocol.bodies.offsets import LocalOffsets
from penstock.remoting.peer import Peer
from penstock.runtime.state_file import StateFile

log = logging.getLogger(__name__)

NONE_STORED = -1
READ_FAILED = -2
BAD_ARGUMENT = -3


class ReadFrom(Enum):
    """Where an offset is looked up."""

    MEMORY = "memory"
    STORE = "store"
    MEMORY_FIRST = "memory first, then store"


class OffsetStore(Protocol):
    """Where a consumer group stands in its queues."""

    @property
    def epochs(self) -> dict[MessageQueue, int]:
        """The epochs of the topics that offsets belong to (`TOPIC_EPOCH`), where they are known."""

    async def load(self) -> None:
        """Read what an earlier run left, if that is kept here."""

    def update(self, queue: MessageQueue, offset: int, *, increase_only: bool) -> None:
        """Move a queue, in memory."""

    def freeze(self, queue: MessageQueue, offset: int) -> None:
        """Set a queue for good; nothing but `remove` changes it any more."""

    async def read(self, queue: MessageQueue, source: ReadFrom) -> int:
        """The offset; `NONE_STORED`, `READ_FAILED` or `BAD_ARGUMENT` when there is none."""

    async def persist_all(self, held: Collection[MessageQueue], *, wait: bool = False) -> None:
        """Write out the queues that are held and forget the others."""

    async def persist(self, queue: MessageQueue, *, wait: bool = False) -> None:
        """Write out one queue; with ``wait`` return when it is there."""

    def remove(self, queue: MessageQueue) -> None:
        """Forget a queue, in memory."""

    def snapshot(self, topic: str | None = None) -> dict[MessageQueue, int]:
        """A copy of the table, of one topic if given."""

    async def commit_to_broker(self, queue: MessageQueue, offset: int, *, oneway: bool) -> None:
        """Write an offset to the broker, past the table."""


class OffsetTable:
    """The offsets in memory."""

    __slots__ = ("_frozen", "_offsets")

    def __init__(self) -> None:
        self._offsets: dict[MessageQueue, int] = {}
        self._frozen: set[MessageQueue] = set()

    def update(self, queue: MessageQueue, offset: int, *, increase_only: bool) -> None:
        if queue in self._frozen:
            return
        old = self._offsets.get(queue)
        if old is None or not increase_only or offset > old:
            self._offsets[queue] = offset

    def freeze(self, queue: MessageQueue, offset: int) -> None:
        self._offsets[queue] = offset
        self._frozen.add(queue)

    def remove(self, queue: MessageQueue) -> None:
        self._offsets.pop(queue, None)
        self._frozen.discard(queue)

    def snapshot(self, topic: str | None = None) -> dict[MessageQueue, int]:
        if topic is None:
            return dict(self._offsets)
        return {queue: offset for queue, offset in self._offsets.items() if queue.topic == topic}

    def __getitem__(self, queue: MessageQueue) -> int:
        return self._offsets.get(queue, NONE_STORED)

    def keep_only(self, held: Collection[MessageQueue]) -> None:
        for queue in self._offsets.keys() - set(held):
            self.remove(queue)


def _is_readable(queue: object, source: object) -> bool:
    return isinstance(queue, MessageQueue) and isinstance(source, ReadFrom)


class BrokerAccess(Protocol):
    """What a `BrokerOffsetStore` needs of its session."""

    @property
    def calls(self) -> Calls: ...

    async def find_broker(
        self, queue: MessageQueue, broker_id: int = ..., *, only_this: bool = ...
    ) -> BrokerAddress: ...

    def open_master(self, queue: MessageQueue) -> Peer | None: ...


class BrokerOffsetStore:
    """Offsets of a clustering group: the broker keeps them."""

    def __init__(self, session: BrokerAccess, group: str) -> None:
        self._session = session
        self._group = group
        self._table = OffsetTable()
        self.epochs: dict[MessageQueue, int] = {}
        self._begun: set[tuple[str, str]] = set()
        self._beginning: dict[tuple[str, str], asyncio.Event] = {}
        self.update = self._table.update
        self.freeze = self._table.freeze
        self.remove = self._table.remove
        self.snapshot = self._table.snapshot

    async def load(self) -> None:
        """Nothing: a queue's offset is asked for when the queue is assigned."""

    async def read(self, queue: MessageQueue, source: ReadFrom) -> int:
        if not _is_readable(queue, source):
            return BAD_ARGUMENT
        if source is not ReadFrom.STORE:
            offset = self._table[queue]
            if offset >= 0 or source is ReadFrom.MEMORY:
                return offset
        try:
            replica = await self._session.find_broker(queue)
            committed, epoch = await self._session.calls.call(
                replica.address, requests.committed_of_epoch(self._group, queue)
            )
        except PenstockError as error:
            log.warning("offset not read group=%s queue=%s error=%s", self._group, queue, error)
            return READ_FAILED
        self.epochs[queue] = epoch
        if committed is None:
            return NONE_STORED
        self._table.update(queue, committed, increase_only=False)
        return committed

    async def persist_all(self, held: Collection[MessageQueue], *, wait: bool = False) -> None:
        if not held:
            return
        offsets = self._table.snapshot()
        self._table.keep_only(held)
        for queue in self.epochs.keys() - set(held):
            del self.epochs[queue]
        # Every few seconds for each queue: a task for each would cost more than its commit.
        slow = [
            self._write_quietly(queue, offset, wait=wait)
            for queue, offset in offsets.items()
            if queue in held and (wait or not self._commits_at_once(queue, offset))
        ]
        if slow:
            await asyncio.gather(*slow)

    async def persist(self, queue: MessageQueue, *, wait: bool = False) -> None:
        offset = self._table[queue]
        if offset >= 0:
            await self._write_quietly(queue, offset, wait=wait)

    async def commit_to_broker(self, queue: MessageQueue, offset: int, *, oneway: bool) -> None:
        replica = await self._session.find_broker(queue)
        calls = self._session.calls
        request = requests.commit(self._group, queue, offset, self.epochs.get(queue))
        commit = functools.partial(calls.call, replica.address, request)
        table = requests.offset_table(queue)
        if oneway:
            await calls.tell(replica.address, request)
        elif table in self._begun:
            await commit()
        elif (first := self._beginning.get(table)) is not None:
            # Go on even if it failed: one after the other, they would wait for a silent broker as
            # many times as there are queues.
            await first.wait()
            await commit()
        else:
            first = self._beginning[table] = asyncio.Event()
            try:
                await commit()
                self._begun.add(table)
            finally:
                del self._beginning[table]
                first.set()

    def _commits_at_once(self, queue: MessageQueue, offset: int) -> bool:
        """Commit one way if that needs no waiting; whether it is done."""
        peer = None if offset < 0 else self._session.open_master(queue)
        if peer is None:
            return False
        request = requests.commit(self._group, queue, offset, self.epochs.get(queue))
        self._session.calls.tell_peer(peer, request)
        return True

    async def _write_quietly(self, queue: MessageQueue, offset: int, *, wait: bool) -> None:
        if offset < 0:
            return
        try:
            await self.commit_to_broker(queue, offset, oneway=not wait)
        except PenstockError as error:
            # Repetition at worst; the next round tries again.
            log.warning(
                "offset not committed group=%s queue=%s offset=%d error=%s",
                self._group,
                queue,
                offset,
                error,
            )


class FileOffsetStore:
    """Offsets of a broadcasting client: a file of its own.

    With ``merge`` the file keeps queues that are not held at the moment; releases before 5.2 wrote
    the held ones only. Where the file cannot be written, what should be in it stays in memory, with
    a warning, and is read from there until it could be written.
    """

    def __init__(self, directory: Path, client_id: str, group: str, *, merge: bool) -> None:
        self.path = directory / client_id / group / "offsets.json"
        self._file = StateFile(self.path)
        self._merge = merge
        self._table = OffsetTable()
        self.epochs: dict[MessageQueue, int] = {}
        self._is_writable = True
        self._unwritten: dict[MessageQueue, int] = {}
        """What the file should hold and does not. It outlives `remove`: a queue that is taken again
        begins where the file says, and would begin at the wrong place for ever."""
        self._saving = asyncio.Lock()
        self.update = self._table.update
        self.freeze = self._table.freeze
        self.remove = self._table.remove
        self.snapshot = self._table.snapshot

    async def load(self) -> None:
        loaded = await self._load()
        for queue, offset in loaded.offset_table.items():
            self._table.update(queue, offset, increase_only=False)
        self.epochs.update(loaded.penstock_epochs or {})

    async def read(self, queue: MessageQueue, source: ReadFrom) -> int:
        if not _is_readable(queue, source):
            return NONE_STORED
        if source is not ReadFrom.STORE:
            offset = self._table[queue]
            if offset >= 0 or source is ReadFrom.MEMORY:
                return offset
        unwritten = self._unwritten.get(queue)
        if unwritten is not None:
            offset = unwritten
        else:
            try:
                loaded = await self._load()
            except StoreError as error:
                log.warning("offset file not read path=%s error=%s", self.path, error)
                return NONE_STORED
            offset = loaded.offset_table.get(queue, NONE_STORED)
            epoch = (loaded.penstock_epochs or {}).get(queue)
            if epoch is not None:
                self.epochs[queue] = epoch
        if offset >= 0:
            self._table.update(queue, offset, increase_only=False)
        return offset

    async def persist_all(self, held: Collection[MessageQueue], *, wait: bool = False) -> None:
        if held:
            offsets = {queue: o for queue, o in self._table.snapshot().items() if queue in held}
            await self._save(offsets, merge=self._merge)

    async def persist(self, queue: MessageQueue, *, wait: bool = False) -> None:
        offset = self._table[queue]
        if offset >= 0:
            await self._save({queue: offset}, merge=True)

    async def commit_to_broker(self, queue: MessageQueue, offset: int, *, oneway: bool) -> None:
        """Nothing: no broker keeps these."""

    async def _load(self) -> LocalOffsets:
        return await asyncio.get_running_loop().run_in_executor(None, self._load_now)

    def _load_now(self) -> LocalOffsets:
        data = self._file.load(_parse)
        return LocalOffsets() if data is None else _parse(data)

    async def _save(self, offsets: Mapping[MessageQueue, int], *, merge: bool) -> None:
        async with self._saving:
            due = {**self._unwritten, **offsets}
            loop = asyncio.get_running_loop()
            content = due if merge else offsets
            # An offset without its epoch is that of a topic of which nothing is known.
            epochs = {queue: self.epochs[queue] for queue in content if queue in self.epochs}
            is_written = await loop.run_in_executor(
                None, self._save_now, LocalOffsets(dict(content), epochs or None), merge
            )
            self._unwritten = {} if is_written else due

    def _save_now(self, new: LocalOffsets, merge: bool) -> bool:
        try:
            self._file.save(encode_body(_merged(self._load_now(), new) if merge else new))
        except StoreError as error:
            if self._is_writable:
                log.warning(
                    "offsets kept in memory only, the file cannot be written path=%s error=%s",
                    self.path,
                    error,
                )
            self._is_writable = False
        else:
            self._is_writable = True
        return self._is_writable


def _parse(data: bytes) -> LocalOffsets:
    return decode_body(LocalOffsets, data)


def _merged(old: LocalOffsets, new: LocalOffsets) -> LocalOffsets:
    """What a file holds after a save that leaves other queues as they were."""
    kept = {
        queue: epoch
        for queue, epoch in (old.penstock_epochs or {}).items()
        if queue not in new.offset_table
    }
    epochs = {**kept, **(new.penstock_epochs or {})}
    return LocalOffsets({**old.offset_table, **new.offset_table}, epochs or None)
