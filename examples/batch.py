"""Many messages at once: batches, futures, and handlers that receive lists.

python examples/batch.py
"""

from __future__ import annotations

import threading

from penstock import Message, Producer, PushConsumer, StoredMessage, embedded


def main() -> None:
    with embedded() as mq:
        mq.admin.create_topic("readings", queues=2)
        with Producer("sensors", namesrv=mq.namesrv) as producer:
            # One request, one queue: either all messages are stored or none.
            receipt = producer.send_batch(
                Message("readings", b"%d" % n, tag="batch") for n in range(100)
            )
            print(f"a batch of {len(receipt.msg_ids)} went to one queue")

        # With linger, single sends wait up to 5 ms and leave together as batches.
        with Producer("sensors", namesrv=mq.namesrv, linger="5ms") as producer:
            futures = [
                producer.submit(Message("readings", b"%d" % n, tag="single"))
                for n in range(100, 1000)
            ]
            stored = [future.result() for future in futures]
        print(f"{len(stored)} single messages went to {len({r.queue for r in stored})} queues")

        sizes: list[int] = []
        values: set[int] = set()
        lock = threading.Lock()
        all_seen = threading.Event()
        consumer = PushConsumer(
            "averages",
            namesrv=mq.namesrv,
            start_from="first",
            batch_size=50,  # at most; above 1 the handler always receives a list
        )

        @consumer.on("readings")
        def average(messages: list[StoredMessage]) -> None:
            with lock:
                sizes.append(len(messages))
                values.update(int(message.body) for message in messages)
                if len(values) == 1000:
                    all_seen.set()

        with consumer:
            all_seen.wait(timeout=30)
        print(f"handlers got {len(values)} messages, up to {max(sizes)} at once")
        print(f"the sum is right: {sum(values) == sum(range(1000))}")


if __name__ == "__main__":
    main()
