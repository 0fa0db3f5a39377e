"""The mirror of a stream's progress: a consumer group that follows it."""

from __future__ import annotations

import json
import logging
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from tests.spark.source.brokers import create, running

from penstock import MessageQueue
from penstock.client.cluster_access import ClusterAccess
from penstock.spark.source.cluster import Cluster
from penstock.spark.source.group_progress import GroupProgress, ProgressListener
from penstock.spark.source.options import parse_read
from penstock.spark.source.topic_driver import TopicDriver
from penstock.testing.embedded import Embedded


def test_the_group_moves_where_it_can_while_a_broker_is_away(
    mq: Embedded, caplog: pytest.LogCaptureFixture
) -> None:
    create(mq.namesrv, "orders", 2)
    cluster = Cluster(ClusterAccess.of(mq.namesrv), "audit")
    progress = GroupProgress(cluster)
    here = [MessageQueue("orders", "broker-a", number) for number in range(2)]
    away = MessageQueue("orders", "broker-z", 0)
    with caplog.at_level(logging.WARNING):
        progress.commit({away: 5, here[0]: 3, here[1]: 2})
    assert cluster.committed(here, guessed=False) == {here[0]: 3, here[1]: 2}
    assert "no broker 'broker-z'" in caplog.text
    caplog.clear()
    progress.commit({away: 6, here[0]: 4, here[1]: 2})
    assert cluster.committed(here, guessed=False) == {here[0]: 4, here[1]: 2}
    assert not caplog.text, "what failed is left alone for a while"


def progressed(run: str, namesrv: str, *offsets: int) -> Any:
    """The event at the end of a batch; each offset is that of a queue."""
    end = {"group": "audit", "namesrv": namesrv}
    nested = {"orders": {"broker-a": {str(n): offset for n, offset in enumerate(offsets)}}}
    source = SimpleNamespace(description="s", endOffset=json.dumps({**end, "offsets": nested}))
    return SimpleNamespace(progress=SimpleNamespace(runId=run, sources=[source]))


def test_of_several_queries_the_slowest_decides(mq: Embedded) -> None:
    create(mq.namesrv, "orders", 2)
    cluster = Cluster(ClusterAccess.of(mq.namesrv), "audit")
    queues = [MessageQueue("orders", "broker-a", number) for number in range(2)]
    listener = ProgressListener()

    def committed() -> list[int]:
        found = cluster.committed(queues, guessed=False)
        return [found[queue] for queue in queues]

    listener.onQueryProgress(progressed("one", mq.namesrv, 5, 9))
    assert committed() == [5, 9]
    listener.onQueryProgress(progressed("two", mq.namesrv, 8, 3))
    assert committed() == [5, 3]
    listener.onQueryProgress(progressed("one", mq.namesrv, 9, 9))
    assert committed() == [8, 3]
    # A query that ended does not hold the others back.
    listener.onQueryTerminated(SimpleNamespace(runId="two"))  # type: ignore[arg-type]
    assert committed() == [9, 9]
    listener.onQueryTerminated(SimpleNamespace(runId="one"))  # type: ignore[arg-type]
    assert committed() == [9, 9]


def test_a_failed_commit_is_repeated_while_the_query_is_idle(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("penstock.spark.source.group_progress.RETRY_SECONDS", 0.0)
    with running(tmp_path / "data") as up:
        create(up.namesrv, "orders", 1)
        listener = ProgressListener()
        listener.onQueryProgress(progressed("one", up.namesrv, 1))
        up.kill()
        listener.onQueryProgress(progressed("one", up.namesrv, 5))
        up.start()
        listener.onQueryIdle(SimpleNamespace(runId="one"))  # type: ignore[arg-type]
        cluster = Cluster(ClusterAccess.of(up.namesrv), "audit")
        queue = MessageQueue("orders", "broker-a", 0)
        assert cluster.committed([queue], guessed=False) == {queue: 5}


def test_a_stream_leaves_commits_to_a_listener_that_can_commit(mq: Embedded) -> None:
    create(mq.namesrv, "orders", 1)
    options = parse_read({"namesrv": mq.namesrv, "topic": "orders", "group": "audit"})
    cases = {(True, True): False, (True, False): True, (False, True): True}
    for (has_listener, is_known), commits in cases.items():
        access = options.access
        if not is_known:
            credentials = {"accessKey": "a", "secretKey": "s"}
            access = parse_read({"namesrv": mq.namesrv, "topic": "orders", **credentials}).access
        driver = TopicDriver(replace(options, access=access), has_listener=has_listener)
        assert (driver._progress is not None) is commits
        driver.close()
