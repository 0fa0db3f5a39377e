"""A started broker in a directory of its own, and clients that talk to it over a socket."""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import AsyncExitStack
from pathlib import Path

import pytest
from tests.support.wire import Wire

from penstock.broker import Broker, BrokerConfig
from penstock.store import StoreConfig

# Small files, so that tests see more than one of each.
SMALL_STORE = StoreConfig(
    mapped_file_size_commit_log=1 << 20,
    mapped_file_size_consume_queue=6000,
    max_hash_slot_num=100,
    max_index_num=400,
)

MakeBroker = Callable[..., Awaitable[Broker]]
Connect = Callable[..., Awaitable[Wire]]


@pytest.fixture
def small_store() -> StoreConfig:
    return SMALL_STORE


@pytest.fixture
async def make_broker(tmp_path: Path) -> AsyncIterator[MakeBroker]:
    """Start brokers; ``settings`` go to `BrokerConfig`, the rest to `Broker`."""
    async with AsyncExitStack() as stack:

        async def start(
            root: Path | None = None, *, settings: dict[str, object] | None = None, **more: object
        ) -> Broker:
            given: dict[str, object] = {"listen_port": 0, **(settings or {})}
            more.setdefault("store_config", SMALL_STORE)
            broker = Broker(
                BrokerConfig(**given),  # type: ignore[arg-type]  # keywords of a test
                root or tmp_path / "store",
                **more,  # type: ignore[arg-type]  # keywords of a test
            )
            return await stack.enter_async_context(broker)

        yield start


@pytest.fixture
async def broker(make_broker: MakeBroker) -> Broker:
    return await make_broker()


@pytest.fixture
async def connect(broker: Broker) -> AsyncIterator[Connect]:
    """Open more connections to the broker; keywords of `Wire.connect`."""
    async with AsyncExitStack() as stack:

        async def open_one(port: int | None = None, **more: object) -> Wire:
            wire = await Wire.connect(port or broker.port, **more)  # type: ignore[arg-type]
            return await stack.enter_async_context(wire)

        yield open_one


@pytest.fixture
async def wire(connect: Connect) -> Wire:
    return await connect()
