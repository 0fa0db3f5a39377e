"""The mirror of a stream's progress: a consumer group that follows it."""

from __future__ import annotations

import logging

import pytest
from tests.spark.source.brokers import create

from penstock import MessageQueue
from penstock.client.cluster_access import ClusterAccess
from penstock.spark.source.cluster import Cluster
from penstock.spark.source.group_progress import GroupProgress
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
