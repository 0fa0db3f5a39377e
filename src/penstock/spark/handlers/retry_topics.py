"""The retry topic of a group, made before somebody reads it."""

from __future__ import annotations

from typing import Final

from penstock.admin.blocking import Admin
from penstock.client.cluster_access import ClusterAccess
from penstock.errors import TopicNotFound
from penstock.model import TopicRoute
from penstock.model.names import retry_topic
from penstock.spark.wire import Wire

RETRY_QUEUES: Final = 1
"""retryQueueNums: what brokers give a retry topic that they make themselves."""


def ensure_retry_topic(access: ClusterAccess, group: str) -> TopicRoute:
    """The route of the group's retry topic; one that is missing is made, on every broker."""
    topic = retry_topic(group)
    try:
        return Wire.shared(access).route(topic)
    except TopicNotFound:
        pass
    with Admin(**access.as_keywords()) as admin:
        return admin.create_topic(topic, queues=RETRY_QUEUES)
