"""Commits a stream's progress to a consumer group, so that every lag tool sees the job.

Spark's checkpoint decides where a stream continues; the group's offsets only follow it, and are
read only by a query without a checkpoint that starts at the group's offsets. There are two ways to
commit:

- a listener in the driver program, at the end of every batch. It sees all queries of a session. If
  several of them commit to one group, as two queries from one ``load()`` do, the group's offset in
  a queue is that of the slowest;
- the stream's own process, when Spark asks for the next batch, so after the one before. It does
  where there is no listener, or where the listener cannot: it has only what is in the offsets,
  which hold no secrets, so credentials have to be in the environment.
"""

from __future__ import annotations

import json
import logging
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, Final

from pyspark.sql.streaming.listener import StreamingQueryListener

from penstock.client.cluster_access import ClusterAccess
from penstock.errors import GroupNotFound, PenstockError
from penstock.model import MessageQueue
from penstock.spark.source.cluster import Cluster
from penstock.spark.source.options import nested_offsets, offsets_of

if TYPE_CHECKING:
    from pyspark.sql.streaming.listener import (
        QueryIdleEvent,
        QueryProgressEvent,
        QueryStartedEvent,
        QueryTerminatedEvent,
    )

log = logging.getLogger(__name__)

RETRY_SECONDS: Final = 5.0
"""The pause after a failed commit, per queue."""

NEW_GROUP_SECONDS: Final = 0.2


class GroupProgress:
    """The offsets of one group, as last committed."""

    def __init__(self, cluster: Cluster) -> None:
        self._cluster = cluster
        self._committed: dict[MessageQueue, int] = {}
        self._again_at: dict[MessageQueue, float] = {}

    def commit(self, offsets: Mapping[MessageQueue, int]) -> None:
        """Commit what has changed.

        A broker that is away or refuses stops neither the stream nor other commits; its queues are
        skipped for a while.
        """
        now = time.monotonic()
        news = {
            queue: at
            for queue, at in offsets.items()
            if self._committed.get(queue) != at and now >= self._again_at.get(queue, 0.0)
        }
        if not news:
            return
        failures: list[PenstockError] = []
        moved: list[MessageQueue] = []
        try:
            moved = self._cluster.commit(news, failures)
        except PenstockError as error:
            failures.append(error)
        self._committed.update({queue: news[queue] for queue in moved})
        if failures:
            again_at = time.monotonic() + self._pause(failures)
            self._again_at.update(dict.fromkeys(news.keys() - set(moved), again_at))

    def _pause(self, failures: Sequence[PenstockError]) -> float:
        # Apache's broker creates a group with its first pull, which may still be missing.
        if all(isinstance(error, GroupNotFound) for error in failures):
            return NEW_GROUP_SECONDS
        self._cluster.forget_routes()
        group = self._cluster.group
        for error in dict.fromkeys(map(str, failures)):
            log.warning("progress is not committed group=%s error=%s", group, error)
        return RETRY_SECONDS


def offset_json(
    access: ClusterAccess, group: str | None, offsets: Mapping[MessageQueue, int]
) -> dict[str, object]:
    """An offset as Spark keeps it; a group in it tells the listener what to commit."""
    offset: dict[str, object] = {"offsets": nested_offsets(offsets)}
    if group is not None and is_known_to_listener(access):
        offset["group"] = group
        offset["namesrv"] = access.addresses
        if access.namespace:
            offset["namespace"] = access.namespace
    return offset


def is_known_to_listener(access: ClusterAccess) -> bool:
    """Whether the listener can reach the cluster: it has the environment, not the options."""
    return ClusterAccess.of(access.addresses, namespace=access.namespace) == access


class _Followed:
    """The positions of all queries that commit to one group."""

    def __init__(self, progress: GroupProgress) -> None:
        self._progress = progress
        self._positions: dict[tuple[str, int], dict[MessageQueue, int]] = {}

    def move(self, run: str, source: int, offsets: dict[MessageQueue, int]) -> None:
        """Take note of where a source of a query is, and commit."""
        self._positions[run, source] = offsets
        self.commit()

    def commit(self) -> None:
        """Commit the slowest position in each queue."""
        slowest: dict[MessageQueue, int] = {}
        for offsets in self._positions.values():
            for queue, offset in offsets.items():
                slowest[queue] = min(offset, slowest.get(queue, offset))
        self._progress.commit(slowest)

    def forget(self, run: str) -> None:
        """A query ended: from now on the others decide."""
        self.commit()
        self._positions = {key: at for key, at in self._positions.items() if key[0] != run}
        self.commit()


class ProgressListener(StreamingQueryListener):
    """Commits the progress of every finished batch of a session's streams."""

    def __init__(self) -> None:
        self._groups: dict[tuple[str, str, str | None], _Followed] = {}

    def onQueryStarted(self, event: QueryStartedEvent) -> None:
        pass

    def onQueryIdle(self, event: QueryIdleEvent) -> None:
        # What failed is tried again.
        for followed in self._groups.values():
            with _logged("idle"):
                followed.commit()

    def onQueryTerminated(self, event: QueryTerminatedEvent) -> None:
        for followed in self._groups.values():
            with _logged("terminated"):
                followed.forget(str(event.runId))

    def onQueryProgress(self, event: QueryProgressEvent) -> None:
        for number, source in enumerate(event.progress.sources):
            with _logged(source.description):
                self._show(str(event.progress.runId), number, json.loads(source.endOffset))

    def _show(self, run: str, source: int, offset: Any) -> None:
        if not isinstance(offset, dict) or not isinstance(offset.get("offsets"), dict):
            return  # of another format
        group, namesrv = offset.get("group"), offset.get("namesrv")
        namespace = offset.get("namespace")
        if not isinstance(group, str) or not isinstance(namesrv, str):
            return
        key = (group, namesrv, namespace)
        followed = self._groups.get(key)
        if followed is None:
            access = ClusterAccess.of(namesrv, namespace=namespace)
            progress = GroupProgress(Cluster(access, access.long_name(group)))
            followed = self._groups[key] = _Followed(progress)
        followed.move(run, source, offsets_of(offset["offsets"]))


@contextmanager
def _logged(about: str) -> Iterator[None]:
    """Log every exception: the listener bus belongs to Spark, and none may get there."""
    try:
        yield
    except Exception:
        log.exception("progress is not committed source=%s", about)
