"""The size of the Spark part, and the names of its rows."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

SCAN: Final = "scan"
STREAM: Final = "stream"
SINK: Final = "sink"
IDLE: Final = "idle"
ROWS: Final = (SCAN, STREAM, SINK, IDLE)

BROKER: Final = "penstock, broker"
PATH: Final = "penstock, path"
KAFKA: Final = "spark-sql-kafka"
PARQUET: Final = "parquet"


@dataclass(frozen=True, slots=True)
class SparkPlan:
    """Counts, as passed between the processes."""

    rounds: int = 3
    unrecorded: int = 1
    """Rounds before the measured ones, while the JVM compiles."""
    messages: int = 1_000_000
    """Messages to scan and to stream."""
    batches: int = 4
    """Micro-batches of a stream; the first is not counted."""
    written: int = 500_000
    """Rows written to a sink in one round."""
    warm_up: int = 20
    """Micro-batches of an idle stream before the measured ones."""
    idle: int = 20

    @property
    def a_batch(self) -> int:
        """Rows per micro-batch."""
        return self.messages // self.batches


TINY_SPARK: Final = SparkPlan(1, 0, messages=8_000, written=2_000, warm_up=1, idle=2)
SHORT_SPARK: Final = SparkPlan()
FULL_SPARK: Final = SparkPlan(5, messages=4_000_000, written=1_000_000, warm_up=40, idle=40)
