"""Retries, dead letters with their reasons, and redrive.

The retries would take minutes; a virtual clock makes them instant.

python examples/retry_and_redrive.py
"""

from __future__ import annotations

import logging

from penstock import (
    DeadLetter,
    Message,
    Producer,
    PushConsumer,
    RetryLater,
    StoredMessage,
    embedded,
)

GROUP = "billing"


def main() -> None:
    cards_are_readable = False

    with embedded(clock="virtual") as mq:
        started = mq.clock.time()

        def after() -> str:
            return f"{mq.clock.time() - started:5.0f} s"

        consumer = PushConsumer(GROUP, namesrv=mq.namesrv, start_from="first", max_retries=3)

        @consumer.on("orders")
        def bill(message: StoredMessage) -> None:
            what = message.body.decode()
            attempt = message.reconsume_times + 1
            if cards_are_readable:
                print(f"{after()}  {what}: billed")
            elif what == "flowers":
                if attempt == 1:
                    print(f"{after()}  {what}: the bank is busy, again in 5 s")
                    raise RetryLater("5s")  # instead of the usual 10 s
                print(f"{after()}  {what}: billed at attempt {attempt}")
            elif what == "a coat":
                print(f"{after()}  {what}: no use trying again")
                raise DeadLetter("the card has expired")
            else:
                print(f"{after()}  {what}: failed at attempt {attempt}")
                raise ValueError("card number cannot be read")  # retried: 10 s, 30 s, 1 min ...

        with Producer("shop", namesrv=mq.namesrv) as producer, consumer:
            for order in (b"flowers", b"a coat", b"two books"):
                producer.send(Message("orders", order))
            mq.clock.advance("10m")

            letters = mq.admin.dead_letters(GROUP)
            for letter in letters:
                body = letter.message.body.decode()
                print(
                    f"dead letter: {body}, from {letter.origin_topic}, "
                    f"attempts: {letter.attempts}, {letter.reason_type}: {letter.reason}"
                )

            cards_are_readable = True  # the handler was fixed
            # The copies go to the group's retry topic, so no other group receives them.
            mq.admin.redrive(GROUP, letters)
            mq.admin.settle_dead_letters(GROUP)
            mq.clock.advance("1m")
            print(f"dead letters left: {len(mq.admin.dead_letters(GROUP))}")
    # On the command line: penstock dlq list billing; penstock dlq redrive billing


if __name__ == "__main__":
    logging.disable(logging.WARNING)  # the failures are intended
    main()
