"""Log lines as JSON."""

from __future__ import annotations

import io
import json
import logging
from collections.abc import Iterator
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock.runtime.json_logs import MAX_TEXT, JsonFormatter
from penstock.runtime.logs import set_up_logging

log = logging.getLogger("penstock.test_json_logs")


def line(message: str, *args: object, **more: Any) -> dict[str, Any]:
    """One record as a line, parsed."""
    record = log.makeRecord(log.name, logging.INFO, "file", 1, message, args, more.get("exc"))
    text = JsonFormatter().format(record)
    assert "\n" not in text
    found: dict[str, Any] = json.loads(text)
    return found


@pytest.fixture
def stream() -> Iterator[io.StringIO]:
    written = io.StringIO()
    undo = set_up_logging("INFO", stream=written, as_json=True)
    yield written
    undo()


@pytest.mark.spec("O14")
def test_a_line_is_an_object_with_typed_pairs(stream: io.StringIO) -> None:
    log.info("broker started name=%s port=%d ready=%s ratio=%.1f", "broker-a", 10911, True, 0.25)
    [text] = stream.getvalue().splitlines()
    found = json.loads(text)
    assert found.pop("time").endswith("Z")
    assert found == {
        "level": "INFO",
        "logger": "penstock.test_json_logs",
        "event": "broker started",
        "name": "broker-a",
        "port": 10911,
        "ready": True,
        "ratio": 0.25,
    }


@pytest.mark.spec("O14")
def test_values_within_the_phrase_stay_there() -> None:
    found = line("the store holds %s, kept topic=%s records=%d", "halves", "T", 3)
    assert found["event"] == "the store holds halves, kept"
    assert (found["topic"], found["records"]) == ("T", 3)
    assert line("100%% done")["event"] == "100% done"
    quoted = line("handler failed reason='%s' id=%s", "a = b", None)
    assert (quoted["event"], quoted["reason"], quoted["id"]) == ("handler failed", "a = b", None)


@pytest.mark.spec("O14")
@given(st.text(), st.text())
def test_hostile_text_makes_no_line_and_no_field(topic: str, phrase: str) -> None:
    found = line("message refused topic=%s", topic)
    assert set(found) == {"time", "level", "logger", "event", "topic"}
    assert found["event"] == "message refused"
    assert set(line(phrase.replace("%", ""))) == {"time", "level", "logger", "event"}


@pytest.mark.parametrize(
    ("message", "args"),
    [
        ("too few %s %s", ("one",)),
        ("too many %s", ("one", "two")),
        ("not a number %d", ("one",)),
        ("width %*d", (5, 3)),
        ("named %(a)s", ({"a": 1},)),
    ],
)
def test_a_record_that_does_not_fit_its_template_is_not_lost(
    message: str, args: tuple[object, ...]
) -> None:
    assert line(message, *args)["event"]


def test_fields_of_a_line_are_not_overwritten() -> None:
    found = line("it failed error=%s level=%s", "disk", 3)
    assert (found["level"], found["level_"], found["error_"]) == ("INFO", 3, "disk")


def test_an_exception_is_two_fields() -> None:
    try:
        raise ValueError("no\nway")
    except ValueError as error:
        found = line("part failed name=%s", "x", exc=(ValueError, error, error.__traceback__))
    assert found["error"] == "ValueError: no\nway"
    assert found["stack"].startswith("Traceback")


def test_long_values_are_cut_and_odd_ones_are_text() -> None:
    found = line("x a=%s b=%s c=%s d=%s", "y" * 5000, 1 << 70, float("nan"), "\ud800")
    assert len(found["a"]) < MAX_TEXT + 30
    assert (found["b"], found["c"], found["d"]) == (str(1 << 70), "nan", "\\ud800")


def test_the_span_of_a_record_is_kept() -> None:
    record = log.makeRecord(log.name, logging.INFO, "file", 1, "x", (), None)
    record.otelTraceID, record.otelSpanID = "4bf92f3577b34da6a3ce929d0e0e4736", "0"
    found = json.loads(JsonFormatter().format(record))
    assert found["trace_id"] == "4bf92f3577b34da6a3ce929d0e0e4736"
    assert "span_id" not in found
