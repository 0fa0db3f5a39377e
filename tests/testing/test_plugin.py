"""The pytest plugin, in this run and in one of its own."""

from __future__ import annotations

import subprocess
import sys
import textwrap
from pathlib import Path

from penstock import Message, Producer, PushConsumer, RetryLater, StoredMessage, aio
from penstock.testing.embedded import AsyncEmbedded, Embedded


def test_the_fixture_is_a_cluster_in_virtual_time(penstock: Embedded) -> None:
    attempts: list[int] = []
    consumer = PushConsumer("billing", namesrv=penstock.namesrv, start_from="first")

    @consumer.on("orders")
    def bill(message: StoredMessage) -> None:
        attempts.append(message.reconsume_times)
        if not message.reconsume_times:
            raise RetryLater("5m")

    penstock.admin.create_topic("orders", 1)
    with consumer, Producer("shop", namesrv=penstock.namesrv) as producer:
        producer.send(Message("orders", b"1"))
        penstock.clock.advance("6m")
    assert attempts == [0, 1]


async def test_a_coroutine_has_a_fixture_of_its_own(penstock_aio: AsyncEmbedded) -> None:
    got: list[bytes] = []
    namesrv = penstock_aio.namesrv
    consumer = aio.PushConsumer("billing", namesrv=namesrv, start_from="first")

    @consumer.on("orders")
    async def bill(message: StoredMessage) -> None:
        got.append(message.body)

    await penstock_aio.admin.create_topic("orders", 1)
    async with consumer, aio.Producer("shop", namesrv=namesrv) as producer:
        await producer.send(Message("orders", b"1"))
        await penstock_aio.clock.advance("5s")
    assert got == [b"1"]


def test_a_cluster_on_real_sockets_is_there_too(penstock_broker: Embedded) -> None:
    assert penstock_broker.namesrv.startswith("127.0.0.1:")
    assert penstock_broker.admin.topics() == []


def run_pytest(directory: Path, test: str, *arguments: str) -> subprocess.CompletedProcess[str]:
    (directory / "test_it.py").write_text(textwrap.dedent(test))
    return subprocess.run(
        [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", *arguments],
        cwd=directory,
        capture_output=True,
        text=True,
        timeout=100,
        check=False,
    )


def test_other_projects_pay_nothing_for_the_plugin(tmp_path: Path) -> None:
    ended = run_pytest(
        tmp_path,
        """
        import sys

        def test_that_has_nothing_to_do_with_it():
            loaded = {name for name in sys.modules if name.startswith("penstock")}
            assert loaded == {"penstock", "penstock.testing", "penstock.testing.plugin"}
            assert "uvloop" not in sys.modules and "orjson" not in sys.modules
        """,
        "-p",
        "no:xdist",
        "-p",
        "no:cov",
    )
    assert "1 passed" in ended.stdout, ended.stdout + ended.stderr


def test_it_is_found_without_being_named_and_tells_of_its_fixtures(tmp_path: Path) -> None:
    ended = run_pytest(
        tmp_path,
        """
        def test_it(penstock):
            assert penstock.admin.topics() == []
        """,
    )
    assert "1 passed" in ended.stdout, ended.stdout + ended.stderr
    shown = run_pytest(tmp_path, "", "--fixtures")
    assert "penstock.clock.advance" in shown.stdout
