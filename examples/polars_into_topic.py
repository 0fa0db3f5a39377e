"""A Polars frame into a topic, a message for each row (needs ``penstock[arrow]`` and ``polars``).

python examples/polars_into_topic.py
"""

from __future__ import annotations

import polars

import penstock.arrow
from penstock import Producer, embedded


def main() -> None:
    orders = polars.DataFrame(
        {"id": [1, 2, 3], "city": ["Rome", "Oslo", "Rome"], "amount": [5, 7, 9]}
    )
    # The columns of a message: a body, and if you like keys, tags, properties and others.
    messages = orders.select(
        polars.struct("id", "amount").struct.json_encode().alias("body"),
        polars.concat_list(polars.col("id").cast(polars.String)).alias("keys"),
        polars.col("city").alias("tags"),
    )
    with embedded() as mq:
        with Producer("shop", namesrv=mq.namesrv) as producer:
            print(producer.send_arrow(messages, "orders"), "messages sent")
        # The files of the broker's store, without the broker.
        reader = penstock.arrow.read(mq.data, topic="orders", tags="Rome")
        found = polars.DataFrame(reader.read_all()).select(
            polars.col("body").cast(polars.String).alias("order")
        )
        print(found.sort("order")["order"].to_list())


if __name__ == "__main__":
    main()
