"""Send and receive with asyncio: penstock.aio has the same classes with coroutines.

python examples/async_client.py
"""

from __future__ import annotations

import asyncio

from penstock import aio
from penstock.aio import Message, StoredMessage

ORDERS = 100


async def main() -> None:
    async with aio.embedded() as mq:
        async with aio.Producer(group="shop", namesrv=mq.namesrv) as producer:
            # A hundred concurrent sends; each returns its receipt.
            receipts = await asyncio.gather(
                *(producer.send(Message("orders", b"order %d" % n)) for n in range(ORDERS))
            )
        queues = {receipt.queue.queue_id for receipt in receipts}
        print(f"sent {len(receipts)} messages to {len(queues)} queues")

        billed: set[bytes] = set()
        all_billed = asyncio.Event()
        consumer = aio.PushConsumer(group="billing", namesrv=mq.namesrv, start_from="first")

        @consumer.on("orders")
        async def bill(message: StoredMessage) -> None:
            # Runs on this loop. The session has its own loop and thread, so a slow handler does
            # not delay heartbeats.
            await asyncio.sleep(0.001)
            billed.add(message.body)
            if len(billed) == ORDERS:
                all_billed.set()

        async with consumer:
            await asyncio.wait_for(all_billed.wait(), timeout=30)
        print(f"billed {len(billed)} orders")


if __name__ == "__main__":
    asyncio.run(main())
