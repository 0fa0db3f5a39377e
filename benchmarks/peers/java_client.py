"""The official Java client on both RocketMQ brokers, as a part of the comparison."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from benchmarks.__main__ import machine
from benchmarks.against_apache import APACHE_VERSION, ROWS, compare, report
from tests.interop.toolchain import prepare

HEAP: Final = "2g"
SOURCES: Final = Path(__file__).parent.parent / "java"


@dataclass(frozen=True, slots=True)
class JavaPlan:
    """The size of this part."""

    rounds: int = 3
    seconds: int = 3
    rows: tuple[str, ...] = ROWS


TINY_JAVA: Final = JavaPlan(1, 1, ("sync-1-128", "drain-2000-128", "latency-200-128"))
SHORT_JAVA: Final = JavaPlan()
FULL_JAVA: Final = JavaPlan(rounds=5, seconds=5)


def run_java(plan: JavaPlan) -> dict[str, Any]:
    """The output of `benchmarks.against_apache`; raises `Unavailable` without a JDK and Maven."""
    toolchain = prepare(APACHE_VERSION, SOURCES)
    found = compare(toolchain, plan.rounds, plan.seconds, plan.rows, HEAP)
    return {"apache": APACHE_VERSION, "machine": machine(), "rows": report(found)}
