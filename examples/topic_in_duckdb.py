"""A topic as a table in DuckDB's SQL (needs ``penstock[arrow]`` and ``duckdb``).

python examples/topic_in_duckdb.py
"""

from __future__ import annotations

import duckdb

import penstock.arrow
from penstock import Message, Producer, embedded

SALES = (("Rome", 5), ("Oslo", 7), ("Rome", 9), ("Lima", 4))
QUERY = """
    SELECT tags AS city, count(*) AS orders,
           sum(CAST(decode(body)::JSON ->> 'amount' AS INT))::INT AS amount
    FROM orders GROUP BY city ORDER BY amount DESC
"""


def main() -> None:
    with embedded() as mq:
        with Producer("shop", namesrv=mq.namesrv) as producer:
            for city, amount in SALES:
                producer.send(Message("orders", b'{"amount": %d}' % amount, tag=city))
        # A reader of Arrow batches: DuckDB takes them one by one, without a copy of the topic.
        reader = penstock.arrow.read("orders", namesrv=mq.namesrv, columns=["tags", "body"])
        with duckdb.connect() as database:
            database.register("orders", reader)
            for city, count, amount in database.sql(QUERY).fetchall():
                print(f"{city}: {count} orders, {amount}")


if __name__ == "__main__":
    main()
