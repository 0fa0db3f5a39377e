"""The plots of a report: numbers in, SVG text out.

matplotlib draws in placeholder colours, which are then replaced by CSS variables. So one drawing
serves light and dark pages, and its text uses the page's font.
"""

from __future__ import annotations

import io
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any, NamedTuple, Self

from penstock.errors import PenstockError
from penstock.spark.pipelines.report.data import Point, ReasonCount, Spread

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

SERIES = 8
"""The number of colours; further series are summed as "others"."""

_INK, _FAINT, _GRID, _PAPER = "#010101", "#010102", "#010103", "#010104"
_COLOURS = tuple(f"#0102{number:02x}" for number in range(1, SERIES + 1))
_VARIABLES = {
    _INK: "var(--ink)",
    _FAINT: "var(--faint)",
    _GRID: "var(--grid)",
    _PAPER: "var(--paper)",
    **{colour: f"var(--s{number})" for number, colour in enumerate(_COLOURS, 1)},
}
_OTHERS = "others"
_LABEL_CHARACTERS = 40
_BARS = 10
_SHORTEST_AXIS_MS = 1.0
_DOTS_BELOW = 3
"""Series with fewer points are drawn with dots, since a line needs two ends."""
_CHARACTER_INCHES = 0.085
"""The width of a character of a label, with room to spare: browsers choose the font."""
_LABEL_GAP_INCHES = 0.25
_AXIS_INCHES = 0.8
"""The part of a drawing to the left of its time axis."""
_STRETCHED_FROM = 50.0
"""If the largest value is so many times a usual one, an axis of equal steps shows only that one."""


class Size(NamedTuple):
    """The size of a drawing. Each is drawn twice, and the page shows the one that fits."""

    suffix: str
    wide: tuple[float, float]
    half: tuple[float, float]


LARGE = Size("", (11.6, 3.3), (5.6, 2.9))
SMALL = Size("-small", (4.3, 2.9), (4.3, 2.9))
"""For phones, on which the text of a larger drawing would be too small to read."""
_DAY_MS = 86_400_000
_TICK_STEPS_MS = (
    *(100, 200, 500, 1000, 2000, 5000, 10_000, 15_000, 30_000),
    *(60_000, 120_000, 300_000, 600_000, 900_000, 1_800_000),
    *(3_600_000, 7_200_000, 10_800_000, 21_600_000, 43_200_000),
    *(_DAY_MS * days for days in (1, 2, 7, 14, 30, 60, 90, 180, 365)),
)

Window = tuple[int, int]
"""Begin and end of a report, in epoch ms."""
_SETTINGS: dict[str, Any] = {
    "svg.fonttype": "none",
    "text.parse_math": False,  # reasons of failures may contain "$"
    "font.family": "sans-serif",
    "font.size": 10,
    "text.color": _INK,
    "axes.labelcolor": _FAINT,
    "axes.edgecolor": _GRID,
    "axes.facecolor": "none",
    "figure.facecolor": "none",
    "xtick.color": _FAINT,
    "ytick.color": _FAINT,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.spines.left": False,
    "legend.frameon": False,
    "legend.fontsize": 9.5,
    "path.simplify": True,
}


def throughput(
    series: Mapping[str, Sequence[Point]], bucket_ms: int, window: Window, size: Size = LARGE
) -> str:
    """Messages a second by topic, stacked."""
    kept = _foremost(series)
    moments = sorted({point.at_ms for points in kept.values() for point in points})
    rates = []
    for points in kept.values():
        found = {point.at_ms: point.value * 1000 / bucket_ms for point in points}
        rates.append([found.get(moment, 0.0) for moment in moments])
    with _Drawing("throughput", size, size.wide) as drawing:
        if moments:
            drawing.axes.stackplot(
                # A bucket is a step, so the last one needs an end.
                _days([*moments, moments[-1] + bucket_ms]),
                *[[*values, values[-1]] for values in rates],
                labels=_labels(kept),
                colors=_COLOURS,
                step="post",
                alpha=0.85,
            )
        drawing.axes.set_ylabel("messages / s")
        return drawing.over_time(window)


