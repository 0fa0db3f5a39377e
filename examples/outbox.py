"""Orders in a database and messages about them: always both or neither, even after kill -9.

python examples/outbox.py

A process of the shop is killed before and after each of its steps. Another process of the same
producer group then answers the broker's questions from the outbox, a table of the same database.
"""

from __future__ import annotations

import os
import signal
import sqlite3
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from penstock import (
    Message,
    Outbox,
    PreparedMessage,
    Producer,
    PushConsumer,
    StoredMessage,
    embedded,
)

STEPS = (
    "before the message is prepared",
    "before the order is inserted",
    "before the database commits",
    "after the database has committed",
    "after the decision was sent",
    "never",
)


def kill_at(step: str) -> None:
    """Die as by kill -9, if this process is to die here."""
    if sys.argv[-1] == step:
        os.kill(os.getpid(), signal.SIGKILL)


class Database(sqlite3.Connection):
    """SQLite, with a step after each commit."""

    def commit(self) -> None:
        super().commit()
        kill_at("after the database has committed")


def new_outbox(database: str) -> Outbox:
    # In production leave rollback_after at its minute: local transactions may take so long.
    return Outbox(lambda: sqlite3.connect(database, factory=Database), rollback_after="2s")


def place_order(namesrv: str, database: str, number: str) -> None:
    """What the shop does for one order."""

    def insert_order(connection: sqlite3.Connection, message: PreparedMessage) -> None:
        kill_at("before the order is inserted")
        connection.execute("INSERT INTO orders VALUES (?)", [number])
        kill_at("before the database commits")

    outbox = new_outbox(database)
    with Producer("shop", namesrv=namesrv, check_transaction=outbox.check) as producer:
        kill_at("before the message is prepared")
        outbox.send(producer, Message("orders", number.encode(), keys=[number]), insert_order)
        kill_at("after the decision was sent")


def main() -> None:
    received: list[str] = []
    with tempfile.TemporaryDirectory() as directory, embedded() as mq:
        database = str(Path(directory) / "shop.db")
        with sqlite3.connect(database) as connection:
            connection.execute("CREATE TABLE orders (number TEXT)")
        outbox = new_outbox(database)
        outbox.create_table()
        mq.admin.create_topic("orders", queues=4)
        # A broker asks after six seconds, and then every 30; this example has no time for that.
        soon = {"transactionTimeOut": "500", "transactionCheckInterval": "500"}
        mq.admin.update_broker_config("broker-a", soon)

        consumer = PushConsumer("billing", namesrv=mq.namesrv, start_from="first")

        @consumer.on("orders")
        def bill(message: StoredMessage) -> None:
            received.append(message.body.decode())

        for number, step in enumerate(STEPS):
            command = [sys.executable, __file__, mq.namesrv, database, f"order-{number}", step]
            print(f"order-{number}: killed {step}, exit status", subprocess.call(command))

        # The process that lives on. With topics, brokers know it before it sends anything.
        survivor = Producer(
            "shop", namesrv=mq.namesrv, check_transaction=outbox.check, topics=["orders"]
        )
        with consumer, survivor:
            deadline = time.monotonic() + 60
            while time.monotonic() < deadline and mq.admin.transactions():
                time.sleep(0.1)
            time.sleep(1)
        with sqlite3.connect(database) as connection:
            stored = [number for (number,) in connection.execute("SELECT number FROM orders")]
    print("in the database:", ", ".join(sorted(stored)))
    print("billed:         ", ", ".join(sorted(received)))
    print("the same orders, each once:", sorted(stored) == sorted(received))


if __name__ == "__main__":
    if len(sys.argv) > 1:
        place_order(*sys.argv[1:4])
    else:
        main()
