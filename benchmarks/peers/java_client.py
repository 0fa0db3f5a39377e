"""The official Java client on both RocketMQ brokers, as two parts of the comparison.

Brokers that each round starts, and brokers that run through all rounds and are warmed by each row.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from benchmarks.__main__ import machine
from benchmarks.against_apache import APACHE_VERSION, ROWS, compare, compare_both_alive, report
from tests.interop.toolchain import prepare

HEAP: Final = "2g"
SOURCES: Final = Path(__file__).parent.parent / "java"


@dataclass(frozen=True, slots=True)
class JavaPlan:
    """The size of this part."""

    rounds: int = 3
    seconds: int = 3
    rows: tuple[str, ...] = ROWS
    warm: float = 15
    """Seconds for which each row warms both brokers."""


TINY_JAVA: Final = JavaPlan(1, 1, ("sync-1-128", "drain-2000-128", "latency-200-128"), warm=1)
SHORT_JAVA: Final = JavaPlan()
FULL_JAVA: Final = JavaPlan(rounds=5, seconds=8, warm=30)


def run_java(plan: JavaPlan) -> dict[str, Any]:
    """The output of `benchmarks.against_apache`; raises `Unavailable` without a JDK and Maven."""
    toolchain = prepare(APACHE_VERSION, SOURCES)
    found = compare(toolchain, plan.rounds, plan.seconds, plan.rows, HEAP)
    return {"apache": APACHE_VERSION, "machine": machine(), "rows": report(found)}


def run_warm_java(plan: JavaPlan) -> dict[str, Any]:
    """The same with ``--warm``."""
    toolchain = prepare(APACHE_VERSION, SOURCES)
    size = (plan.rounds, plan.seconds, plan.rows, HEAP)
    found = compare_both_alive(toolchain, *size, plan.warm)
    return {"apache": APACHE_VERSION, "machine": machine(), "rows": report(found)}