def lag(series: Mapping[str, Sequence[Point]], window: Window, size: Size = LARGE) -> str:
    """Lag by group, while the groups were watched."""
    kept = _foremost(series)
    with _Drawing("lag", size) as drawing:
        for label, points, colour in zip(_labels(kept), kept.values(), _COLOURS, strict=False):
            drawing.axes.plot(
                _days([point.at_ms for point in points]),
                [point.value for point in points],
                label=label,
                color=colour,
                linewidth=1.8,
            )
        largest = [max((p.value for p in points), default=0.0) for points in kept.values()]
        note = _stretch(drawing.axes.set_yscale, largest)
        drawing.axes.set_ylabel(f"messages behind{note}")
        return drawing.over_time(window)


def lag_now(groups: Mapping[str, int], size: Size = LARGE) -> str:
    """Lag by group, at one moment."""
    largest = sorted(groups.items(), key=lambda item: (-item[1], item[0]))[:_BARS]
    return _bars("lag-now", dict(largest), _COLOURS[0], size)


def latency(series: Sequence[Spread], name: str, window: Window, size: Size = LARGE) -> str:
    """Median, 95th and 99th percentile over time."""
    times = _days([spread.at_ms for spread in series])
    median, slow, slowest = ([spread[i] for spread in series] for i in (1, 2, 3))
    unit, factor = _unit(max(slowest, default=0.0))
    with _Drawing(name, size) as drawing:
        from matplotlib.ticker import FuncFormatter

        axes = drawing.axes
        axes.fill_between(times, median, slowest, color=_COLOURS[0], alpha=0.1, linewidth=0)
        # Not by colour alone: the lines differ in print, and for those who see no colours.
        for values, label, colour, style in (
            (slowest, "99 %", _COLOURS[1], (0, (1, 1.6))),
            (slow, "95 %", _COLOURS[4], (0, (5, 2))),
            (median, "median", _COLOURS[0], "-"),
        ):
            marker = "o" if len(series) < _DOTS_BELOW else None
            axes.plot(
                times,
                values,
                label=label,
                color=colour,
                linewidth=1.8,
                linestyle=style,
                marker=marker,
                # Clipping would cut off half of a dot at zero or at the window's edge.
                clip_on=marker is None,
            )
        axes.yaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value / factor:,g}"))
        # Timestamps are in milliseconds, so the axis shows at least one.
        axes.set_ylim(top=max(axes.get_ylim()[1], _SHORTEST_AXIS_MS))
        axes.set_ylabel(unit + _stretch(axes.set_yscale, [*slowest, *median]))
        # A new scale comes with its own numbers.
        axes.yaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value / factor:,g}"))
        return drawing.over_time(window)


