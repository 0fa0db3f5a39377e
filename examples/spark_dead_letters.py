"""Handle messages on Spark's executors, then repair and redrive the dead letters.

python examples/spark_dead_letters.py      (needs: pip install 'penstock[spark,java]')
"""

from __future__ import annotations

import tempfile
from typing import Any

from penstock import DeadLetter, Message, Producer, StoredMessage, embedded
from penstock.admin.reports import DeadLetterRow
from penstock.spark import consume, dead_letters, redrive, session

GROUP = "billing"


def bill(message: StoredMessage) -> None:
    """Runs on executors. Returning acknowledges the message; raising retries or rejects it."""
    if message.body.startswith(b"?"):
        raise DeadLetter("amount cannot be read")


def repair(letter: DeadLetterRow) -> bytes:
    """Runs on executors, once for each dead letter."""
    return letter.message.body.lstrip(b"?")


def main() -> None:
    spark = session("billing")
    with embedded() as mq, tempfile.TemporaryDirectory() as work:
        with Producer("shop", namesrv=mq.namesrv) as producer:
            for number in range(1, 41):
                amount = b"?%d" if number % 10 == 0 else b"%d"
                producer.send(Message("orders", amount % number))

        source = {"namesrv": mq.namesrv, "topic": "orders", "startingOffsets": "earliest"}
        settings: Any = {
            "group": GROUP,
            "checkpoint": f"{work}/checkpoint",
            "trigger": "availableNow",
        }
        consume(source, bill, **settings).awaitTermination()

        letters = dead_letters(spark, GROUP, namesrv=mq.namesrv)
        letters.groupBy("reason", "origin_topic").count().show(truncate=False)

        result = redrive(
            letters, group=GROUP, audit=f"{work}/audit", repair=repair, namesrv=mq.namesrv
        )
        print("redriven:", result.redriven)
        consume(source, bill, **settings).awaitTermination()  # continues where it stopped
        print("dead letters left:", dead_letters(spark, GROUP, namesrv=mq.namesrv).count())


if __name__ == "__main__":
    main()
