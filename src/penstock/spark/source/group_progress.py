"""Showing a stream's progress as that of a consumer group, so that every lag tool sees the job.

The truth is in Spark's checkpoint; the group is a mirror of it and never read back, unless a query
without a checkpoint is told to start at the group's place. Two parts look into it:

- the stream's own process, whenever Spark asks it for the next batch, so once the one before is
  finished;
- a listener in the driver program, at the end of every batch. It is the one that shows the last
  batch of a query that stops there, and of one whose next trigger is an hour away.

The listener knows what stands in the offsets, and that holds no secrets: with credentials it takes
part when they are in the environment.
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
"""How long a queue in which the group could not be moved is left alone."""

NEW_GROUP_SECONDS: Final = 0.2


class GroupProgress:
    """One group's place, as last shown."""

    def __init__(self, cluster: Cluster) -> None:
        self._cluster = cluster
        self._committed: dict[MessageQueue, int] = {}
        self._again_at: dict[MessageQueue, float] = {}

    def commit(self, offsets: Mapping[MessageQueue, int]) -> None:
        """Move the group; a broker that is away or refuses stops neither the stream nor the rest.

        Its queues are left alone for a while.
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
        # Apache's broker makes a group with its first pull, which has not come yet.
        if all(isinstance(error, GroupNotFound) for error in failures):
            return NEW_GROUP_SECONDS
        self._cluster.forget_routes()
        group = self._cluster.group
        for error in dict.fromkeys(map(str, failures)):
            log.warning("progress is not mirrored group=%s error=%s", group, error)
        return RETRY_SECONDS


def offset_json(
    access: ClusterAccess, group: str | None, offsets: Mapping[MessageQueue, int]
) -> dict[str, object]:
    """An offset as Spark keeps it; a group in it tells the listener what to commit."""
    offset: dict[str, object] = {"offsets": nested_offsets(offsets)}
    namesrv = access.addresses
    # What the listener cannot do, it must not try: it has the environment, not the options.
    if group is not None and ClusterAccess.of(namesrv, namespace=access.namespace) == access:
        offset["group"] = group
        offset["namesrv"] = namesrv
        if access.namespace:
            offset["namespace"] = access.namespace
    return offset


class ProgressListener(StreamingQueryListener):
    """Mirrors every finished batch of the streams of a session."""

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
                # The listener's bus belongs to Spark: nothing may leave from here.
                log.exception("progress is not mirrored source=%s", source.description)

    def _show(self, offset: Any) -> None:
        if not isinstance(offset, dict) or not isinstance(offset.get("offsets"), dict):
            return  # another format's
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
