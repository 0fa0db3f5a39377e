"""A report as one HTML page: no scripts, no fonts, no pictures to fetch; light and dark."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from datetime import UTC, datetime
from html import escape

from penstock.spark.pipelines.report import figures
from penstock.spark.pipelines.report.data import GroupFigures, ReportData
from penstock.spark.pipelines.report.style import STYLE

_NOT_KNOWN = "–"  # noqa: RUF001 - a dash, as tables have it
_REASONS_LISTED = 50


def render(data: ReportData) -> str:
    """The whole page."""
    return "".join(
        (
            '<!DOCTYPE html>\n<html lang="en">\n<head>\n<meta charset="utf-8">\n',
            '<meta name="viewport" content="width=device-width, initial-scale=1">\n',
            '<meta name="color-scheme" content="light dark">\n',
            f"<title>{escape(data.title)}</title>\n<style>{STYLE}</style>\n</head>\n<body>\n",
            _header(data),
            "<main>\n",
            _throughput(data),
            _lag(data),
            _latency(data),
            _retries(data),
            _dead_letters(data),
            _groups(data),
            _topics(data),
            "</main>\n",
            _footer(data),
            "</body>\n</html>\n",
        )
    )


# ------------------------------------------------------------------------------------ the sections


def _header(data: ReportData) -> str:
    latency, latency_of = _typical_latency(data)
    total_lag = sum(group.lag for group in data.groups)
    retried = sum(group.retries for group in data.groups)
    dead = sum(group.dead for group in data.groups)
    redriven = sum(group.redriven for group in data.groups)
    given_up = _share(dead, data.messages) + (
        f", {_compact(redriven)} redriven" if redriven else ""
    )
    cards = (
        ("messages", _compact(data.messages), _counted(len(data.topics), "topic"), ""),
        ("peak rate", f"{_compact(data.peak_rate)}/s", f"in {_duration(data.bucket_ms)}", ""),
        (
            "latency, 95 %",
            _NOT_KNOWN if latency is None else _duration(latency),
            latency_of,
            "",
        ),
        (
            "lag",
            _compact(total_lag),
            _counted(len(data.groups), "group"),
            "warn" if total_lag else "good",
        ),
        ("retries", _compact(retried), _share(retried, data.messages), "warn" if retried else ""),
        ("dead letters", _compact(dead), given_up, "bad" if dead > redriven else "good"),
    )
    shown = "".join(
        f'<div class="card {kind}"><dt>{escape(name)}</dt><dd>{escape(value)}</dd>'
        f"<small>{escape(detail)}</small></div>"
        for name, value, detail, kind in cards
    )
    return (
        f"<header>\n<h1>{escape(data.title)}</h1>\n"
        f"<p>{escape(data.cluster)} · {_moment(data.from_ms)} to {_moment(data.to_ms)} UTC "
        f"({_duration(data.to_ms - data.from_ms)})</p>\n<dl>{shown}</dl>\n</header>\n"
    )


def _typical_latency(data: ReportData) -> tuple[float | None, str]:
    """The latency for the headline, and its description.

    It is the median group's: one group that started late has a high latency, and is only named.
    """
    by_group = sorted(
        (group.p95_ms, group.group) for group in data.groups if group.p95_ms is not None
    )
    if not by_group:
        slowest = max((spread.p95 for spread in data.store_latency), default=None)
        return slowest, "birth to store"
    middle, _ = by_group[(len(by_group) - 1) // 2]
    if len(by_group) == 1:
        return middle, f"birth to commit, {by_group[0][1]}"
    worst, slowest_group = by_group[-1]
    return middle, (
        f"birth to commit, the middle of {len(by_group)} groups; "
        f"slowest: {slowest_group}, {_duration(worst)}"
    )


def _throughput(data: ReportData) -> str:
    return _section(
        "Throughput",
        f"Messages stored a second, by topic, in buckets of {_duration(data.bucket_ms)}.",
        _drawn(figures.throughput, data.throughput, data.bucket_ms, _window(data))
        if data.messages
        else "",
        "No message was stored in this time.",
        wide=True,
    )


def _lag(data: ReportData) -> str:
    if data.lag:
        return _section(
            "Lag", "Messages a group has not consumed yet, while it was watched.",
            _drawn(figures.lag, data.lag, _window(data)),
        )  # fmt: skip
    behind = {group.group: group.lag for group in data.groups}
    return _section(
        "Lag",
        "Messages a group has not consumed yet, when this page was made.",
        _drawn(figures.lag_now, behind) if behind else "",
        "No consumer group is known.",
    )


def _latency(data: ReportData) -> str:
    if data.end_to_end:
        return _section(
            "End-to-end latency",
            "From the birth of a message at its producer until its group had committed it.",
            _drawn(figures.latency, data.end_to_end, "end-to-end", _window(data)),
        )
    return _section(
        "Latency",
        "From the birth of a message at its producer until it was stored. The groups were not "
        "watched, so the time until they consumed it is not known.",
        _drawn(figures.latency, data.store_latency, "store-latency", _window(data))
        if data.store_latency
        else "",
        "No message was stored in this time.",
    )


def _retries(data: ReportData) -> str:
    attempts = ", ".join(
        f"{count:,} × attempt {attempt + 1}"  # noqa: RUF001 - a multiplication sign is meant
        for attempt, count in sorted(data.attempts.items())
    )
    return _section(
        "Retries",
        f"Failed messages delivered once more: {attempts}." if attempts else "",
        _drawn(figures.retries, data.retries, data.bucket_ms, _window(data))
        if data.attempts
        else "",
        "No message was retried in this time.",
    )


def _dead_letters(data: ReportData) -> str:
    rows = [
        (reason.group, reason.reason, f"{reason.count:,}")
        for reason in data.dead_letters[:_REASONS_LISTED]
    ]
    redriven = sum(group.redriven for group in data.groups)
    table = _table(("group", "reason", "dead letters"), rows, numbers=1) if rows else ""
    return _section(
        "Dead letters by reason",
        "Messages that groups gave up on in this time."
        + (f" Redriven in this time: {redriven:,}." if redriven else ""),
        _drawn(figures.dead_letters, data.dead_letters) + _details("by group", table)
        if rows
        else "",
        "No message was given up.",
    )


def _groups(data: ReportData) -> str:
    def row(group: GroupFigures) -> tuple[str, ...]:
        return (
            group.group,
            f"{group.members:,}",
            f"{group.lag:,}",
            _NOT_KNOWN if group.behind_ms is None else _duration(group.behind_ms),
            _NOT_KNOWN if group.p50_ms is None else _duration(group.p50_ms),
            _NOT_KNOWN if group.p99_ms is None else _duration(group.p99_ms),
            f"{group.retries:,}",
            f"{group.dead:,}",
            f"{group.redriven:,}",
        )

    heads = ("group", "members", "lag", "oldest waiting", "median", "99 %", "retries", "dead",
             "redriven")  # fmt: skip
    return _section(
        "Consumer groups",
        "Median and 99 % are from birth to commit, known for groups that were watched.",
        _table(heads, map(row, data.groups), numbers=8) if data.groups else "",
        "No consumer group is known.",
        wide=True,
    )


def _topics(data: ReportData) -> str:
    rows = [
        (
            topic.topic,
            f"{topic.messages:,}",
            _bytes(topic.bytes),
            _NOT_KNOWN if topic.p50_ms is None else _duration(topic.p50_ms),
            _NOT_KNOWN if topic.p99_ms is None else _duration(topic.p99_ms),
        )
        for topic in data.topics
    ]
    heads = ("topic", "messages", "bodies", "median to store", "99 % to store")
    return _section(
        "Topics",
        "What was stored in this time.",
        _table(heads, rows, numbers=4) if rows else "",
        "No topic is known.",
        wide=True,
    )


def _footer(data: ReportData) -> str:
    notes = "".join(f"<p>{escape(note)}</p>" for note in data.notes)
    return f"<footer>{notes}<p>Made by Penstock at {_moment(data.made_ms)} UTC.</p></footer>\n"


# ------------------------------------------------------------------------------------- the pieces


def _window(data: ReportData) -> figures.Window:
    """The range of every time axis: whole buckets, so that the first is not cut."""
    return data.from_ms // data.bucket_ms * data.bucket_ms, data.to_ms


def _drawn(draw: Callable[..., str], *values: object) -> str:
    """A plot, drawn once for large screens and once for phones; the style shows one of them."""
    return "".join(
        f'<div class="{kind}">{draw(*values, size)}</div>'
        for kind, size in (("large", figures.LARGE), ("small", figures.SMALL))
    )


def _section(
    title: str, subtitle: str, content: str, otherwise: str = "", *, wide: bool = False
) -> str:
    body = content or f'<p class="nothing">{escape(otherwise)}</p>'
    shown = f"<p>{escape(subtitle)}</p>" if subtitle else ""
    kind = ' class="wide"' if wide else ""
    return f"<section{kind}><h2>{escape(title)}</h2>{shown}{body}</section>\n"


def _details(summary: str, content: str) -> str:
    return f"<details><summary>{escape(summary)}</summary>{content}</details>"


def _table(heads: Sequence[str], rows: Iterable[Sequence[str]], *, numbers: int) -> str:
    first_number = len(heads) - numbers

    def line(cells: Sequence[str], tag: str) -> str:
        return "".join(
            # On a phone each cell is a line of its own, with its heading in front.
            f"<{tag}{' class=n' if index >= first_number else ''}"
            + (f' data-head="{escape(heads[index])}"' if tag == "td" else "")
            + f">{escape(cell)}</{tag}>"
            for index, cell in enumerate(cells)
        )

    body = "".join(f"<tr>{line(row, 'td')}</tr>" for row in rows)
    return (
        f'<div class="scroll"><table><thead><tr>{line(heads, "th")}</tr></thead>'
        f"<tbody>{body}</tbody></table></div>"
    )


def _counted(count: int, what: str) -> str:
    return f"{count:,} {what}" if count == 1 else f"{count:,} {what}s"


def _compact(value: float) -> str:
    for limit, unit in ((1e9, "G"), (1e6, "M"), (1e4, "k")):
        if value >= limit:
            return f"{value / (1000.0 if unit == 'k' else limit):.3g} {unit}"
    return f"{value:,.0f}" if value >= 100 or value == int(value) else f"{value:.3g}"


def _duration(milliseconds: float) -> str:
    """A duration with a suitable unit, two units above a minute."""
    seconds = milliseconds / 1000
    if milliseconds < 1000:
        return f"{milliseconds:.3g} ms"
    if seconds < 60:
        return f"{seconds:.3g} s"
    for unit, smaller, size, part in (
        ("min", "s", 60, 1),
        ("h", "min", 3600, 60),
        ("d", "h", 86400, 3600),
    ):
        if seconds < size * (24 if unit == "h" else 60) or unit == "d":
            whole, rest = divmod(round(seconds), size)
            return f"{whole} {unit} {rest // part} {smaller}" if rest // part else f"{whole} {unit}"
    raise AssertionError("days have no upper limit")


def _bytes(size: int) -> str:
    value = float(size)
    for unit in ("B", "KiB", "MiB", "GiB"):
        if value < 1024:
            return f"{value:.0f} {unit}" if unit == "B" else f"{value:.3g} {unit}"
        value /= 1024
    return f"{value:.3g} TiB"


def _share(part: int, whole: int) -> str:
    if not whole or not part:
        return "none" if not part else ""
    return f"{part / whole:.2%} of messages"


def _moment(milliseconds: int) -> str:
    return datetime.fromtimestamp(milliseconds / 1000, UTC).strftime("%Y-%m-%d %H:%M:%S")
