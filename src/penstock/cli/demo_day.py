"""A day in the shop of ``penstock demo``: the main job end to end, every part of it for real.

An embedded broker, a producer, a concurrent and an orderly consumer in this process; then Spark:
handlers on executors, an archive, dead letters repaired and redriven, a report with plots. At the
end the sums must agree.
"""

from __future__ import annotations

import contextlib
import importlib.util
import os
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rich.console import Console
from rich.progress import BarColumn, Progress, SpinnerColumn, TextColumn, TimeElapsedColumn

from penstock import Admin, Producer, PushConsumer, embedded
from penstock.cli import output
from penstock.cli.demo_shop import TOPIC, Shop, check_for_fraud, order_message, renew_card
from penstock.cli.output import Column, Table
from penstock.console.listening import is_installed
from penstock.errors import MissingPackage, PenstockError
from penstock.runtime.logs import set_up_logging

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

CHECKERS = "fraud-check"
_STEPS = 7
_PATIENCE_SECONDS = 90.0
_OPEN_SECONDS = 4.0
"""How long customers come."""
_WATCH_SECONDS = 0.2
_LOG_LINES_SHOWN = 20
_NEEDED = ("pyspark", "pyarrow", "numpy", "matplotlib")

Tell = Callable[[str], None]


@dataclass(slots=True)
class Day:
    """What happened."""

    shop: Shop
    seconds: float = 0.0
    sent: int = 0
    checked: int = 0
    refused: int = 0
    archived: int = 0
    redriven: int = 0
    report: str = ""
    reasons: list[tuple[str, int]] = field(default_factory=list)

    @property
    def agrees(self) -> bool:
        """Whether every order is accounted for, once, wherever it should be."""
        counts, orders = self.shop.counts, self.shop.orders
        return (
            self.sent == orders == counts["billed"] + counts["dead"]
            and self.shop.ships == orders
            and self.shop.ships_in_order()
            and self.checked == orders
            and self.refused == self.shop.suspicious
            and self.archived == orders
            and counts["dead"] == self.redriven == counts["billed after repair"]
        )

    def rows(self) -> list[tuple[str, int, str]]:
        """Step, how many orders, and what to say about it."""
        counts = self.shop.counts
        in_order = "each customer's in order" if self.shop.ships_in_order() else "OUT OF ORDER"
        return [
            ("sent", self.sent, ""),
            ("billed", counts["billed"], f"{counts['retried']} of them at the second attempt"),
            ("retried", counts["retried"], "after a second, by the broker"),
            ("dead", counts["dead"], "an expired card; sent = billed + dead"),
            ("shipped", self.shop.ships, in_order),
            ("checked on Spark", self.checked, f"{self.refused} refused, with the reason"),
            ("archived", self.archived, "to Parquet, by day"),
            ("redriven", self.redriven, "repaired with Spark"),
            ("billed after repair", counts["billed after repair"], "dead = redriven = billed"),
        ]


def run_day(orders: int, report: Path, *, as_json: bool = False, stay: bool = False) -> bool:
    """Run the whole demo; whether the sums agree."""
    _require_packages()
    # Orders fail on purpose here; the table tells, so the log need not.
    set_up_logging("CRITICAL")
    started = time.monotonic()
    with tempfile.TemporaryDirectory(prefix="penstock-demo-") as directory:
        work = Path(directory)
        with _quiet(work / "spark.log") as console, _steps(console, as_json) as tell:
            day = _day(orders, report, work, tell, console, stay=stay)
    day.seconds = time.monotonic() - started
    if as_json:
        output.print_json(
            {
                "orders": orders,
                **{step.lower().replace(" ", "_"): count for step, count, _ in day.rows()},
                "sums_agree": day.agrees,
                "report": day.report,
                "seconds": round(day.seconds, 3),
            }
        )
        return day.agrees
    output.show(_table(day), as_json=False)
    output.say("The sums agree." if day.agrees else "THE SUMS DO NOT AGREE.")
    output.say(f"{day.seconds:.0f} s in all; plots are in {day.report}")
    output.say("Try next: penstock up, then in another terminal: penstock send orders hello")
    return day.agrees


def _require_packages() -> None:
    """Refuse at once what would fail only after a minute, at the step that needs the package."""
    missing = [name for name in _NEEDED if importlib.util.find_spec(name) is None]
    if missing:
        raise MissingPackage(
            f"the demo needs {', '.join(missing)}, which this Python does not have",
            hint="pip install 'penstock[spark,java,report]'",
        )


