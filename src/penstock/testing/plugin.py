"""The pytest plugin: clusters as fixtures. It imports nothing of Penstock until one is asked for.

def test_a_bill_is_retried(penstock):
    with PushConsumer("billing", namesrv=penstock.namesrv) as consumer: ...
    penstock.clock.advance("2h")
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from penstock.testing.embedded import AsyncEmbedded, Embedded


@pytest.fixture
def penstock() -> Iterator[Embedded]:
    """A name server and a broker in virtual time: ``penstock.clock.advance("2h")``."""
    from penstock.testing.embedded import embedded

    with embedded(clock="virtual") as mq:
        yield mq


@pytest.fixture
def penstock_aio() -> Iterator[AsyncEmbedded]:
    """The same for tests that are coroutines: ``await penstock_aio.clock.advance("2h")``."""
    from penstock.testing.embedded import running_async

    with running_async(clock="virtual") as mq:
        yield mq


@pytest.fixture
def penstock_broker() -> Iterator[Embedded]:
    """A name server and a broker on real sockets, for any client and in real time."""
    from penstock.testing.embedded import embedded

    with embedded() as mq:
        yield mq
