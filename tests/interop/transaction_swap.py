"""Exchanges store directories with open transactions: the other broker asks about exactly those.

One broker gets a committed, a rolled-back and two open transactions, and asks about the open ones
before it ends. The other continues with its files: producers are asked about the open ones only,
and their decisions count there.
"""

from __future__ import annotations

import shutil
import time
from contextlib import ExitStack
from pathlib import Path

from tests.interop.client_lab import check, same, wait_for
from tests.interop.results import PASS
from tests.interop.servers import (
    BROKER_NAME,
    Cluster,
    apache_broker,
    apache_namesrv,
    penstock_up,
)
from tests.interop.toolchain import Toolchain

from penstock import Admin, Message, MessageQueue, Producer, StoredMessage

GROUP = "swap-shop"
TOPIC = "swap-transactions"
SOON = {"transactionCheckInterval": "2000", "transactionTimeOut": "1000"}
"""Rounds that do not keep a run waiting."""
SETTLED_SECONDS = 5.0
"""Apache's broker writes down decisions every three seconds."""
OPEN = {b"open, to be committed", b"open, to be rolled back"}
VISIBLE = [b"committed", b"committed last", b"open, to be committed"]


def _begin(cluster: Cluster) -> None:
    """Two decided and two open transactions, of which the open ones were asked about."""
    asked: set[bytes] = set()

    def not_known(message: StoredMessage) -> None:
        asked.add(message.body)

    with Admin(namesrv=cluster.namesrv) as admin:
        admin.create_topic(TOPIC, queues=1)
    with Producer(
        GROUP, namesrv=cluster.namesrv, check_transaction=not_known, topics=[TOPIC]
    ) as producer:
        producer.send_in_transaction(Message(TOPIC, b"committed"), lambda message: True)
        producer.send_in_transaction(Message(TOPIC, b"rolled back"), lambda message: False)
        for body in sorted(OPEN):
            producer.send_in_transaction(Message(TOPIC, body), lambda message: None)
        wait_for(lambda: asked >= OPEN, lambda: f"asked about {asked}", 60)
        producer.send_in_transaction(Message(TOPIC, b"committed last"), lambda message: True)
        wait_for(lambda: b"committed last" in _visible(cluster), lambda: "not committed")
    same(OPEN, asked, "asked about")


def _finish(cluster: Cluster, *, is_ours: bool) -> str:
    """Decide what the other broker left open, and look at what is visible.

    Apache's broker notes a decision up to three seconds later. It may ask again before that, and
    then stores a committed message twice; so only ours is asked to store each one once.
    """
    asked: list[bytes] = []

    def decide(message: StoredMessage) -> bool:
        asked.append(message.body)
        return message.body == b"open, to be committed"

    with Producer(GROUP, namesrv=cluster.namesrv, check_transaction=decide, topics=[TOPIC]):
        wait_for(lambda: set(asked) >= OPEN, lambda: f"asked about {asked}", 60)
        wait_for(lambda: len(_visible(cluster)) >= len(VISIBLE), lambda: str(_visible(cluster)))
        time.sleep(SETTLED_SECONDS)
        # Rounds in which nothing may be asked any more.
        before = len(asked)
        time.sleep(SETTLED_SECONDS)
        check(len(asked) == before, f"asked again after the decisions: {asked[before:]}")
    same(OPEN, set(asked), "asked about")
    found = _visible(cluster)
    same(set(VISIBLE), set(found), "visible")
    if is_ours:
        same(sorted(OPEN), sorted(asked), "asked about")
        same(sorted(VISIBLE), sorted(found), "visible")
    return f"{len(OPEN)} open transactions asked about and decided, no other"


def _visible(cluster: Cluster) -> list[bytes]:
    with Admin(namesrv=cluster.namesrv) as admin:
        part = admin.messages(MessageQueue(TOPIC, BROKER_NAME, 0), 0, count=100)
    return [message.body for message in part.messages]


def to_apache(toolchain: Toolchain, directory: Path, *, killed: bool) -> tuple[str, str]:
    """Apache's broker continues with the transactions of ours."""
    store = directory / "store"
    with penstock_up(directory, SOON) as cluster:
        _begin(cluster)
        if killed:
            # The files of a live writer are the same as after its death.
            shutil.copytree(directory / "data" / BROKER_NAME, store)
    if not killed:
        shutil.copytree(directory / "data" / BROKER_NAME, store)
    with (
        apache_namesrv(toolchain, directory) as namesrv,
        apache_broker(toolchain, directory, namesrv) as cluster,
    ):
        return PASS, _finish(cluster, is_ours=False)


def from_apache(toolchain: Toolchain, directory: Path, *, killed: bool) -> tuple[str, str]:
    """Our broker continues with the transactions of Apache's."""
    with ExitStack() as running:
        namesrv = running.enter_context(apache_namesrv(toolchain, directory))
        cluster = running.enter_context(apache_broker(toolchain, directory, namesrv, kill=killed))
        _begin(cluster)
        # What is younger is lost with the process; we would ask about it again.
        time.sleep(SETTLED_SECONDS)
    shutil.copytree(directory / "store", directory / "data" / BROKER_NAME)
    with penstock_up(directory, SOON) as cluster:
        return PASS, _finish(cluster, is_ours=True)
