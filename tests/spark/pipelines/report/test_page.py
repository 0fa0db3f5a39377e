"""The report's page: numbers in, HTML out, without a broker and without Spark."""

from __future__ import annotations

import itertools
import re
from html.parser import HTMLParser

import pytest

from penstock.spark.pipelines.report import figures
from penstock.spark.pipelines.report.data import (
    GroupFigures,
    Point,
    ReasonCount,
    ReportData,
    Spread,
    TopicFigures,
)
from penstock.spark.pipelines.report.gathering import BUCKETS, Window
from penstock.spark.pipelines.report.page import render

T0 = 1_794_800_000_000
NASTY = "<script>alert(1)</script> costs $5 and $6 & 'more' __\x07"
VOID = {"meta", "br", "path", "use", "rect"}


class Page(HTMLParser):
    """What a browser would see, as far as tests ask."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.tags: list[str] = []
        self.ids: list[str] = []
        self.addresses: list[str] = []
        self.text = ""
        self._open: list[str] = []
        self.feed(text)
        self.close()
        assert self._open == []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append(tag)
        for name, value in attrs:
            if name == "id":
                self.ids.append(value or "")
            if name in ("src", "href", "xlink:href"):
                self.addresses.append(value or "")
        if tag not in VOID:
            self._open.append(tag)

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.handle_starttag(tag, attrs)
        if tag not in VOID:
            self._open.pop()

    def handle_endtag(self, tag: str) -> None:
        if tag not in VOID:
            assert self._open.pop() == tag

    def handle_data(self, data: str) -> None:
        if self._open and self._open[-1] != "style":
            self.text += data


def line(*values: float) -> list[Point]:
    return [Point(T0 + 1000 * number, value) for number, value in enumerate(values)]


def full(**changes: object) -> ReportData:
    fields: dict[str, object] = {
        "title": f"Report {NASTY}",
        "cluster": "127.0.0.1:9876",
        "from_ms": T0,
        "to_ms": T0 + 90_000,
        "made_ms": T0 + 91_000,
        "bucket_ms": 1000,
        "topics": [TopicFigures("orders", 12_345, 5 << 20, 1.5, 9.0)],
        "groups": [
            GroupFigures("billing", 7, 2, 30, 4, 61_000, 12.0, 480.0, 250.0, 3),
            GroupFigures("shipping", 0, 1, 0, 0, None),
        ],
        "throughput": {"orders": line(10, 500, 20), NASTY: line(1, 2, 3)},
        "lag": {"billing": line(5, 9, 7)},
        "end_to_end": [Spread(T0, 10.0, 250.0, 400.0), Spread(T0 + 1000, 9.0, 90.0, 100.0)],
        "retries": {"billing": line(3, 0, 4), "_hidden": line(1, 1, 1)},
        "attempts": {1: 20, 2: 10},
        "dead_letters": [ReasonCount("billing", NASTY, 3), ReasonCount("billing", "Boom", 1)],
    }
    return ReportData(**{**fields, **changes})  # type: ignore[arg-type]


@pytest.fixture(scope="module")
def whole() -> str:
    """A page with everything on it, drawn once."""
    return render(full())


def test_the_page_stands_alone_and_runs_nothing(whole: str) -> None:
    page = Page(whole)
    assert "script" not in page.tags
    assert "link" not in page.tags
    assert all(address.startswith("#") for address in page.addresses)
    # Only the names of XML itself may look like addresses.
    urls = set(re.findall(r"https?://[^\s\"'<)]+", whole))
    assert {url for url in urls if "w3.org" not in url} == set()
    assert page.tags.count("svg") == 2 * 5, "each for large screens and for phones"


def test_every_id_is_there_once_and_every_reference_leads_somewhere(whole: str) -> None:
    text, page = whole, Page(whole)
    assert len(page.ids) == len(set(page.ids))
    for name in [*re.findall(r"url\(#([^)]+)\)", text), *(a[1:] for a in page.addresses)]:
        assert name in page.ids


def test_what_others_wrote_is_shown_and_not_obeyed(whole: str) -> None:
    text = whole
    assert "<script" not in text
    assert "<script>alert(1)</script> costs $5 and $6 & 'more'" in Page(text).text


def test_the_header_has_the_key_figures(whole: str) -> None:
    text = Page(whole).text
    for figure in ("12.3 k", "502/s", "250 ms", "7", "30", "4", "1 min 30 s", "3 redriven"):
        assert figure in text
    assert "1 topic" in text
    assert "1 topics" not in text


def test_a_group_that_starts_late_is_named_and_not_the_headline() -> None:
    groups = [
        GroupFigures("billing", 0, 1, 0, 0, None, 5.0, 40.0, 20.0),
        GroupFigures("fraud-check", 0, 1, 0, 0, None, 60_000.0, 80_000.0, 76_000.0),
        GroupFigures("shipping", 0, 1, 0, 0, None, 6.0, 50.0, 30.0),
        GroupFigures("unwatched", 0, 0, 0, 0, None),
    ]
    card = "<dd>30 ms</dd><small>birth to commit, the middle of 3 groups"
    assert f"{card}; slowest: fraud-check, 1 min 16 s" in render(empty(groups=groups))


def test_plots_follow_the_page_into_the_dark(whole: str) -> None:
    text = whole
    assert "prefers-color-scheme: dark" in text
    drawn = text[text.index("<svg") :]
    assert set(re.findall(r"#0[0-9a-f]{5}\b", drawn)) == set()
    for variable in ("var(--ink)", "var(--grid)", "var(--s1)"):
        assert variable in drawn


def empty(**changes: object) -> ReportData:
    nothing: dict[str, object] = {name: () for name in ("topics", "groups", "dead_letters")}
    nothing |= {name: {} for name in ("throughput", "lag", "retries", "attempts")}
    return full(**nothing | {"end_to_end": ()} | changes)


def test_an_empty_cluster_still_gives_a_page() -> None:
    page = Page(render(empty()))
    assert "svg" not in page.tags
    for said in ("No message was stored", "No consumer group", "No message was given up"):
        assert said in page.text


def test_without_a_watch_the_page_says_what_is_not_known() -> None:
    unwatched = [GroupFigures("billing", 7, 2, 30, 4, 61_000)]
    data = full(groups=unwatched, lag={}, end_to_end=(), store_latency=[Spread(T0, 1, 2, 3)])
    text = Page(render(data)).text
    assert "The groups were not watched" in text
    assert "when this page was made" in text
    assert "birth to store" in text


def test_a_latency_of_nothing_has_an_axis_of_a_millisecond_and_whole_dots() -> None:
    window = (T0, T0 + 1000)
    picture = figures.latency([Spread(T0, 0.0, 0.0, 0.0)], "latency", window)
    marks = [float(text) for text in re.findall(r">([0-9.]+)</text>", picture)]
    assert max(marks) == 1.0
    assert picture.count("<g clip-path") == 1, "the band is clipped, the dots are not"


def test_many_series_are_added_up_and_none_is_left_out() -> None:
    svg = figures.throughput(
        {f"topic-{n}": line(n, n) for n in range(1, 20)}, 1000, (T0, T0 + 5000)
    )
    assert "others" in svg
    assert svg.count("topic-") == figures.SERIES - 1


@pytest.mark.parametrize(
    ("milliseconds", "said"),
    [(0.4, "0.4 ms"), (999, "999 ms"), (1500, "1.5 s"), (60_000, "1 min"), (61_000, "1 min 1 s"),
     (3_600_000, "1 h"), (7_260_000, "2 h 1 min"), (90_000_000, "1 d 1 h"), (59_999, "1 min")],
)  # fmt: skip
def test_durations_read_well(milliseconds: float, said: str) -> None:
    assert said in Page(render(empty(topics=[TopicFigures("t", 0, 0, milliseconds, None)]))).text


@pytest.mark.parametrize("length", [1000, 59_000, 3_600_000, 86_400_000, 400 * 86_400_000])
def test_a_window_has_about_a_hundred_buckets_and_loses_none(length: int) -> None:
    window = Window.of(T0, T0 + length)
    assert 1 <= length / window.bucket_ms <= BUCKETS
    points = window.filled({T0 // window.bucket_ms * window.bucket_ms: 5.0})
    assert points[0].value == 5.0
    assert points[-1].at_ms < T0 + length <= points[-1].at_ms + window.bucket_ms


@pytest.mark.parametrize("length", [1000, 90_000, 3_600_000, 86_400_000, 900 * 86_400_000])
@pytest.mark.parametrize("inches", [11.6, 5.6, 4.3])
def test_an_axis_of_time_has_some_named_moments(length: int, inches: float) -> None:
    places, texts = figures.ticks(T0, T0 + length, inches)
    assert 2 <= len(places) <= 12
    assert len(set(texts)) == len(texts)
    assert all(T0 <= place <= T0 + length for place in places)


X_LABEL = re.compile(
    r"translate\(([\d.]+) [\d.]+\)[^>]*>\s*(?:<!--.*?-->\s*)?<text[^>]*>(\d\d:\d\d:\d\d|\d\d-\d\d)<"
    r"|<text[^>]*?x=\"([\d.]+)\"[^>]*>(\d\d:\d\d(?::\d\d(?:\.\d)?)?|\d\d-\d\d)</text>"
)


@pytest.mark.parametrize("size", [figures.LARGE, figures.SMALL], ids=["large", "small"])
@pytest.mark.parametrize("length", [2000, 90_000, 3_600_000, 86_400_000])
def test_the_labels_of_a_time_axis_do_not_run_together(size: figures.Size, length: int) -> None:
    for draw in (
        figures.lag({"g": line(1, 2)}, (T0, T0 + length), size),
        figures.throughput({"t": line(1, 2)}, 1000, (T0, T0 + length), size),
    ):
        found = [(float(m[1] or m[3]), m[2] or m[4]) for m in X_LABEL.finditer(draw)]
        assert len(found) >= 2
        # A character takes at most six tenths of the size of the font, which is ten.
        for (left, text), (right, following) in itertools.pairwise(sorted(found)):
            assert right - left > 6 * (len(text) + len(following)) / 2


def test_one_slow_group_does_not_flatten_the_others() -> None:
    window = (T0, T0 + 5000)
    usual = {"a": line(3, 5, 9), "b": line(7, 1, 12)}
    assert "logarithmic" not in figures.lag(usual, window)
    assert "logarithmic" in figures.lag({**usual, "slow": line(90_000, 1e5)}, window)
    assert "logarithmic" not in figures.lag_now({"a": 10, "b": 20})
    assert "logarithmic" in figures.lag_now({"a": 10, "b": 20, "slow": 100_000})
    assert "logarithmic" in figures.latency([Spread(T0, 5.0, 9.0, 90_000.0)], "x", window)


def test_percentiles_differ_in_more_than_their_colour() -> None:
    spreads = [Spread(T0, 1.0, 2.0, 3.0), Spread(T0 + 1000, 1.0, 2.0, 3.0),
               Spread(T0 + 2000, 1.0, 2.0, 3.0)]  # fmt: skip
    picture = figures.latency(spreads, "latency", (T0, T0 + 3000))
    assert len(set(re.findall(r"stroke-dasharray: ([\d. ,]+)", picture))) == 2
    assert len(set(re.findall(r"stroke: (var\(--s\d\))", picture))) == 3


def test_a_phone_gets_small_plots_and_tables_of_lines(whole: str) -> None:
    narrow = whole[whole.index("@media (max-width: 36rem)") : whole.index("@media print")]
    assert ".large { display: none; }" in narrow
    assert "min-width: 30rem" not in whole
    assert whole.count('<div class="large"><svg') == whole.count('<div class="small"><svg') == 5
    widths = [float(w) for w in re.findall(r'class="small"><svg viewBox="0 0 ([\d.]+)', whole)]
    # At 390 pixels a drawing has about 330: its text is at least as large as it was drawn.
    assert max(widths) <= 330
    assert "content: attr(data-head)" in narrow
    assert '<td class=n data-head="members">' in whole
