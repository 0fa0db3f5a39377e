"""The retry topic of a group, made before somebody reads it."""

from __future__ import annotations

from typing import Final

from penstock.admin.blocking import Admin
from penstock.errors import TopicNotFound
from penstock.model import TopicRoute
from penstock.model.names import retry_topic
from penstock.spark.connections import Access
from penstock.spark.wire import Wire

RETRY_QUEUES: Final = 1
"""retryQueueNums: what brokers give a retry topic that they make themselves."""


def ensure_retry_topic(access: Access, group: str) -> TopicRoute:
    """The route of the group's retry topic; one that is missing is made, on every broker."""
    topic = retry_topic(group)
    try:
        return Wire.shared(access).route(topic)
    except TopicNotFound:
        pass
    with Admin(
        namesrv=access.namesrv,
        access_key=access.access_key,
        secret_key=access.secret_key,
        security_token=access.security_token,
        tls=access.tls,
        namespace=access.namespace,
    ) as admin:
        return admin.create_topic(topic, queues=RETRY_QUEUES)
