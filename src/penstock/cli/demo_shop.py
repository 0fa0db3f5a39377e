"""The shop of ``penstock demo``: its producer, its consumers that bill and ship, and their counts.

Billing fails now and then: some orders succeed when tried again, and those with an expired card
end as dead letters with the reason. Shipping wants each customer's orders in order. The check for
fraud runs on Spark's executors, so it is a plain function that counts nothing.
"""

from __future__ import annotations

import json
import threading
from collections import Counter, defaultdict

from penstock import DeadLetter, Message, RetryLater, StoredMessage
from penstock.admin.reports import DeadLetterRow

TOPIC = "orders"
CUSTOMERS = 10
FLAKY_EVERY = 20
EXPIRED_EVERY = 50
SUSPICIOUS_EVERY = 100


class Shop:
    """The handlers of the shop and everything they count."""

    def __init__(self, orders: int) -> None:
        self.orders = orders
        self.lock = threading.Lock()
        self.counts: Counter[str] = Counter()
        self.shipped: dict[str, list[int]] = defaultdict(list)

    def count(self, what: str) -> None:
        """One more of something; handlers run in many threads."""
        with self.lock:
            self.counts[what] += 1

    def bill(self, message: StoredMessage) -> None:
        """Billing: a card reader that is down for a moment, and cards that have expired."""
        order = json.loads(message.body)
        if order["card"] == "expired":
            self.count("dead")
            raise DeadLetter("the card has expired")
        if order["card"] == "renewed":
            self.count("billed after repair")
            return
        if order["number"] % FLAKY_EVERY == 1 and message.reconsume_times == 0:
            self.count("retried")
            raise RetryLater("1s", "the card reader does not answer")
        self.count("billed")

    def ship(self, message: StoredMessage) -> None:
        """Shipping: in the order of each customer."""
        order = json.loads(message.body)
        with self.lock:
            self.shipped[order["customer"]].append(order["number"])

    @property
    def ships(self) -> int:
        """How many orders were shipped."""
        return sum(map(len, self.shipped.values()))

    @property
    def expired(self) -> int:
        """How many orders will be dead letters."""
        return self.orders // EXPIRED_EVERY

    @property
    def suspicious(self) -> int:
        """How many orders the check on Spark will refuse."""
        return self.orders // SUSPICIOUS_EVERY

    def ships_in_order(self) -> bool:
        """Whether each customer's orders were shipped in the order they were placed."""
        return all(numbers == sorted(numbers) for numbers in self.shipped.values())


def order_message(number: int) -> Message:
    """Order number so-and-so; orders of one customer share a queue."""
    customer = f"customer-{number % CUSTOMERS}"
    order = {
        "number": number,
        "customer": customer,
        "card": "expired" if number % EXPIRED_EVERY == 0 else "valid",
    }
    return Message(
        TOPIC,
        json.dumps(order).encode(),
        keys=[f"order-{number}"],
        tag="placed",
        sharding_key=customer,
    )


def check_for_fraud(message: StoredMessage) -> None:
    """Runs on Spark's executors, once for each order."""
    number = json.loads(message.body)["number"]
    if number % SUSPICIOUS_EVERY == 0:
        raise DeadLetter("looks like fraud")


def renew_card(letter: DeadLetterRow) -> bytes:
    """The repair of a dead letter, on Spark's executors: the customer has a new card."""
    order = json.loads(letter.message.body)
    return json.dumps({**order, "card": "renewed"}).encode()
