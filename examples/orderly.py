"""Messages of one customer in order, while many customers are served at once.

python examples/orderly.py
"""

from __future__ import annotations

import threading
from collections import defaultdict

from penstock import Message, Producer, PushConsumer, StoredMessage, embedded

CUSTOMERS = ("ann", "bob", "cem")
STEPS = ("created", "paid", "packed", "shipped")


def main() -> None:
    seen: dict[str, list[str]] = defaultdict(list)
    failed_once: set[str] = set()
    lock = threading.Lock()
    all_done = threading.Event()

    with embedded() as mq:
        mq.admin.create_topic("orders", queues=4)
        with Producer(group="shop", namesrv=mq.namesrv) as producer:
            for step in STEPS:
                for customer in CUSTOMERS:
                    # Messages with the same sharding key go to the same queue, which keeps order.
                    producer.send(
                        Message("orders", step.encode(), sharding_key=customer, keys=[customer])
                    )

        consumer = PushConsumer(
            group="shipping",
            namesrv=mq.namesrv,
            start_from="first",
            orderly=True,  # one handler call per queue at a time, in the whole group
            suspend_time="50ms",  # how long a queue waits after a failure; default: 1 s
        )

        @consumer.on("orders")
        def handle(message: StoredMessage) -> None:
            [customer], step = message.keys, message.body.decode()
            with lock:
                if step == "paid" and customer not in failed_once:
                    failed_once.add(customer)
                    # The message is retried before any later message of its queue.
                    raise ConnectionError(f"the bank does not answer for {customer}")
                seen[customer].append(step)
                if sum(map(len, seen.values())) == len(CUSTOMERS) * len(STEPS):
                    all_done.set()

        with consumer:
            all_done.wait(timeout=30)

    for customer in CUSTOMERS:
        print(f"{customer}: {' > '.join(seen[customer])}")
    print(f"every customer failed once: {sorted(failed_once) == sorted(CUSTOMERS)}")
    print(f"in order: {all(tuple(steps) == STEPS for steps in seen.values())}")


if __name__ == "__main__":
    import logging

    logging.disable(logging.WARNING)  # the failures are intended
    main()
