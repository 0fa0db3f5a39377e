"""Prometheus' text format: families of series, bounded and written in slices.

Names of topics and groups become labels, and every client that may send can invent names. So a
family has a largest number of series; the rest is one series whose names are ``(other)``. Of a
gauge the largest values stay, of a counter the first ones: a counter that came and went would look
like a reset.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Final, Literal, TypeAlias

OTHER: Final = "(other)"
SLICE: Final = 500
"""Series written between two turns of the loop; about 2 ms."""

Kind: TypeAlias = Literal["gauge", "counter", "histogram"]
Labels: TypeAlias = tuple[str, ...]
Number: TypeAlias = int | float


@dataclass(frozen=True, slots=True)
class Family:
    """Series of one name; ``rows`` have a value for each label, then the number."""

    name: str
    kind: Kind
    help: str
    labels: tuple[str, ...]
    rows: Sequence[tuple[Labels, Number]]
    named: tuple[str, ...] = ("topic", "consumer_group")
    """The labels whose values others choose, and which are ``(other)`` beyond the bound."""
    rest_is_largest: bool = False
    """Whether the rest is shown by its largest value, as of latencies; otherwise by its sum."""


@dataclass(frozen=True, slots=True)
class Histogram:
    """A histogram without labels of its own: counts up to each bound, their sum and number."""

    name: str
    help: str
    bounds: tuple[float, ...]
    counts: Sequence[int]
    """One for each bound and one for what is above; not cumulative."""
    total: float


def bounded(family: Family, limit: int) -> tuple[Family, int]:
    """A family of at most ``limit`` series, and how many were folded into ``(other)``."""
    rows = family.rows
    if len(rows) <= limit:
        return family, 0
    if family.kind == "gauge":
        rows = sorted(rows, key=lambda row: row[1], reverse=True)
    kept, rest = list(rows[: limit - 1]), rows[limit - 1 :]
    values = [value for _, value in rest]
    labels = tuple(
        OTHER if name in family.named else value
        for name, value in zip(family.labels, rest[0][0], strict=True)
    )
    kept.append((labels, max(values) if family.rest_is_largest else sum(values)))
    return (
        Family(family.name, family.kind, family.help, family.labels, kept, family.named),
        len(rest),
    )


def write(families: Iterable[Family | Histogram], common: str) -> Iterator[str]:
    """The text of families, in slices; ``common`` is the text of labels that all series have."""
    for family in families:
        if isinstance(family, Histogram):
            yield _histogram(family, common)
            continue
        if not family.rows:
            continue
        yield _head(family.name, family.kind, family.help)
        for start in range(0, len(family.rows), SLICE):
            yield "".join(
                f"{family.name}{{{_labels(family.labels, labels, common)}}} {_number(value)}\n"
                for labels, value in family.rows[start : start + SLICE]
            )


def common_labels(pairs: Iterable[tuple[str, str]]) -> str:
    """The text of labels that all series have."""
    return ",".join(f'{name}="{escaped(value)}"' for name, value in pairs)


def escaped(value: str) -> str:
    """A label's value between quotes; what cannot be UTF-8 is replaced."""
    text = value.replace("\\", "\\\\").replace('"', '\\"').replace("\n", "\\n")
    return text.encode("utf-8", "replace").decode()


def _head(name: str, kind: str, help: str) -> str:
    return f"# HELP {name} {help}\n# TYPE {name} {kind}\n"


def _labels(names: tuple[str, ...], values: Labels, common: str) -> str:
    own = ",".join(f'{name}="{escaped(value)}"' for name, value in zip(names, values, strict=True))
    return f"{common},{own}" if own and common else own or common


def _number(value: Number) -> str:
    if isinstance(value, int):
        return str(value)
    if math.isfinite(value):
        return repr(value)
    return "NaN" if math.isnan(value) else "+Inf" if value > 0 else "-Inf"


def _histogram(histogram: Histogram, common: str) -> str:
    lines = [_head(histogram.name, "histogram", histogram.help)]
    count = 0
    start = f"{common}," if common else ""
    for bound, more in zip((*histogram.bounds, math.inf), histogram.counts, strict=True):
        count += more
        shown = "+Inf" if math.isinf(bound) else _number(bound)
        lines.append(f'{histogram.name}_bucket{{{start}le="{shown}"}} {count}\n')
    lines.append(f"{histogram.name}_sum{{{common}}} {_number(histogram.total)}\n")
    lines.append(f"{histogram.name}_count{{{common}}} {count}\n")
    return "".join(lines)
