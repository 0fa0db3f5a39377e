"""Charts as SVG, drawn on the server. Colours come from the style sheet, text stays outside.

The picture is stretched to the width of the page, so it holds lines only; its labels are HTML.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass

from markupsafe import Markup

from penstock.console.history import Point
from penstock.console.templating import Times, number, rate

WIDTH, HEIGHT = 600.0, 120.0
MAX_POINTS = 300


@dataclass(frozen=True, slots=True)
class Series:
    """A named line."""

    name: str
    points: Sequence[Point]


def chart(series: Sequence[Series], times: Times, *, unit: str = "") -> Markup:
    """Lines over time with a scale from zero; a sentence while there are no two points."""
    points = [point for one in series for point in one.points]
    if max((len(one.points) for one in series), default=0) < 2:
        return Markup(
            '<p class="faint chart-wait">The chart begins now and fills as you watch.</p>'
        )
    first, last = min(p.at for p in points), max(time.time(), max(p.at for p in points))
    top = _top(max(p.value for p in points))
    lines = Markup("").join(
        Markup('<polyline class="line s{}" points="{}"/>').format(
            index + 1, _coordinates(one.points, first, last, top)
        )
        for index, one in enumerate(series)
    )
    legend = Markup("").join(
        Markup('<li><span class="dot s{}"></span>{} <b>{}</b>{}</li>').format(
            index + 1,
            one.name,
            (rate if unit else number)(one.points[-1].value) if one.points else "?",
            unit,
        )
        for index, one in enumerate(series)
    )
    return Markup(
        '<div class="chart"><span class="top">{}</span>'
        '<svg viewBox="0 0 {} {}" preserveAspectRatio="none" aria-hidden="true" focusable="false">'
        '<path class="grid" d="M0 1H600M0 60H600M0 119H600"/>{}</svg>'
        '<div class="axis"><span>{}</span><ul>{}</ul><span>now</span></div></div>'
    ).format(number(top), int(WIDTH), int(HEIGHT), lines, times.clock(int(first * 1000)), legend)


def _coordinates(points: Sequence[Point], first: float, last: float, top: float) -> str:
    step = max(1, len(points) // MAX_POINTS)
    chosen = [*points[::step], *([points[-1]] if (len(points) - 1) % step else [])]
    span = max(last - first, 1e-9)
    return " ".join(
        f"{(p.at - first) / span * WIDTH:.1f},{HEIGHT - 1 - p.value / top * (HEIGHT - 4):.1f}"
        for p in chosen
    )


def _top(highest: float) -> float:
    """The next round number: 1, 2 or 5 times a power of ten."""
    step = 1.0
    while True:
        for factor in (1, 2, 5):
            if highest <= factor * step:
                return factor * step
        step *= 10


def bar(part: float) -> Markup:
    """A bar that is ``part`` full, 0 to 1."""
    return Markup(
        '<svg class="bar" viewBox="0 0 100 6" preserveAspectRatio="none" aria-hidden="true">'
        '<rect class="ground" width="100" height="6"/><rect class="fill" width="{}" height="6"/>'
        "</svg>"
    ).format(f"{min(max(part, 0), 1) * 100:.1f}")
