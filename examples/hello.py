"""Send a message and receive it, with no server: the broker runs in this process.

python examples/hello.py
"""

from __future__ import annotations

import threading

from penstock import Message, Producer, PushConsumer, StoredMessage, embedded


def main() -> None:
    billed = threading.Event()
    # A name server and a broker on free ports of this machine, for the length of the block.
    with embedded() as mq:
        with Producer(group="shop", namesrv=mq.namesrv) as producer:
            receipt = producer.send(
                Message("orders", b"two books", keys=["order-1"], tag="created")
            )
            print(f"sent {receipt.status.value}: queue {receipt.queue.queue_id} of orders")

        # "first": a group that was never here begins with the oldest message.
        consumer = PushConsumer(group="billing", namesrv=mq.namesrv, start_from="first")

        @consumer.on("orders", tags="created || paid")
        def bill(message: StoredMessage) -> None:
            # Returning means done. Raising means: again in 10 s, then 30 s, 1 min ... 16 times.
            print(f"billing {message.body.decode()!r}, keys {message.keys}, tag {message.tag}")
            billed.set()

        with consumer:  # consumer.run() would serve until Ctrl-C instead
            billed.wait(timeout=30)
    print("done")


if __name__ == "__main__":
    main()
