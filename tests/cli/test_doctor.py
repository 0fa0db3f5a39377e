"""What the doctor says where nothing is wrong yet."""

from __future__ import annotations

import threading

from tests.cli.running import run, succeed, wait_for

from penstock import Message, Producer, PushConsumer, StoredMessage
from penstock.testing.embedded import Embedded


def test_a_group_with_lag_gets_a_hint_how_to_find_a_slow_handler(cluster: Embedded) -> None:
    cluster.admin.create_topic("slow-orders", 1)
    begun, may_end = threading.Event(), threading.Event()
    consumer = PushConsumer("slow-billing", namesrv=cluster.namesrv, start_from="first")

    @consumer.on("slow-orders")
    def bill(message: StoredMessage) -> None:
        begun.set()
        may_end.wait(60)

    with consumer:
        with Producer("shop", namesrv=cluster.namesrv) as producer:
            producer.send(Message("slow-orders", b"order 1"))
        wait_for(begun.is_set)
        try:
            early = succeed("doctor", "slow-billing", "--namesrv", cluster.namesrv).out
        finally:
            may_end.set()
    assert "Nothing is wrong that keeps messages from it." in early
    assert "It has 1 to go." in early
    assert "penstock doctor slow-billing --stuck-after 5s --namesrv" in early


def test_without_answers_nothing_is_reported_of_groups() -> None:
    done = run("doctor", "--namesrv", "127.0.0.1:1")
    assert done.code == 1
    assert "name servers 0 of 1 answer" in done.out
    assert "consumer groups" not in done.out + done.err