def _day(orders: int, report: Path, work: Path, tell: Tell, console: Console, *, stay: bool) -> Day:
    from penstock.spark import session
    from penstock.spark.pipelines.report.group_watch import GroupWatch
    from penstock.spark.session_setup.orphan_jvm import abort_start

    shop = Shop(orders)
    day = Day(shop)
    tell("starting a broker")
    with (
        embedded(console=is_installed()) as mq,
        GroupWatch(namesrv=mq.namesrv, interval=_WATCH_SECONDS) as watch,
        ThreadPoolExecutor(1) as pool,
    ):
        if is_installed():
            console.print(f"console={mq.console} while the demo runs", highlight=False)
        # Spark takes as long to start as the shop to open: both at once.
        starting = pool.submit(session, "penstock-demo", config={"spark.log.level": "ERROR"})
        try:
            billing = PushConsumer("billing", namesrv=mq.namesrv, start_from="first")
            billing.on(TOPIC)(shop.bill)
            shipping = PushConsumer(
                "shipping", namesrv=mq.namesrv, start_from="first", orderly=True
            )
            shipping.on(TOPIC)(shop.ship)
            with (
                Producer("shop", namesrv=mq.namesrv) as producer,
                billing,
                shipping,
                _saying_when_it_stops(console),
            ):
                tell(f"placing {orders} orders, billing and shipping them")
                for number in range(1, orders + 1):
                    producer.send(order_message(number))
                    day.sent += 1
                    # Customers come one after the other, and a plot of one instant shows nothing.
                    time.sleep(_OPEN_SECONDS / orders)
                _wait(lambda: shop.ships >= orders, "all orders to be shipped")
                _wait(
                    lambda: shop.counts["billed"] + shop.counts["dead"] >= orders,
                    "all orders to be billed or dead",
                )
                tell("waiting for Spark")
                _on_spark(day, starting.result(), mq.namesrv, work, tell)
            tell("writing the report")
            with _saying_when_it_stops(console):
                _report(day, starting.result(), mq.namesrv, report, watch.samples)
        except BaseException:
            abort_start(starting)
            # Why the day ended is what counts: Ctrl-C in the middle of a call to Spark leaves a
            # broken connection, so stop() may fail. Spark ends with this process anyway.
            with contextlib.suppress(Exception):
                starting.result().stop()
            raise
        starting.result().stop()
        if stay:
            where = f"{mq.console} and " if is_installed() else ""
            console.print(f"Look at {where}namesrv={mq.namesrv}; Ctrl-C ends.", highlight=False)
            with contextlib.suppress(KeyboardInterrupt):
                threading.Event().wait()
    return day


@contextlib.contextmanager
def _saying_when_it_stops(console: Console) -> Iterator[None]:
    try:
        yield
    except KeyboardInterrupt:
        # Stopping consumers, Spark and the broker takes a moment.
        console.print("Stopping ...", highlight=False)
        raise


def _on_spark(day: Day, spark: SparkSession, namesrv: str, work: Path, tell: Tell) -> None:
    from penstock.spark import consume
    from penstock.spark.pipelines.archive.archive import archive
    from penstock.spark.pipelines.dead_letters import dead_letters
    from penstock.spark.pipelines.redrive import redrive

    tell("checking orders for fraud on Spark's executors")
    source = {"namesrv": namesrv, "topic": TOPIC, "startingOffsets": "earliest"}
    query = consume(
        source,
        check_for_fraud,
        group=CHECKERS,
        checkpoint=work / "checkpoint",
        trigger={"availableNow": True},
    )
    query.awaitTermination()
    with Admin(namesrv=namesrv) as admin:
        lags = [lag for lag in admin.group_lag(CHECKERS) if lag.topic == TOPIC]
        day.checked = sum(lag.committed for lag in lags)
        day.refused = len(admin.dead_letters(CHECKERS, count=day.shop.orders))

    tell("archiving to Parquet")
    day.archived = archive(spark, TOPIC, work / "archive", namesrv=namesrv).total

    tell("repairing dead letters with Spark")
    letters = dead_letters(spark, "billing", namesrv=namesrv)
    day.redriven = redrive(
        letters, group="billing", audit=work / "audit", repair=renew_card, namesrv=namesrv
    ).redriven
    _wait(
        lambda: day.shop.counts["billed after repair"] >= day.redriven,
        "repaired orders to be billed",
    )


def _report(
    day: Day, spark: SparkSession, namesrv: str, report: Path, samples: tuple[Any, ...]
) -> None:
    from penstock.spark.pipelines.report.report import report as write_report

    write_report(spark, report, title="A day in the shop", samples=samples, namesrv=namesrv)
    day.report = str(report)


def _wait(condition: Callable[[], bool], what: str) -> None:
    deadline = time.monotonic() + _PATIENCE_SECONDS
    while not condition():
        if time.monotonic() > deadline:
            raise PenstockError(
                f"the demo waited {_PATIENCE_SECONDS:.0f} s for {what}, which did not happen"
            )
        time.sleep(0.05)


@contextlib.contextmanager
def _quiet(log: Path) -> Iterator[Console]:
    """Send what Spark and its Java print to a file; yields a console that still can be seen.

    Java writes to the descriptor it inherits, so that is what is turned away.
    """
    sys.stderr.flush()
    kept = os.dup(2)
    try:
        with log.open("wb") as file, os.fdopen(os.dup(kept), "w") as visible:
            os.dup2(file.fileno(), 2)
            try:
                yield Console(file=visible)
            except Exception:  # Ctrl-C needs no explanation.
                lines = log.read_text(errors="replace").splitlines()[-_LOG_LINES_SHOWN:]
                visible.write("".join(f"spark: {line}\n" for line in lines))
                raise
    finally:
        os.dup2(kept, 2)
        os.close(kept)


@contextlib.contextmanager
def _steps(console: Console, as_json: bool) -> Iterator[Tell]:
    """Tell what is going on: a bar on a terminal, a line for each step elsewhere."""
    done = 0
    if as_json or not console.is_terminal:

        def say_line(text: str) -> None:
            nonlocal done
            done += 1
            if not as_json:
                console.print(f"{done}/{_STEPS} {text}", highlight=False)

        yield say_line
        return
    with Progress(
        SpinnerColumn(),
        BarColumn(_STEPS * 2),
        TextColumn("{task.completed}/{task.total} {task.description}"),
        TimeElapsedColumn(),
        console=console,
        transient=True,
    ) as progress:
        task = progress.add_task("", total=_STEPS)
        yield lambda text: progress.update(task, advance=1, description=text)


def _table(day: Day) -> Table:
    return Table(
        columns=(Column("step"), Column("orders", align="right"), Column("remark")),
        rows=[{"step": step, "orders": count, "remark": said} for step, count, said in day.rows()],
        title="What happened to the orders",
    )
