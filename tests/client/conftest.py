"""A scripted cluster for clients that live in threads."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from tests.support.scripted import ThreadedCluster


@pytest.fixture
def cluster() -> Iterator[ThreadedCluster]:
    """One broker with topic T of four queues, on real sockets."""
    with ThreadedCluster() as running:
        running.cluster.add_topic("T")
        yield running
