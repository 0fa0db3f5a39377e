"""Commits a stream's progress to a consumer group, so that every lag tool sees the job.

Spark's checkpoint decides where a stream continues; the group's offsets only follow it, and are
read only by a query without a checkpoint that starts at the group's offsets. Two parts commit:

- the stream's own process, when Spark asks for the next batch, so after the one before;
- a listener in the driver program, at the end of every batch: for the last batch of a query, or
  one whose next trigger is an hour away.

The listener has only what is in the offsets, which hold no secrets: with credentials it commits if
they are in the environment.
"""

from __future__ import annotations

import json
import logging
import time
from collections.abc import Mapping, Sequence
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
        """Commit; a broker that is away or refuses stops neither the stream nor other commits.

        Its queues are skipped for a while.
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
    namesrv = access.addresses
    # Only if the listener can reach the cluster: it has the environment, not the options.
    if group is not None and ClusterAccess.of(namesrv, namespace=access.namespace) == access:
        offset["group"] = group
        offset["namesrv"] = namesrv
        if access.namespace:
            offset["namespace"] = access.namespace
    return offset


class ProgressListener(StreamingQueryListener):
    """Commits the progress of every finished batch of a session's streams."""

    def __init__(self) -> None:
        self._progress: dict[tuple[str, str, str | None], GroupProgress] = {}

    def onQueryStarted(self, event: QueryStartedEvent) -> None:
        pass

    def onQueryIdle(self, event: QueryIdleEvent) -> None:
        pass

    def onQueryTerminated(self, event: QueryTerminatedEvent) -> None:
        pass

    def onQueryProgress(self, event: QueryProgressEvent) -> None:
        for source in event.progress.sources:
            try:
                self._show(json.loads(source.endOffset))
            except Exception:
                # The listener bus belongs to Spark: no exception may leave this method.
                log.exception("progress is not committed source=%s", source.description)

    def _show(self, offset: Any) -> None:
        if not isinstance(offset, dict) or not isinstance(offset.get("offsets"), dict):
            return  # of another format
        group, namesrv = offset.get("group"), offset.get("namesrv")
        namespace = offset.get("namespace")
        if not isinstance(group, str) or not isinstance(namesrv, str):
            return
        key = (group, namesrv, namespace)
        progress = self._progress.get(key)
        if progress is None:
            access = ClusterAccess.of(namesrv, namespace=namespace)
            progress = self._progress[key] = GroupProgress(Cluster(access, access.long_name(group)))
        progress.commit(offsets_of(offset["offsets"]))
