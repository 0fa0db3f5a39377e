"""Exchanges store directories with popped messages in flight: none is lost, none done twice.

One broker hands out messages. Of these, some are acknowledged there, some at the other broker with
the handles of the first, and some not at all: exactly the last come again, when their time is up.
An orderly queue stays blocked until then. Raw requests: a client would give its messages back.
"""

from __future__ import annotations

import asyncio
import shutil
import time
from contextlib import ExitStack
from pathlib import Path
from typing import NamedTuple

from tests.interop.client_lab import check, same
from tests.interop.results import NOT_APPLICABLE, PASS
from tests.interop.servers import (
    BROKER_NAME,
    Cluster,
    apache_broker,
    apache_namesrv,
    penstock_up,
)
from tests.interop.toolchain import Toolchain
from tests.support.popping import Got, ack, pop
from tests.support.wire import Wire

from penstock import Admin
from penstock.protocol.headers.receipts import ReceiptHandle

GROUP = "swap-workers"
TOPIC, ORDERLY = "swap-pop", "swap-pop-orderly"
INVISIBLE = 150.0
"""Long enough for the other broker to start, and for acknowledgements there."""
LATE_SECONDS = 20.0
"""How late Apache's broker may be, and how long what must not come is waited for."""
SAVED_SECONDS = 12.0
"""Apache's broker saves orderly batches every ten seconds."""
WITHOUT_POP = "4."


class Begun(NamedTuple):
    """What the first broker handed out."""

    acked: list[Got]
    kept: list[Got]
    """To be acknowledged at the second broker."""
    left: list[Got]
    orderly: list[Got]

    @property
    def due(self) -> float:
        """When the last message comes again."""
        handles = [ReceiptHandle.parse(one.handle) for one in (*self.left, *self.orderly)]
        return max(one.pop_time + one.invisible_time for one in handles) / 1000


async def _connect(cluster: Cluster) -> Wire:
    host, _, port = cluster.broker.rpartition(":")
    return await Wire.connect(int(port), host)


async def _take(wire: Wire, topic: str, count: int, *, order: bool = False) -> list[Got]:
    got: list[Got] = []
    deadline = time.monotonic() + 60
    while len(got) < count and time.monotonic() < deadline:
        got += await pop(
            wire, group=GROUP, topic=topic, count=4, invisible=INVISIBLE, order=order, wait=2
        )
    check(len(got) == count, f"{len(got)} of {count} messages of {topic} handed out")
    return got


async def _begin(cluster: Cluster) -> Begun:
    """Hand messages out and acknowledge a third of them."""
    async with await _connect(cluster) as wire:
        for number in range(12):
            await wire.send(TOPIC, b"m-%d" % number)
        for number in range(3):
            await wire.send(ORDERLY, b"o-%d" % number)
        got = await _take(wire, TOPIC, 12)
        orderly = await _take(wire, ORDERLY, 3, order=True)
        for one in (*got[::3], orderly[0]):
            same(0, (await ack(wire, one, group=GROUP)).code, f"the answer for {one.body!r}")
        return Begun(got[::3], got[1::3], got[2::3], orderly)


async def _finish(cluster: Cluster, begun: Begun) -> str:
    """Acknowledge at the second broker, and wait for what comes again."""
    left = {one.body for one in begun.left}
    again: list[Got] = []
    orderly: list[Got] = []
    late = 0.0
    async with await _connect(cluster) as wire:
        check(time.time() < begun.due - 10, "the second broker took too long to start")
        for one in begun.kept:
            same(0, (await ack(wire, one, group=GROUP)).code, f"the answer for {one.body!r}")
        while time.time() < begun.due + LATE_SECONDS:
            for one in await pop(wire, group=GROUP, topic=TOPIC, invisible=300, wait=1):
                early = begun.due - time.time()
                check(early < 1, f"{one.body!r} came {early:.1f} s early")
                late = max(late, -early)
                same(1, one.times, f"reconsumeTimes of {one.body!r}")
                again.append(one)
            for one in await pop(
                wire, group=GROUP, topic=ORDERLY, invisible=300, order=True, wait=0
            ):
                check(time.time() > begun.due - 1, f"{one.body!r} came early")
                orderly.append(one)
    same(sorted(left), sorted(one.body for one in again), "what came again")
    same([b"o-1", b"o-2"], [one.body for one in orderly], "the orderly queue")
    return (
        f"{len(again)} of 12 messages came again, {late:.1f} s late at most; "
        f"{len(begun.kept)} were acknowledged with the handles of the other broker"
    )


def _prepare(cluster: Cluster) -> Begun:
    with Admin(namesrv=cluster.namesrv) as admin:
        admin.create_topic(TOPIC, queues=1)
        admin.create_topic(ORDERLY, queues=1)
        admin.create_group(GROUP)
    return asyncio.run(_begin(cluster))


def to_apache(toolchain: Toolchain, directory: Path, *, killed: bool) -> tuple[str, str]:
    """Apache's broker continues with the check-points of ours."""
    if toolchain.version.startswith(WITHOUT_POP):
        return NOT_APPLICABLE, "no pop consumption before 5.0"
    store = directory / "store"
    with penstock_up(directory) as cluster:
        begun = _prepare(cluster)
        if killed:
            # Tables are saved every few seconds; the files of a live writer are the same as after
            # its death.
            time.sleep(SAVED_SECONDS)
            shutil.copytree(directory / "data" / BROKER_NAME, store)
    if not killed:
        shutil.copytree(directory / "data" / BROKER_NAME, store)
    with (
        apache_namesrv(toolchain, directory) as namesrv,
        apache_broker(toolchain, directory, namesrv) as cluster,
    ):
        return PASS, asyncio.run(_finish(cluster, begun))


def from_apache(toolchain: Toolchain, directory: Path, *, killed: bool) -> tuple[str, str]:
    """Our broker continues with the check-points of Apache's."""
    if toolchain.version.startswith(WITHOUT_POP):
        return NOT_APPLICABLE, "no pop consumption before 5.0"
    with ExitStack() as running:
        namesrv = running.enter_context(apache_namesrv(toolchain, directory))
        cluster = running.enter_context(apache_broker(toolchain, directory, namesrv, kill=killed))
        begun = _prepare(cluster)
        if killed:
            time.sleep(SAVED_SECONDS)
    shutil.copytree(directory / "store", directory / "data" / BROKER_NAME)
    with penstock_up(directory) as cluster:
        return PASS, asyncio.run(_finish(cluster, begun))
