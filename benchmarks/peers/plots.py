"""SVG plots of the results: medians, with a line from the lowest to the highest round."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Final

import matplotlib
from benchmarks.report import spread
from matplotlib.axes import Axes
from matplotlib.figure import Figure

OURS: Final = "#c2410c"
THEIRS: Final = "#94a3b8"
RATES: Final = ("send_single_128", "send_128", "send_1024", "consume_128")
PERCENTILES: Final = {"p50_ms": "p50", "p99_ms": "p99", "p999_ms": "p99.9"}
SERVER_FIGURES: Final = {
    "ready_seconds": ("s until ready", 1.0),
    "idle_resident_bytes": ("MB idle", 1e6),
    "loaded_resident_bytes": ("MB after the load", 1e6),
}
Bars = Mapping[str, Sequence[float]]
# Equal figures give equal bytes: no random ids, no date.
matplotlib.rcParams["svg.hashsalt"] = "penstock"


def draw(results: Mapping[str, Any], directory: Path) -> list[Path]:
    """Draw a plot for each available set of figures."""
    rows, written = results["rows"].get("async", {}), []
    rates = {row: picked(rows, row, "per_second") for row in RATES}
    if any(rates.values()):
        written.append(_panels(rates, "messages per second", directory / "peers-rates.svg"))
    latencies = {
        f"{row.partition('_')[2]}/s, {name}": picked(rows, row, what)
        for row in dict.fromkeys(name for found in rows.values() for name in found)
        if row.startswith("latency")
        for what, name in PERCENTILES.items()
    }
    if latencies:
        written.append(_panels(latencies, "ms", directory / "peers-latency.svg"))
    if results["servers"]:
        panels = {
            title: {
                name: [value / unit for value in found[figure]]
                for name, found in results["servers"].items()
                if figure in found
            }
            for figure, (title, unit) in SERVER_FIGURES.items()
        }
        written.append(_panels(panels, "", directory / "peers-servers.svg"))
    spark = spark_panels(results.get("spark", {}).get("rows", {}))
    if spark:
        written.append(_panels(spark, "", directory / "peers-spark.svg"))
    for name, points in results["growth"].items():
        if points:
            written.append(_curve(name, points, directory / f"growth-{name}.svg"))
    return written


def spark_panels(rows: Mapping[str, Any]) -> dict[str, Bars]:
    """Rates of three rows, and the micro-batch time of the fourth."""
    return {
        f"Spark, {row}: {title}": {
            side: found[what] for side, found in sides.items() if what in found
        }
        for row, sides in rows.items()
        for what, title in (("per_second", "rows a second"), ("batch_ms", "ms a micro-batch"))
        if any(what in found for found in sides.values())
    }


def picked(rows: Mapping[str, Any], row: str, what: str) -> dict[str, list[float]]:
    """One figure of one row, for all clients that have it."""
    return {who: found[row][what] for who, found in rows.items() if what in found.get(row, {})}


def _panels(panels: Mapping[str, Bars], unit: str, path: Path) -> Path:
    panels = {title: bars for title, bars in panels.items() if bars}
    longest = max(map(len, panels.values()))
    figure = Figure(figsize=(8, len(panels) * (0.8 + 0.3 * longest)), layout="constrained")
    for place, (title, bars) in enumerate(panels.items(), 1):
        axes = figure.add_subplot(len(panels), 1, place)
        axes.set_title(title.replace("_", " "), loc="left")
        axes.set_xlabel(unit)
        _bars(axes, bars)
    return _save(figure, path)


def _bars(axes: Axes, bars: Bars) -> None:
    found = {who: spread(values) for who, values in bars.items()}
    ordered = sorted(found, key=lambda who: found[who]["median"])
    medians = [found[who]["median"] for who in ordered]
    below = [found[who]["median"] - found[who]["low"] for who in ordered]
    above = [found[who]["high"] - found[who]["median"] for who in ordered]
    colors = [OURS if who.startswith("penstock") else THEIRS for who in ordered]
    axes.xaxis.set_major_formatter("{x:,.10g}")
    axes.barh(ordered, medians, xerr=[below, above], color=colors, capsize=3)
    axes.spines[["top", "right"]].set_visible(False)


def _curve(name: str, points: Sequence[Mapping[str, float]], path: Path) -> Path:
    """The rates of a curve with their spread; where it has none, its times."""
    figure = Figure(figsize=(8, 4), layout="constrained")
    axes = figure.add_subplot(1, 1, 1)
    at = [point[name] for point in points]
    ending = next(
        end for end in ("_per_second", "_ms", "_microseconds") if any(_ends(points[0], end))
    )
    for what in _ends(points[0], ending):
        label = what.removesuffix(ending)
        axes.plot(at, [point[what] for point in points], marker="o", label=label)
        if f"{what}_low" in points[0]:
            low = [point[f"{what}_low"] for point in points]
            axes.fill_between(at, low, [point[f"{what}_high"] for point in points], alpha=0.2)
    axes.set_xscale("log")
    axes.set_ylim(bottom=0)
    axes.yaxis.set_major_formatter("{x:,.10g}")
    axes.set_xlabel(name.replace("_", " "))
    axes.set_ylabel(ending.strip("_").replace("_", " "))
    axes.legend()
    axes.spines[["top", "right"]].set_visible(False)
    return _save(figure, path)


def _ends(point: Mapping[str, float], ending: str) -> list[str]:
    return [what for what in point if what.endswith(ending)]


def _save(figure: Figure, path: Path) -> Path:
    figure.savefig(path, metadata={"Date": None})
    return path
