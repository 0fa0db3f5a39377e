"""Exchanges store directories with timer messages: the other broker delivers exactly the pending.

One broker delivers the first of a row of timer messages and has one recalled; the other continues
with its files. Every message arrives once, none early, and the recalled one never.
"""

from __future__ import annotations

import shutil
import time
from contextlib import ExitStack
from pathlib import Path

from tests.interop.client_lab import check, same, wait_for
from tests.interop.results import NOT_APPLICABLE, PASS
from tests.interop.servers import (
    BROKER_NAME,
    Cluster,
    apache_broker,
    apache_namesrv,
    penstock_up,
)
from tests.interop.toolchain import Toolchain

from penstock import Admin, Message, MessageQueue, Producer, Receipt, StoredMessage
from penstock.model.names import Property

TOPIC = "swap-timers"
SETTINGS = {"recallMessageEnable": "true", "mappedFileSizeTimerLog": str(1 << 20)}
DELAYS = (2, 3, 80, 81, 85, 90)
"""Seconds; the first two are over before the store changes hands."""
RECALLED, DONE = 81, (2, 3)
WITHOUT_TIMERS = "4."
NO_TIMERS = (NOT_APPLICABLE, "no timer messages before 5.0")
SAVED_SECONDS = 3.0
"""Both brokers save every second where they stand."""


def _begin(cluster: Cluster) -> float:
    """Send the messages, wait for the first of them, recall one; return when they were sent."""
    with Admin(namesrv=cluster.namesrv) as admin:
        admin.create_topic(TOPIC, queues=1)
    with Producer("swap-shop", namesrv=cluster.namesrv) as producer:
        receipts: dict[int, Receipt] = {}
        begun = time.time()
        for delay in DELAYS:
            receipts[delay] = producer.send(Message(TOPIC, str(delay).encode(), delay=f"{delay}s"))
        wait_for(lambda: len(_visible(cluster)) >= len(DONE), lambda: str(_visible(cluster)))
        handle = receipts[RECALLED].recall_handle
        check(bool(handle), "no recall handle in the receipt")
        same(receipts[RECALLED].msg_id, producer.recall(TOPIC, handle or ""), "recalled")
    time.sleep(SAVED_SECONDS)
    return begun


def _finish(cluster: Cluster, begun: float) -> str:
    """Wait for the rest, and a while longer for what must not come."""
    was_in_time = time.time() < begun + min(set(DELAYS) - set(DONE))
    wanted = [str(delay).encode() for delay in DELAYS if delay != RECALLED]
    wait_for(
        lambda: len(_visible(cluster)) >= len(wanted),
        lambda: f"arrived: {[one.body for one in _visible(cluster)]}",
        150,
    )
    time.sleep(5)
    found = _visible(cluster)
    same(sorted(wanted), sorted(message.body for message in found), "arrived")
    lateness = []
    for message in found:
        late = message.store_timestamp - message.born_timestamp - int(message.body) * 1000
        check(late >= 0, f"message {message.body!r} arrived {-late} ms early")
        check(Property.TIMER_DEQUEUE_MS in message.properties, "not delivered by a timer")
        if int(message.body) not in DONE:
            lateness.append(late)
    how_late = f"{max(lateness)} ms late at most" if was_in_time else "due before the start"
    return f"{len(found)} timer messages once, {how_late}"


def _visible(cluster: Cluster) -> list[StoredMessage]:
    with Admin(namesrv=cluster.namesrv) as admin:
        part = admin.messages(MessageQueue(TOPIC, BROKER_NAME, 0), 0, count=100)
    return list(part.messages)


def to_apache(toolchain: Toolchain, directory: Path, *, killed: bool) -> tuple[str, str]:
    """Apache's broker continues with the timers of ours."""
    if toolchain.version.startswith(WITHOUT_TIMERS):
        return NO_TIMERS
    store = directory / "store"
    with penstock_up(directory, SETTINGS) as cluster:
        begun = _begin(cluster)
        if killed:
            # The files of a live writer are the same as after its death.
            shutil.copytree(directory / "data" / BROKER_NAME, store)
    if not killed:
        shutil.copytree(directory / "data" / BROKER_NAME, store)
    with (
        apache_namesrv(toolchain, directory) as namesrv,
        apache_broker(toolchain, directory, namesrv, SETTINGS) as cluster,
    ):
        return PASS, _finish(cluster, begun)


def from_apache(toolchain: Toolchain, directory: Path, *, killed: bool) -> tuple[str, str]:
    """Our broker continues with the timers of Apache's."""
    if toolchain.version.startswith(WITHOUT_TIMERS):
        return NO_TIMERS
    with ExitStack() as running:
        namesrv = running.enter_context(apache_namesrv(toolchain, directory))
        cluster = running.enter_context(
            apache_broker(toolchain, directory, namesrv, SETTINGS, kill=killed)
        )
        begun = _begin(cluster)
    shutil.copytree(directory / "store", directory / "data" / BROKER_NAME)
    with penstock_up(directory, SETTINGS) as cluster:
        return PASS, _finish(cluster, begun)
