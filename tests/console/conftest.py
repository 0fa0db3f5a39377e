"""One cluster for the tests of a module; each uses topics and groups of its own."""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterator

import pytest
from tests.console.browsing import Browser, browsing

from penstock.testing.embedded import Embedded, embedded


@pytest.fixture(scope="module")
def mq() -> Iterator[Embedded]:
    with embedded() as running:
        yield running


@pytest.fixture
async def browser(mq: Embedded) -> AsyncIterator[Browser]:
    async with browsing(mq.namesrv) as browser:
        yield browser
