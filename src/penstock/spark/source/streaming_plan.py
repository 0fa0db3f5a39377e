"""What a streaming DataFrame was read from, as its plan says."""

from __future__ import annotations

from collections.abc import Container, Iterator
from dataclasses import dataclass
from typing import Any

from pyspark.sql import DataFrame

from penstock.errors import InvalidArgument


@dataclass(frozen=True)
class StreamedRelation:
    """One source of a stream: its format, its options, and its columns by Spark's own numbers."""

    name: str
    options: dict[str, str]
    columns: dict[str, int]

    def changed_columns(self, frame: DataFrame, known: Container[str]) -> list[str]:
        """Columns of the frame that bear a known name, but are not what the source gave."""
        return [
            name
            for name, number in _columns(_plan(frame)).items()
            if name in known and self.columns.get(name) != number
        ]


def streamed_relations(frame: DataFrame) -> list[StreamedRelation]:
    """The streams a DataFrame is made of."""
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
    """The analysed plan; only a session in the same process has it."""
    java = getattr(frame, "_jdf", None)
    if java is None:
        raise InvalidArgument(
            "consume of a stream over Spark Connect",
            expected="a classic session, or the options of a read instead of a stream",
        )
    return java.queryExecution().analyzed()