def retries(
    series: Mapping[str, Sequence[Point]], bucket_ms: int, window: Window, size: Size = LARGE
) -> str:
    """Deliveries from retry topics by group, stacked."""
    kept = _foremost(series)
    below: dict[int, float] = {}
    with _Drawing("retries", size) as drawing:
        for label, points, colour in zip(_labels(kept), kept.values(), _COLOURS, strict=False):
            drawing.axes.bar(
                _days([point.at_ms + bucket_ms // 2 for point in points]),
                [point.value for point in points],
                bottom=[below.get(point.at_ms, 0.0) for point in points],
                width=bucket_ms / _DAY_MS * 0.86,
                label=label,
                color=colour,
                linewidth=0,
            )
            for point in points:
                below[point.at_ms] = below.get(point.at_ms, 0.0) + point.value
        drawing.axes.set_ylabel("retries")
        return drawing.over_time(window)


def dead_letters(reasons: Sequence[ReasonCount], size: Size = LARGE) -> str:
    """Dead letters by reason, the most frequent first."""
    counts: dict[str, int] = {}
    for reason in reasons:
        counts[reason.reason] = counts.get(reason.reason, 0) + reason.count
    first = sorted(counts.items(), key=lambda item: (-item[1], item[0]))
    shown = dict(first[:_BARS])
    rest = sum(count for _, count in first[_BARS:])
    if rest:
        shown[f"{len(first) - _BARS} other reasons"] = rest
    return _bars("dead-letters", shown, _COLOURS[1], size)


def _bars(name: str, values: Mapping[str, int], colour: str, size: Size) -> str:
    height = 0.3 + 0.36 * max(2, len(values))
    with _Drawing(name, size, (size.half[0], height)) as drawing:
        axes = drawing.axes
        places = list(range(len(values)))
        drawn = axes.barh(places, list(values.values()), height=0.6, color=colour, linewidth=0)
        labels = _LABEL_CHARACTERS if size is LARGE else _LABEL_CHARACTERS // 2
        axes.set_yticks(places, _labels(values, labels), color=_INK)
        axes.bar_label(drawn, labels=[f"{count:,}" for count in values.values()], padding=5)
        # The first on top, and a single bar no thicker than one of many.
        axes.set_ylim(max(2, len(values)) - 0.5, -0.5)
        axes.grid(visible=False, axis="both")
        axes.spines["bottom"].set_visible(False)
        is_stretched = bool(_stretch(axes.set_xscale, list(values.values())))
        if is_stretched:
            axes.set_xlabel("logarithmic")
        axes.set_xticks([])
        axes.set_xticks([], minor=True)
        axes.set_xlim(0, max(1, *values.values(), 0) * (4 if is_stretched else 1.25))
        return drawing.svg()


# ----------------------------------------------------------------------------------- the drawing


class _Drawing:
    """One drawing; inside its ``with`` block, `_SETTINGS` apply."""

    def __init__(self, name: str, size: Size, inches: tuple[float, float] | None = None) -> None:
        matplotlib = require_matplotlib()
        self.name = name = name + size.suffix
        self._inches = inches or size.half
        self._settings = matplotlib.rc_context({**_SETTINGS, "svg.hashsalt": name})

    def __enter__(self) -> Self:
        from matplotlib.figure import Figure

        self._settings.__enter__()
        self.figure: Figure = Figure(figsize=self._inches, layout="constrained")
        self.axes: Axes = self.figure.add_subplot()
        self.axes.grid(axis="y", color=_GRID, linewidth=0.8)
        self.axes.set_axisbelow(True)
        self.axes.tick_params(length=0)
        return self

    def __exit__(self, *error: object) -> None:
        self._settings.__exit__(None, None, None)

    def over_time(self, window: Window) -> str:
        """Finish a drawing whose horizontal axis is the time of the report."""
        from matplotlib.ticker import FuncFormatter, MaxNLocator

        axes = self.axes
        places, texts = ticks(*window, self._inches[0])
        axes.set_xticks(_days(places), texts)
        axes.set_xlim(*_days(window))
        top = axes.get_ylim()[1]
        axes.set_ylim(0, top if top > 0 else 1)
        if not isinstance(axes.yaxis.get_major_formatter(), FuncFormatter):
            if axes.get_yscale() == "linear":
                # Counts are whole numbers.
                axes.yaxis.set_major_locator(MaxNLocator(nbins=8, integer=True, min_n_ticks=1))
            axes.yaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:,g}"))
        handles, labels = axes.get_legend_handles_labels()
        if handles:
            self.figure.legend(
                handles,
                labels,
                loc="outside upper left",
                ncols=max(1, min(4, len(handles), int(self._inches[0] / 1.4))),
                handlelength=1.1,
                handleheight=1.0,
                columnspacing=1.6,
                borderaxespad=0.0,
            )
        return self.svg()

    def svg(self) -> str:
        """The drawing as a part of a page."""
        out = io.StringIO()
        self.figure.savefig(out, format="svg", transparent=True, metadata={"Date": None})
        return inline(out.getvalue(), self.name)


def inline(svg: str, name: str) -> str:
    """An SVG file as a part of a page: no prologue, unique ids, colours of the page."""
    svg = svg[svg.index("<svg") :]
    svg = re.sub(r"<metadata>.*?</metadata>", "", svg, flags=re.DOTALL)
    svg = re.sub(r'\bid="', f'id="{name}-', svg)
    svg = re.sub(r"url\(#", f"url(#{name}-", svg)
    svg = re.sub(r'href="#', f'href="#{name}-', svg)
    # The page sets the size; the drawing keeps its proportions.
    svg = re.sub(r'^<svg[^>]*?viewBox="([^"]*)"[^>]*>', r'<svg viewBox="\1" role="img">', svg)
    svg = re.sub(r"font: ([0-9.]+)px [^;\"]*", r"font-size: \1px", svg)
    for placeholder, variable in _VARIABLES.items():
        svg = svg.replace(placeholder, variable)
    return svg


def _foremost(series: Mapping[str, Sequence[Point]]) -> dict[str, Sequence[Point]]:
    """The largest series, largest first, and the sum of the others."""
    ranked = sorted(series.items(), key=lambda item: (-sum(p.value for p in item[1]), item[0]))
    if len(ranked) <= SERIES:
        return dict(ranked)
    sums: dict[int, float] = {}
    for _, points in ranked[SERIES - 1 :]:
        for point in points:
            sums[point.at_ms] = sums.get(point.at_ms, 0.0) + point.value
    kept = dict(ranked[: SERIES - 1])
    kept[_OTHERS] = [Point(moment, sums[moment]) for moment in sorted(sums)]
    return kept


def _days(moments: Sequence[int]) -> list[float]:
    """Days since the epoch, the unit of time in matplotlib."""
    return [moment / _DAY_MS for moment in moments]


def ticks(from_ms: int, to_ms: int, inches: float) -> tuple[list[int], list[str]]:
    """The ticks of the time axis of a drawing so wide, and their labels in UTC."""
    length = to_ms - from_ms
    room = inches - _AXIS_INCHES

    def fits(step: int) -> bool:
        # Where a day begins, the date is the label.
        characters = max(len(_clock(from_ms // step * step + 1, step)), len("01-01"))
        label = characters * _CHARACTER_INCHES + _LABEL_GAP_INCHES
        return label <= room * step / length

    step = next(filter(fits, _TICK_STEPS_MS), length)
    moments = range(-(-from_ms // step) * step, to_ms + 1, step)
    return list(moments), [_clock(moment, step) for moment in moments]


def _clock(moment_ms: int, step_ms: int) -> str:
    moment = datetime.fromtimestamp(moment_ms / 1000, UTC)
    if step_ms >= _DAY_MS:
        return moment.strftime("%Y-%m-%d" if step_ms >= 60 * _DAY_MS else "%m-%d")
    if moment_ms % _DAY_MS == 0:
        return moment.strftime("%m-%d")
    if step_ms >= 60_000:
        return moment.strftime("%H:%M")
    return moment.strftime("%H:%M:%S") + (f".{moment_ms % 1000 // 100}" if step_ms < 1000 else "")


def _stretch(set_scale: Callable[..., None], values: Sequence[float]) -> str:
    """Use a logarithmic scale if one of the values dwarfs the others; return a note about it."""
    known = sorted(value for value in values if value > 0)
    if not known or known[-1] < _STRETCHED_FROM * max(1.0, known[(len(known) - 1) // 2]):
        return ""
    # Logarithmic above ten, and with a zero: a group without lag is the usual case.
    set_scale("symlog", linthresh=10)
    return ", logarithmic"


def _unit(largest_ms: float) -> tuple[str, float]:
    if largest_ms >= 120_000:
        return "minutes", 60_000.0
    return ("seconds", 1000.0) if largest_ms >= 2000 else ("ms", 1.0)


def _labels(names: Iterable[str], characters: int = _LABEL_CHARACTERS) -> list[str]:
    return [_short(name, characters) for name in names]


def _short(text: str, characters: int) -> str:
    one_line = " ".join(text.split()) or "-"
    if one_line.startswith("_"):
        # matplotlib omits such names from a legend; an invisible space in front keeps them.
        one_line = "\u200b" + one_line
    if len(one_line) <= characters:
        return one_line
    return one_line[: characters - 1] + "…"


def require_matplotlib() -> Any:
    """matplotlib, or an error that says how to get it."""
    try:
        import matplotlib
    except ImportError as error:
        raise PenstockError(
            "a report needs matplotlib, which is not installed",
            hint="pip install 'penstock[report]'",
        ) from error
    return matplotlib
