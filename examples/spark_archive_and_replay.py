"""Archive a topic to Parquet by day, then replay a part of it.

python examples/spark_archive_and_replay.py      (needs: pip install 'penstock[spark,java]')
"""

from __future__ import annotations

import tempfile
from typing import Any

from penstock import Message, Producer, embedded
from penstock.spark import archive, replay, session


def main() -> None:
    spark = session("archive")
    with embedded() as mq, tempfile.TemporaryDirectory() as work:
        with Producer("shop", namesrv=mq.namesrv) as producer:
            for number in range(1, 61):
                tag = "paid" if number % 3 == 0 else "created"
                producer.send(
                    Message("orders", b"order %d" % number, keys=[f"o-{number}"], tag=tag)
                )

            first = archive(spark, "orders", f"{work}/archive", namesrv=mq.namesrv)
            print(f"archived {first.archived}, {first.total} in all")
            producer.send(Message("orders", b"order 61", keys=["o-61"], tag="paid"))
        # Run it as often as you like: it adds new messages only.
        second = archive(spark, "orders", f"{work}/archive", namesrv=mq.namesrv)
        print(f"archived {second.archived}, {second.total} in all")

        # First show what would be sent, then send it, at most 1,000 messages a second.
        chosen: Any = {"archive": f"{work}/archive", "tags": "paid", "namesrv": mq.namesrv}
        tried = replay(spark, "orders-again", dry_run=True, **chosen)
        print(f"a replay would send {tried.matched}")
        done = replay(spark, "orders-again", rate=1000, **chosen)
        print(f"sent {done.sent} to orders-again")


if __name__ == "__main__":
    main()
