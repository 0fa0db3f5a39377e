"""Log lines and their limits."""

from __future__ import annotations

import io
import logging
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

from penstock.errors import ConfigError
from penstock.runtime.logs import set_up_logging


@pytest.fixture
def clean_logging() -> Iterator[None]:
    """Undo what a test sets up."""
    root, ours = logging.getLogger(), logging.getLogger("penstock")
    before = (root.level, ours.level, list(root.handlers))
    yield
    root.setLevel(before[0])
    ours.setLevel(before[1])
    for handler in [handler for handler in root.handlers if handler not in before[2]]:
        root.removeHandler(handler)
        handler.close()


@pytest.mark.usefixtures("clean_logging")
def test_a_line_is_moment_level_speaker_phrase_and_pairs() -> None:
    stream = io.StringIO()
    undo = set_up_logging(stream=stream)
    logging.getLogger("penstock.broker.broker").info("broker started name=%s", "broker-a")
    undo()
    assert re.fullmatch(
        r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\.\d{3}Z INFO penstock\.broker\.broker "
        r"broker started name=broker-a\n",
        stream.getvalue(),
    )


@pytest.mark.usefixtures("clean_logging")
def test_the_level_is_for_our_own_lines() -> None:
    stream = io.StringIO()
    undo = set_up_logging("debug", stream=stream)
    logging.getLogger("penstock.x").debug("ours")
    logging.getLogger("asyncio").info("theirs")
    logging.getLogger("asyncio").warning("theirs, important")
    undo()
    assert [line.split(" ", 3)[3] for line in stream.getvalue().splitlines()] == [
        "ours",
        "theirs, important",
    ]


@pytest.mark.usefixtures("clean_logging")
def test_a_peer_cannot_write_lines_of_its_own() -> None:
    stream = io.StringIO()
    undo = set_up_logging(stream=stream)
    logging.getLogger("penstock.x").info("topic=%s", "a\r\n2024 ERROR forged")
    undo()
    assert len(stream.getvalue().splitlines()) == 1
    assert "a\\r\\n2024 ERROR forged" in stream.getvalue()


@pytest.mark.usefixtures("clean_logging")
def test_a_traceback_follows_its_line() -> None:
    stream = io.StringIO()
    undo = set_up_logging(stream=stream)
    try:
        raise KeyError("lost")
    except KeyError:
        logging.getLogger("penstock.x").exception("request failed code=%d", 10)
    undo()
    lines = stream.getvalue().splitlines()
    assert lines[0].endswith("request failed code=10")
    assert lines[-1] == "KeyError: 'lost'"


@pytest.mark.usefixtures("clean_logging")
def test_a_file_gets_the_lines_too(tmp_path: Path) -> None:
    file = tmp_path / "logs" / "penstock.log"
    undo = set_up_logging(stream=io.StringIO(), file=file)
    logging.getLogger("penstock.x").info("grüße")
    undo()
    assert "grüße" in file.read_text(encoding="utf-8")


@pytest.mark.usefixtures("clean_logging")
def test_setting_up_twice_replaces_the_first() -> None:
    first, second = io.StringIO(), io.StringIO()
    set_up_logging(stream=first)
    undo = set_up_logging(stream=second)
    logging.getLogger("penstock.x").info("once")
    undo()
    assert first.getvalue() == ""
    assert len(second.getvalue().splitlines()) == 1


@pytest.mark.usefixtures("clean_logging")
def test_undoing_restores_the_levels() -> None:
    root = logging.getLogger()
    before = (root.level, logging.getLogger("penstock").level, list(root.handlers))
    set_up_logging("ERROR", stream=io.StringIO())()
    assert (root.level, logging.getLogger("penstock").level, list(root.handlers)) == before


@pytest.mark.usefixtures("clean_logging")
def test_wrong_settings_are_refused(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="log level is 'LOUD'; expected DEBUG"):
        set_up_logging("LOUD")
    (tmp_path / "file").write_text("")
    with pytest.raises(ConfigError, match=r"cannot be opened: .*--log-file"):
        set_up_logging(file=tmp_path / "file" / "x.log")
