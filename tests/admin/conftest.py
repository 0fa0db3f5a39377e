"""A cluster of two brokers in virtual time, and what tests put into it."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from penstock.testing.embedded import Embedded, embedded


@pytest.fixture
def mq() -> Iterator[Embedded]:
    with embedded(brokers=2, clock="virtual") as mq:
        yield mq
