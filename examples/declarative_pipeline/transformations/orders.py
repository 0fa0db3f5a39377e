"""Orders from a topic to a table, sales by shop, and large orders to another topic.

``spark-pipelines`` processes what the topic holds now and continues from there in the next run. The
environment variable ``NAMESRV_ADDR`` names the name server, as for every client.
"""

from __future__ import annotations

from pyspark import pipelines as dp
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F

spark = SparkSession.active()

LARGE = 500


@dp.table
def orders() -> DataFrame:
    """Each order as one row."""
    body = F.from_json(F.col("body").cast("string"), "shop STRING, amount INT")
    return (
        spark.readStream.format("penstock")
        .option("topic", "orders")
        .option("startingOffsets", "earliest")
        .option("group", "declarative-orders")
        .load()
        .select(F.col("keys")[0].alias("order_id"), "store_timestamp", body.alias("order"))
        .select("order_id", "store_timestamp", "order.*")
    )


@dp.materialized_view
def sold_by_shop() -> DataFrame:
    """Sales of each shop."""
    return (
        spark.read.table("orders")
        .groupBy("shop")
        .agg(F.count("*").alias("orders"), F.sum("amount").alias("amount"))
    )


dp.create_sink("large_orders", "penstock", {"topic": "large-orders"})


@dp.append_flow(target="large_orders")
def large() -> DataFrame:
    """Large orders as messages."""
    return (
        spark.readStream.table("orders")
        .where(F.col("amount") >= LARGE)
        .select(
            F.to_json(F.struct("order_id", "shop", "amount")).alias("body"),
            F.array("order_id").alias("keys"),
            F.lit("large").alias("tags"),
        )
    )
