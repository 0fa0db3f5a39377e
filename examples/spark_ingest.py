"""Read a topic with Spark as a table and as a stream, and write messages from a table.

python examples/spark_ingest.py      (needs: pip install 'penstock[spark,java]')
"""

from __future__ import annotations

import json
import tempfile

from penstock import Message, Producer, embedded
from penstock.spark import session


def main() -> None:
    spark = session("ingest")
    with embedded() as mq, tempfile.TemporaryDirectory() as work:
        with Producer("shop", namesrv=mq.namesrv) as producer:
            for number in range(1, 101):
                order = {"number": number, "amount": number * 10}
                producer.send(Message("orders", json.dumps(order).encode(), tag="created"))

        # A batch read: all messages stored so far.
        orders = (
            spark.read.format("penstock")
            .option("namesrv", mq.namesrv)
            .option("topic", "orders")
            .load()
        )
        parsed = orders.selectExpr(
            "queue_id", "offset", "from_json(string(body), 'number int, amount int') AS it"
        )
        print("sum of all orders:", parsed.selectExpr("sum(it.amount)").collect()[0][0])

        # A stream into Parquet: when started again, it continues from its checkpoint.
        query = (
            spark.readStream.format("penstock")
            .option("namesrv", mq.namesrv)
            .option("topic", "orders")
            .option("group", "warehouse")
            .option("startingOffsets", "earliest")
            .load()
            .writeStream.format("parquet")
            .option("path", f"{work}/orders")
            .option("checkpointLocation", f"{work}/checkpoint")
            .trigger(availableNow=True)
            .start()
        )
        query.awaitTermination()
        print("rows in Parquet:", spark.read.parquet(f"{work}/orders").count())
        lag = sum(row.lag for row in mq.admin.group_lag("warehouse"))
        print("lag of group warehouse:", lag)

        # The opposite direction: rows become messages.
        (
            parsed.where("it.amount > 900")
            .selectExpr("to_json(it) AS body", "'large' AS tags")
            .write.format("penstock")
            .option("namesrv", mq.namesrv)
            .option("topic", "large-orders")
            .mode("append")
            .save()
        )
        stored = sum(queue.max_offset for queue in mq.admin.topic_stats("large-orders"))
        print("messages in large-orders:", stored)


if __name__ == "__main__":
    main()
