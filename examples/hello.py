"""Send and receive a message without a server: the broker runs in this process.

python examples/hello.py
"""

from __future__ import annotations

import threading

from penstock import Message, Producer, PushConsumer, StoredMessage, embedded


def main() -> None:
    billed = threading.Event()
    # A name server and a broker on free local ports; they stop at the end of the block.
    with embedded() as mq:
        with Producer(group="shop", namesrv=mq.namesrv) as producer:
            receipt = producer.send(
                Message("orders", b"two books", keys=["order-1"], tag="created")
            )
            print(f"sent {receipt.status.value}: queue {receipt.queue.queue_id} of orders")

        # "first": a new group starts with the oldest message.
        consumer = PushConsumer(group="billing", namesrv=mq.namesrv, start_from="first")

        @consumer.on("orders", tags="created || paid")
        def bill(message: StoredMessage) -> None:
            # Returning acknowledges the message. If it raises, the message is redelivered after
            # 10 s, 30 s, 1 min ... up to 16 times.
            print(f"billing {message.body.decode()!r}, keys {message.keys}, tag {message.tag}")
            billed.set()

        with consumer:  # consumer.run() would serve until Ctrl-C
            billed.wait(timeout=30)
    print("done")


if __name__ == "__main__":
    main()
