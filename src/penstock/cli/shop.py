"""The shop of ``penstock demo``: the main job end to end, on a broker of its own, in seconds.

A shop sends orders. Billing fails now and then: some orders succeed when tried again, some end as
dead letters with the reason. Shipping wants each customer's orders in order. At the end the dead
letters are read, repaired and sent again, and the sums must agree.
"""

from __future__ import annotations

import sys
import threading
import time
from collections import Counter, defaultdict
from collections.abc import Callable

from rich.console import Console
from rich.progress import Progress, SpinnerColumn, TextColumn, TimeElapsedColumn

from penstock import (
    DeadLetter,
    Message,
    Producer,
    PullConsumer,
    PushConsumer,
    RetryLater,
    StoredMessage,
    embedded,
)
from penstock.cli import output
from penstock.cli.output import Column, Table
from penstock.errors import PenstockError
from penstock.model.names import dead_letter_topic
from penstock.protocol.extensions import REASON_FIELDS
from penstock.runtime.logs import set_up_logging

CUSTOMERS = 10
FLAKY_EVERY = 20
BROKEN_EVERY = 50
_PATIENCE_SECONDS = 60.0
STEPS = ("sent", "billed", "retried", "given up", "redriven", "billed again")
_REASON = REASON_FIELDS["penstockReasonMessage"]


class Shop:
    """Everything the demo counts."""

    def __init__(self, orders: int) -> None:
        self.orders = orders
        self.lock = threading.Lock()
        self.counts: Counter[str] = Counter()
        self.shipped: dict[str, list[int]] = defaultdict(list)

    def count(self, what: str) -> None:
        """One more of something; handlers run in many threads."""
        with self.lock:
            self.counts[what] += 1

    # Handlers

    def bill(self, message: StoredMessage) -> None:
        """Billing: a card reader that is down for a moment, and cards that have expired."""
        number = int(message.body)
        if number % BROKEN_EVERY == 0 and message.topic == "orders":
            self.count("given up")
            raise DeadLetter(f"card of order {number} has expired")
        if number % FLAKY_EVERY == 1 and message.reconsume_times == 0:
            self.count("retried")
            raise RetryLater("1s")
        self.count("billed")

    def ship(self, message: StoredMessage) -> None:
        """Shipping: in the order of each customer."""
        with self.lock:
            self.shipped[message.properties["customer"]].append(int(message.body))

    # What must be true at the end

    def ships_in_order(self) -> bool:
        """Whether each customer's orders were shipped in the order they were placed."""
        return all(numbers == sorted(numbers) for numbers in self.shipped.values())

    @property
    def ships(self) -> int:
        """How many orders were shipped."""
        return sum(map(len, self.shipped.values()))


def run_shop(orders: int, *, as_json: bool = False) -> bool:
    """Run the whole demo; whether the sums agree."""
    # Orders fail on purpose here; the table tells, so the log need not.
    set_up_logging("ERROR")
    shop = Shop(orders)
    started = time.monotonic()
    with (
        Progress(
            SpinnerColumn(),
            TextColumn("{task.description}"),
            TimeElapsedColumn(),
            console=Console(stderr=True),
            transient=True,
            disable=as_json or not sys.stderr.isatty(),
        ) as progress,
        embedded() as mq,
    ):
        step = progress.add_task("broker started")
        _run(shop, mq.namesrv, lambda text: progress.update(step, description=text))
    agrees = _agrees(shop)
    seconds = time.monotonic() - started
    if as_json:
        steps = {step.replace(" ", "_"): shop.counts[step] for step in STEPS}
        shipped = {"shipped": shop.ships, "shipped_in_order": shop.ships_in_order()}
        ended = {"sums_agree": agrees, "seconds": round(seconds, 3)}
        output.print_json({"orders": orders, **steps, **shipped, **ended})
        return agrees
    output.show(_table(shop), as_json=False)
    verdict = "the sums agree" if agrees else "THE SUMS DO NOT AGREE"
    output.say(f"{verdict}; {seconds:.1f} s. Try next: penstock up")
    return agrees


def _run(shop: Shop, namesrv: str, tell: Callable[[str], None]) -> None:
    billing = PushConsumer(group="billing", namesrv=namesrv, start_from="first")
    billing.on("orders")(shop.bill)
    shipping = PushConsumer(group="shipping", namesrv=namesrv, start_from="first", orderly=True)
    shipping.on("orders")(shop.ship)
    with Producer(group="shop", namesrv=namesrv) as producer:
        tell(f"placing {shop.orders} orders")
        for number in range(1, shop.orders + 1):
            customer = f"customer-{number % CUSTOMERS}"
            producer.send(
                Message(
                    "orders",
                    str(number).encode(),
                    keys=[f"order-{number}"],
                    tag="placed",
                    properties={"customer": customer},
                    sharding_key=customer,
                )
            )
            shop.count("sent")
        with billing, shipping:
            dead = shop.orders // BROKEN_EVERY
            tell("billing and shipping")
            _wait(lambda: shop.ships == shop.orders, "all orders to be shipped")
            _wait(
                lambda: shop.counts["billed"] + dead == shop.orders,
                "all orders to be billed or dead",
            )
            tell("repairing dead letters")
            _redrive(shop, namesrv, producer, dead)


def _redrive(shop: Shop, namesrv: str, producer: Producer, dead: int) -> None:
    """Read the dead letters, and send each again where billing finds it."""
    repairs = PushConsumer(group="billing-repairs", namesrv=namesrv, start_from="first")

    @repairs.on("orders-repaired")
    def bill_again(message: StoredMessage) -> None:
        shop.count("billed again")

    with PullConsumer("demo-repair", namesrv=namesrv, start_from="first") as letters:
        letters.subscribe(dead_letter_topic("billing"))
        deadline = time.monotonic() + _PATIENCE_SECONDS
        while shop.counts["redriven"] < dead and time.monotonic() < deadline:
            for letter in letters.poll(1):
                reason = letter.properties.get(_REASON, "not recorded")
                producer.send(
                    Message(
                        "orders-repaired",
                        letter.body,
                        keys=letter.keys,
                        properties={"repaired": reason},
                    )
                )
                shop.count("redriven")
    repairs.start()
    try:
        _wait(lambda: shop.counts["billed again"] >= dead, "repaired orders to be billed")
    finally:
        repairs.stop()


def _wait(condition: Callable[[], bool], what: str) -> None:
    deadline = time.monotonic() + _PATIENCE_SECONDS
    while not condition():
        if time.monotonic() > deadline:
            raise PenstockError(f"the demo waited {_PATIENCE_SECONDS:.0f} s in vain for {what}")
        time.sleep(0.05)


def _agrees(shop: Shop) -> bool:
    counts = shop.counts
    return (
        counts["sent"] == shop.orders == counts["billed"] + counts["given up"] == shop.ships
        and counts["given up"] == counts["redriven"] == counts["billed again"]
        and shop.ships_in_order()
    )


def _table(shop: Shop) -> Table:
    rows: list[dict[str, object]] = [{"step": step, "orders": shop.counts[step]} for step in STEPS]
    in_order = "in order" if shop.ships_in_order() else "OUT OF ORDER"
    rows.append({"step": f"shipped, {in_order}", "orders": shop.ships})
    columns = (Column("step"), Column("orders", align="right"))
    return Table(columns, rows, title="What happened to the orders")
