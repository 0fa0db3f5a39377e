"""The sources of a streaming DataFrame, found in its plan."""

from __future__ import annotations

from collections.abc import Container, Iterator
from dataclasses import dataclass
from typing import Any

from pyspark.sql import DataFrame

from penstock.errors import InvalidArgument
from penstock.spark.jvm import analyzed_plan


@dataclass(frozen=True)
class StreamedRelation:
    """One source of a stream: its format, its options, and the expression ids of its columns."""

    name: str
    options: dict[str, str]
    columns: dict[str, int]

    def changed_columns(self, frame: DataFrame, known: Container[str]) -> list[str]:
        """Columns of the frame with a known name that are not the source's own."""
        return [
            name
            for name, number in _columns(_plan(frame)).items()
            if name in known and self.columns.get(name) != number
        ]


def streamed_relations(frame: DataFrame) -> list[StreamedRelation]:
    """The streams that a DataFrame is made of."""
    return list(_relations(_plan(frame)))


def _relations(plan: Any) -> Iterator[StreamedRelation]:
    leaves = plan.collectLeaves()
    for place in range(leaves.size()):
        leaf = leaves.apply(place)
        if leaf.getClass().getSimpleName() == "StreamingRelationV2":
            options = dict(leaf.extraOptions().asCaseSensitiveMap())
            lowered = {name.lower(): value for name, value in options.items()}
            yield StreamedRelation(leaf.sourceName(), lowered, _columns(leaf))


def _columns(plan: Any) -> dict[str, int]:
    output = plan.output()
    attributes = [output.apply(place) for place in range(output.size())]
    return {attribute.name(): attribute.exprId().id() for attribute in attributes}


def _plan(frame: DataFrame) -> Any:
    plan = analyzed_plan(frame)
    if plan is None:
        raise InvalidArgument(
            "consume of a stream over Spark Connect",
            expected="a classic session, or the options of a read instead of a stream",
        )
    return plan
