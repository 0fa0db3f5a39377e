"""Counters, gauges and histograms, and their text in the format Prometheus scrapes.

Counting is an attribute addition on an object the caller keeps, with no lock and no look-up:

    messages_in = registry.counter("rocketmq_messages_in_total", "...", ("topic",))
    orders = messages_in.labels("orders")
    orders.value += 1

Names are RocketMQ's, so its dashboards work. Labels come from outside (topics, groups), so each
family holds at most `MAX_SERIES`; what comes after that is counted together under `OTHER`.
"""

from __future__ import annotations

import math
import re
from bisect import bisect_left
from collections.abc import Callable, Iterator, Sequence
from typing import Any, Final, Generic, TypeVar

from penstock.errors import InvalidArgument

MAX_SERIES: Final = 10_000
OTHER: Final = "(other)"
CONTENT_TYPE: Final = "text/plain; version=0.0.4; charset=utf-8"

LATENCY_BUCKETS: Final = (
    0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0,
)  # fmt: skip

_NAME = re.compile(r"[a-zA-Z_:][a-zA-Z0-9_:]*")
_LABEL = re.compile(r"[a-zA-Z_][a-zA-Z0-9_]*")


class Counter:
    """A number that only grows: ``counter.value += n``."""

    __slots__ = ("value",)

    def __init__(self) -> None:
        self.value: float = 0

    def samples(self) -> Iterator[tuple[str, str, float]]:
        yield "", "", self.value


class Gauge:
    """A number that goes up and down; set it, or give it a function to ask when scraped."""

    __slots__ = ("function", "value")

    def __init__(self) -> None:
        self.value: float = 0
        self.function: Callable[[], float] | None = None

    def samples(self) -> Iterator[tuple[str, str, float]]:
        yield "", "", self.value if self.function is None else self.function()


class Histogram:
    """How often a value fell below each of some bounds."""

    __slots__ = ("bounds", "counts", "sum")

    def __init__(self, bounds: Sequence[float]) -> None:
        self.bounds = tuple(bounds)
        self.counts = [0] * (len(self.bounds) + 1)
        self.sum: float = 0

    def observe(self, value: float) -> None:
        self.counts[bisect_left(self.bounds, value)] += 1
        self.sum += value

    @property
    def count(self) -> int:
        return sum(self.counts)

    def samples(self) -> Iterator[tuple[str, str, float]]:
        total = 0
        for bound, count in zip((*self.bounds, math.inf), self.counts, strict=True):
            total += count
            yield "_bucket", f'le="{_number(bound)}"', total
        yield "_sum", "", self.sum
        yield "_count", "", total


_Series = TypeVar("_Series", bound=Counter | Gauge | Histogram)


class Family(Generic[_Series]):
    """All series of one name; each has its own label values."""

    def __init__(
        self,
        name: str,
        help_text: str,
        label_names: Sequence[str],
        kind: str,
        make: Callable[[], _Series],
        max_series: int,
    ) -> None:
        self.name = name
        self.help = help_text
        self.label_names = tuple(label_names)
        self.kind = kind
        self._make = make
        self._max_series = max_series
        self._series: dict[tuple[str, ...], _Series] = {}

    def labels(self, *values: str) -> _Series:
        """The series with these label values; keep it where it is used often."""
        series = self._series.get(values)
        if series is not None:
            return series
        if len(values) != len(self.label_names):
            raise InvalidArgument(
                f"metric {self.name} got labels {values!r}",
                expected=f"one value each for {', '.join(self.label_names) or 'no label'}",
            )
        if len(self._series) >= self._max_series:
            values = (OTHER,) * len(self.label_names)
            if values in self._series:
                return self._series[values]
        series = self._series[values] = self._make()
        return series

    def remove(self, is_gone: Callable[[tuple[str, ...]], bool]) -> None:
        """Forget the series of topics or groups that no longer exist."""
        for values in [values for values in self._series if is_gone(values)]:
            del self._series[values]

    def __len__(self) -> int:
        return len(self._series)

    def lines(self) -> Iterator[str]:
        """The family in the exposition format."""
        yield f"# HELP {self.name} {_escape(self.help)}"
        yield f"# TYPE {self.name} {self.kind}"
        for values, series in self._series.items():
            fixed = [
                f'{label}="{_escape(value, quote=True)}"'
                for label, value in zip(self.label_names, values, strict=True)
            ]
            for suffix, extra, number in series.samples():
                labels = ",".join([*fixed, extra] if extra else fixed)
                shown = f"{{{labels}}}" if labels else ""
                yield f"{self.name}{suffix}{shown} {_number(number)}"


class Registry:
    """All metric families of a process or a component."""

    def __init__(self, *, max_series: int = MAX_SERIES) -> None:
        self._families: dict[str, Family[Any]] = {}
        self._max_series = max_series

    def counter(self, name: str, help_text: str, labels: Sequence[str] = ()) -> Family[Counter]:
        """A family of counters; the name ends in ``_total``, as RocketMQ's do."""
        return self._add(Family(name, help_text, labels, "counter", Counter, self._max_series))

    def gauge(self, name: str, help_text: str, labels: Sequence[str] = ()) -> Family[Gauge]:
        """A family of gauges."""
        return self._add(Family(name, help_text, labels, "gauge", Gauge, self._max_series))

    def histogram(
        self,
        name: str,
        help_text: str,
        labels: Sequence[str] = (),
        *,
        bounds: Sequence[float] = LATENCY_BUCKETS,
    ) -> Family[Histogram]:
        """A family of histograms with the same upper bounds."""
        if not bounds or list(bounds) != sorted(set(bounds)):
            raise InvalidArgument(
                f"metric {name} has the bounds {list(bounds)}", expected="numbers that grow"
            )

        def make() -> Histogram:
            return Histogram(bounds)

        return self._add(Family(name, help_text, labels, "histogram", make, self._max_series))

    def text(self) -> str:
        """Every metric in the text format of Prometheus."""
        lines = [line for family in self._families.values() for line in family.lines()]
        return "".join(f"{line}\n" for line in lines)

    def _add(self, family: Family[_Series]) -> Family[_Series]:
        if not _NAME.fullmatch(family.name):
            raise InvalidArgument(f"{family.name!r} is no metric name", expected=_NAME.pattern)
        for label in family.label_names:
            if not _LABEL.fullmatch(label):
                raise InvalidArgument(f"{label!r} is no label name", expected=_LABEL.pattern)
        if family.name in self._families:
            raise InvalidArgument(f"metric {family.name} was registered twice")
        self._families[family.name] = family
        return family


def _number(value: float) -> str:
    if math.isinf(value):
        return "+Inf" if value > 0 else "-Inf"
    if math.isnan(value):
        return "NaN"
    if value == int(value) and abs(value) < 1 << 53:
        return str(int(value))
    return repr(float(value))


def _escape(text: str, *, quote: bool = False) -> str:
    escaped = text.replace("\\", "\\\\").replace("\n", "\\n")
    return escaped.replace('"', '\\"') if quote else escaped
