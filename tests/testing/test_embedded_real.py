"""Embedded clusters on real sockets: everything a program may do with one."""

from __future__ import annotations

import asyncio
import contextlib
import gc
import socket
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

import penstock
from penstock import (
    Admin,
    Message,
    Producer,
    PullConsumer,
    PushConsumer,
    StoredMessage,
    aio,
    embedded,
)
from penstock.errors import (
    InvalidArgument,
    LifecycleError,
    PenstockError,
    StoreError,
    StoreLocked,
)
from penstock.remoting.addresses import parse_address
from penstock.testing.embedded import Embedded


def wait_for(condition: Callable[[], object], seconds: float = 20.0) -> None:
    """Wait for a state, in code that has no loop."""
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline, f"not within {seconds} s"
        time.sleep(0.005)


def is_listening(address: str) -> bool:
    with contextlib.suppress(OSError), socket.create_connection(parse_address(address), 1):
        return True
    return False


def our_threads() -> set[str]:
    return {thread.name for thread in threading.enumerate() if "penstock" in thread.name}


def open_files() -> set[str]:
    """Sockets and files; not pipes, of which the loop's library keeps one for the process."""
    links: set[str] = set()
    for entry in Path("/proc/self/fd").iterdir():
        with contextlib.suppress(OSError):
            links.add(str(entry.readlink()))
    return {link for link in links if not link.startswith("pipe:")}


@pytest.fixture
def nothing_left() -> Iterator[None]:
    """Fails a test that leaves threads, sockets or open files behind."""
    threads, files = set(threading.enumerate()), open_files()
    yield
    gc.collect()  # an answer on its way keeps the log mapped until it is collected
    assert set(threading.enumerate()) <= threads
    assert open_files() <= files


def test_a_message_goes_from_a_producer_to_a_handler(nothing_left: None) -> None:
    got: list[StoredMessage] = []
    with embedded() as mq:
        mq.admin.create_topic("orders", 2)
        consumer = PushConsumer(group="billing", namesrv=mq.namesrv, start_from="first")

        @consumer.on("orders", tags="created || paid")
        def bill(message: StoredMessage) -> None:
            got.append(message)

        with consumer, Producer(group="shop", namesrv=mq.namesrv) as producer:
            producer.send(Message("orders", b"1", keys=["o-1"], tag="created"))
            producer.send(Message("orders", b"2", tag="cancelled"))
            producer.send(Message("orders", b"3", tag="paid"))
            wait_for(lambda: len(got) == 2)
    assert sorted(message.body for message in got) == [b"1", b"3"]


def test_the_first_example_of_the_design_runs(nothing_left: None) -> None:
    billed: list[bytes] = []
    with embedded() as mq:
        with Producer(group="shop", namesrv=mq.namesrv) as producer:
            producer.send(Message("orders", b"...", keys=["o-1"], tag="created"))

        consumer = PushConsumer(group="billing", namesrv=mq.namesrv)

        @consumer.on("orders", tags="created || paid")
        def bill(message: StoredMessage) -> None:
            billed.append(message.body)

        running = threading.Thread(target=consumer.run)
        running.start()
        wait_for(lambda: billed)
        consumer.stop()
        running.join()
    assert billed == [b"..."]


def test_coroutines_get_the_same_cluster() -> None:
    async def main() -> list[bytes]:
        got: list[bytes] = []
        done = asyncio.Event()
        async with aio.embedded() as mq:
            assert is_listening(mq.namesrv)
            await mq.admin.create_topic("orders", 1)
            consumer = aio.PushConsumer("billing", namesrv=mq.namesrv, start_from="first")

            @consumer.on("orders")
            async def bill(message: StoredMessage) -> None:
                got.append(message.body)
                done.set()

            async with consumer, aio.Producer("shop", namesrv=mq.namesrv) as producer:
                await producer.send(Message("orders", b"1"))
                await asyncio.wait_for(done.wait(), 20)
            assert await mq.admin.topics() == ["orders"]
        return got

    before = set(threading.enumerate())
    assert asyncio.run(main()) == [b"1"]
    assert set(threading.enumerate()) <= before


def test_two_brokers_share_the_queues_of_a_topic(nothing_left: None) -> None:
    with embedded(brokers=2) as mq:
        assert {row.broker_name for row in mq.admin.cluster()} == {"broker-a", "broker-b"}
        mq.admin.create_topic("orders", 2)
        with Producer("shop", namesrv=mq.namesrv) as producer:
            receipts = [producer.send(Message("orders", b"x")) for _ in range(8)]
            assert len(producer.queues("orders")) == 4
        assert {receipt.queue.broker_name for receipt in receipts} == {"broker-a", "broker-b"}
        assert {path.name for path in mq.data.iterdir()} >= {"broker-a", "broker-b"}


def test_two_clusters_know_nothing_of_each_other(nothing_left: None) -> None:
    with embedded() as one, embedded() as other:
        assert one.namesrv != other.namesrv
        assert one.data != other.data
        one.admin.create_topic("orders", 1)
        assert other.admin.topics() == []


def test_temporary_data_is_gone_afterwards_and_so_are_sockets_and_threads(
    nothing_left: None,
) -> None:
    with embedded() as mq:
        data, namesrv = mq.data, mq.namesrv
        broker = mq.admin.cluster()[0].address
        assert data.is_dir()
        assert is_listening(namesrv)
        assert is_listening(broker)
        assert our_threads()
    assert not data.exists()
    assert not is_listening(namesrv)
    assert not is_listening(broker)
    assert not our_threads()


