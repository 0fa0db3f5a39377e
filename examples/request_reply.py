"""Send a request over a topic and wait for the reply of its consumer.

python examples/request_reply.py
"""

from __future__ import annotations

from penstock import Message, PenstockError, Producer, PushConsumer, StoredMessage, embedded

PRICES = {"book": 12, "coat": 80}


def main() -> None:
    with embedded() as mq:
        mq.admin.create_topic("price-requests", queues=2)
        replier = Producer("price-service", namesrv=mq.namesrv)
        service = PushConsumer("price-service", namesrv=mq.namesrv, start_from="first")

        @service.on("price-requests")
        def quote_price(request: StoredMessage) -> None:
            price = PRICES.get(request.body.decode())
            if price is not None:
                replier.reply(request, str(price).encode())

        with replier, service, Producer("shop", namesrv=mq.namesrv) as producer:
            for thing in ("book", "coat"):
                answer = producer.request(Message("price-requests", thing.encode()), timeout=30)
                print(f"a {thing} costs {answer.body.decode()}")
            try:
                producer.request(Message("price-requests", b"unicorn"), timeout=0.5)
            except PenstockError as error:
                print(f"no price for a unicorn: {type(error).__name__}")


if __name__ == "__main__":
    main()
