"""Delayed messages, on a virtual clock that lets half an hour pass at once.

python examples/delay.py
"""

from __future__ import annotations

from datetime import UTC, datetime

from penstock import Message, Producer, PushConsumer, StoredMessage, embedded


def main() -> None:
    # With a virtual clock the real name server, broker and clients run over an in-memory network,
    # and waiting takes no time.
    with embedded(clock="virtual") as mq:

        def now() -> str:
            return datetime.fromtimestamp(mq.clock.time(), UTC).strftime("%H:%M:%S")

        consumer = PushConsumer(group="reminders", namesrv=mq.namesrv, start_from="first")

        @consumer.on("reminders")
        def remind(message: StoredMessage) -> None:
            print(f"{now()}  {message.body.decode()}")

        with Producer(group="shop", namesrv=mq.namesrv) as producer, consumer:
            print(f"{now()}  sending three messages")
            producer.send(Message("reminders", b"at once"))
            # RocketMQ has 18 delay levels: 1s 5s 10s 30s 1m 2m ... 10m 20m 30m 1h 2h.
            producer.send(Message("reminders", b"after ten seconds", delay="10s"))
            producer.send(Message("reminders", b"after half an hour", delay="30m"))
            for step in ("1s", "10s", "20m", "10m"):
                mq.clock.advance(step)
        print(f"{now()}  done")


if __name__ == "__main__":
    main()