def test_a_given_directory_keeps_what_was_stored(tmp_path: Path) -> None:
    with embedded(tmp_path / "data") as mq:
        assert mq.data == tmp_path / "data"
        mq.admin.create_topic("orders", 1)
        with Producer("shop", namesrv=mq.namesrv) as producer:
            receipt = producer.send(Message("orders", b"kept", keys=["o-1"]))
    assert (tmp_path / "data" / "broker-a" / "commitlog").is_dir()
    with embedded(str(tmp_path / "data")) as mq:
        [found] = mq.admin.query("orders", "o-1")
        assert (found.body, found.msg_id) == (b"kept", receipt.msg_id)


def test_fewer_brokers_than_stores_are_refused_by_name(tmp_path: Path, nothing_left: None) -> None:
    with embedded(tmp_path, brokers=2):
        pass
    with pytest.raises(StoreError, match=r"broker-a, broker-b, but only broker-a would run"):
        embedded(tmp_path).__enter__()
    with embedded(tmp_path, brokers=2) as mq:
        assert len(mq.admin.cluster()) == 2


def test_a_directory_serves_one_cluster_at_a_time(tmp_path: Path) -> None:
    with embedded(tmp_path) as mq:
        before = our_threads()
        with pytest.raises(StoreLocked, match="broker broker-a: "):
            embedded(tmp_path).__enter__()
        assert our_threads() == before
        assert mq.admin.topics() == []


def test_a_directory_that_cannot_be_is_named(tmp_path: Path, nothing_left: None) -> None:
    (tmp_path / "file").write_bytes(b"")
    with pytest.raises(StoreError, match=r"data directory .*file/data cannot be written"):
        embedded(tmp_path / "file" / "data").__enter__()


def test_a_start_that_failed_leaves_nothing_for_coroutines_either(
    tmp_path: Path, nothing_left: None
) -> None:
    (tmp_path / "file").write_bytes(b"")

    async def main() -> None:
        with pytest.raises(StoreError, match="cannot be written"):
            await aio.embedded(tmp_path / "file" / "data").__aenter__()

    asyncio.run(main())


def test_nothing_can_be_asked_before_the_block_or_after_it() -> None:
    mq = embedded()
    for ask in (lambda: mq.namesrv, lambda: mq.data, lambda: mq.admin, lambda: mq.clock.time()):
        with pytest.raises(LifecycleError, match="is not running"):
            ask()
    with mq:
        assert "running" in repr(mq)
    with pytest.raises(LifecycleError, match="is not running"):
        _ = mq.namesrv
    with pytest.raises(LifecycleError, match="started twice"):
        mq.__enter__()


def test_real_time_cannot_be_advanced(nothing_left: None) -> None:
    with embedded() as mq:
        assert abs(mq.clock.time() - time.time()) < 60
        assert mq.clock.time_ms() > 0
        with pytest.raises(LifecycleError, match=r"embedded\(clock='virtual'\)"):
            mq.clock.advance("2h")
        with pytest.raises(LifecycleError, match="real sockets"):
            _ = mq.network


@pytest.mark.parametrize("brokers", [0, -1, 27, True, "2"])
def test_an_impossible_number_of_brokers_is_an_error(brokers: int) -> None:
    with pytest.raises(InvalidArgument, match="1 to 26"):
        embedded(brokers=brokers)


def test_a_clock_that_is_none_is_an_error() -> None:
    with pytest.raises(InvalidArgument, match="'virtual'"):
        embedded(clock="fake")  # type: ignore[arg-type]  # what the test is about


def test_an_error_in_the_block_comes_through_and_everything_ends(nothing_left: None) -> None:
    def fail(mq: Embedded) -> None:
        mq.admin.topics()
        raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError), embedded() as mq:
        fail(mq)


def test_a_broker_that_died_is_not_passed_over(nothing_left: None) -> None:
    def kill(mq: Embedded) -> None:
        cluster = mq._embedding._cluster
        assert cluster is not None
        task = cluster.brokers["broker-a"]._task
        assert task is not None
        mq._embedding.host.call_soon(task.cancel)
        wait_for(lambda: task.done() and not cluster.is_running)

    mq = embedded()
    mq.__enter__()
    kill(mq)
    with pytest.raises(LifecycleError, match="Broker was cancelled"):
        mq.__exit__(None, None, None)


def test_clients_of_other_processes_find_it(nothing_left: None) -> None:
    with embedded() as mq, Admin(namesrv=mq.namesrv) as admin:
        admin.create_topic("orders", 1)
        with PullConsumer("g", namesrv=mq.namesrv, start_from="first") as consumer:
            consumer.subscribe("orders")
            with Producer("shop", namesrv=[mq.namesrv]) as producer:
                producer.send(Message("orders", b"1"))
            assert next(iter(consumer)).body == b"1"


def test_the_names_are_public_and_errors_are_ours() -> None:
    assert penstock.embedded is embedded
    assert {"Admin", "embedded"} <= set(dir(penstock))
    assert {"Admin", "embedded"} <= set(aio.__all__)
    assert issubclass(InvalidArgument, PenstockError)
    with pytest.raises(AttributeError, match="Embedder"):
        _ = aio.Embedder


@pytest.mark.parametrize("brokers", [1, 2])
def test_official_clients_are_served(brokers: int) -> None:
    with embedded(grpc=True, brokers=brokers) as mq:
        host, port = mq.grpc.split(":")
        with socket.create_connection((host, int(port)), timeout=10):
            pass
    with embedded() as mq, pytest.raises(LifecycleError, match="grpc=True"):
        _ = mq.grpc
    with pytest.raises(InvalidArgument, match="real time"):
        embedded(grpc=True, clock="virtual")
