"""A job for a cluster of which this process is only the driver.

It reads a store directory and a topic, streams the topic on to another with a checkpoint, and
prints what it saw. But for the master nothing in it knows of a cluster.
"""

from __future__ import annotations

import json
import sys

from penstock.spark import session


def main() -> None:
    master, namesrv, store, checkpoint = sys.argv[1:]
    config = {
        "spark.executor.memory": "512m",
        "spark.ui.enabled": "false",
        # A short job ends before better code would pay.
        "spark.driver.extraJavaOptions": "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC",
        "spark.executor.extraJavaOptions": "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC",
    }
    with session("cluster", master=master, config=config) as spark:
        spark.sparkContext.setLogLevel("ERROR")
        reader = spark.read.format("penstock").option("topic", "orders")
        kept = reader.option("columns", "queue_id,offset,body")
        from_path = sorted(bytes(row.body) for row in kept.option("path", store).load().collect())
        from_broker = spark.read.format("penstock").option("topic", "orders")
        tasks = from_broker.option("namesrv", namesrv).load()
        stream = (
            spark.readStream.format("penstock")
            .option("topic", "orders")
            .option("namesrv", namesrv)
            .option("startingOffsets", "earliest")
            .load()
            .select("body", "keys", "tags")
            .writeStream.format("penstock")
            .option("topic", "copies")
            .option("namesrv", namesrv)
            .option("checkpointLocation", checkpoint)
            .trigger(availableNow=True)
            .start()
        )
        stream.awaitTermination()
        found = {
            "path": [body.decode() for body in from_path],
            "broker": sorted(bytes(row.body).decode() for row in tasks.select("body").collect()),
            "tasks": tasks.rdd.getNumPartitions(),
            "timezone": spark.conf.get("spark.sql.session.timeZone"),
        }
    sys.stdout.write(json.dumps(found) + "\n")


if __name__ == "__main__":
    main()
