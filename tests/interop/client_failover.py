"""Our client with two of Apache's brokers, one of which is killed and restarted."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack
from functools import partial
from pathlib import Path

from tests.interop.client_lab import Lab, check, same, texts, wait_for
from tests.interop.client_scenarios import Run, run_clients
from tests.interop.results import Cell
from tests.interop.servers import apache_broker, apache_namesrv, free_port
from tests.interop.toolchain import Toolchain

from penstock import Message

SECOND = "broker-b"
NAMES = ("client_several_brokers", "client_broker_killed")


class SecondBroker:
    """A broker that keeps its address and its store when it is killed and restarted."""

    def __init__(self, toolchain: Toolchain, directory: Path, namesrv: str) -> None:
        self._toolchain = toolchain
        self._directory = directory
        self._namesrv = namesrv
        self._settings = {"brokerName": SECOND, "listenPort": str(free_port())}
        self._running = ExitStack()

    def start(self) -> None:
        self._running.enter_context(
            apache_broker(
                self._toolchain, self._directory, self._namesrv, self._settings, kill=True
            )
        )

    def kill(self) -> None:
        self._running.close()


def _brokers(lab: Lab) -> set[str]:
    return {broker.broker_name for broker in lab.admin.cluster()}


def several_brokers(second: SecondBroker, lab: Lab) -> str:
    topic, group = lab.topic(), lab.name("group")
    first, seen = lab.collect(topic, group)
    other, more = lab.collect(topic, group)
    wait_for(
        lambda: len(first.assignment()) == len(other.assignment()) == 4,
        lambda: f"{len(first.assignment())} and {len(other.assignment())} of 8 queues",
    )
    bodies = lab.send(topic, texts(120))
    wait_for(lambda: len(seen) + len(more) >= 120, lambda: f"{len(seen)} and {len(more)} of 120")
    for consumer in (first, other):
        consumer.stop()
    seen.add(*more.messages)
    seen.check_once(bodies)
    brokers = {message.queue.broker_name for message in seen.messages}
    same({lab.cluster.broker_name, SECOND}, brokers, "brokers")
    lab.check_no_lag(group, topic)
    return "8 queues on two brokers, 4 to each consumer, 120 messages once"


def broker_killed(second: SecondBroker, lab: Lab) -> str:
    topic, group = lab.topic(), lab.name("group")
    _, seen = lab.collect(topic, group)
    producer = lab.producer(retries=2, send_timeout=10)
    taken: list[str] = []
    refused: list[str] = []
    done = threading.Event()

    def send() -> None:
        number = 0
        while not done.is_set():
            body = f"m-{number}"
            number += 1
            try:
                producer.send(Message(topic, body.encode()))
                taken.append(body)
            except Exception as error:  # checked below
                refused.append(f"{body}: {error}")
            time.sleep(0.01)

    sender = threading.Thread(target=send, name="sender")
    sender.start()
    try:
        wait_for(lambda: len(seen) >= 50, lambda: f"{len(seen)} before the kill")
        second.kill()
        during = len(taken)
        wait_for(lambda: len(taken) > during + 100, lambda: f"stuck at {len(taken)}: {refused[:1]}")
        second.start()
        wait_for(lambda: SECOND in _brokers(lab), lambda: f"only {_brokers(lab)} registered")
        back = time.time() * 1000
        wait_for(
            lambda: any(
                one.queue.broker_name == SECOND and one.born_timestamp > back
                for one in seen.messages
            ),
            lambda: f"nothing new from {SECOND} after its restart",
        )
    finally:
        done.set()
        sender.join()
    same([], refused, "sends that failed although another broker was available")
    seen.wait_for(taken)
    twice = len(seen) - len(set(seen.bodies))
    check(len(taken) > 150, f"only {len(taken)} sent")
    return f"all {len(taken)} sends stored and consumed across a kill, {twice} redelivered"


def run_failover(
    toolchain: Toolchain, directory: Path, names: Sequence[str], column: str
) -> Iterator[Cell]:
    """Run ``names`` one after the other on two brokers; yield a cell as each ends."""
    if not names:
        return
    with (
        apache_namesrv(toolchain, directory) as namesrv,
        apache_broker(toolchain, directory / "first", namesrv) as cluster,
    ):
        second = SecondBroker(toolchain, directory / "second", namesrv)
        second.start()
        try:
            with ExitStack() as looking:
                lab = Lab(cluster, "waiting")
                looking.callback(lab.close)
                wait_for(lambda: len(_brokers(lab)) == 2, lambda: f"{_brokers(lab)} registered")
            runs: Mapping[str, Run] = dict(
                zip(
                    NAMES,
                    (partial(run, second) for run in (several_brokers, broker_killed)),
                    strict=True,
                )
            )
            yield from run_clients(cluster, names, column, runs=runs, parallel=1)
        finally:
            second.kill()
