"""Tables, JSON, questions and bars: what goes to stdout, what to stderr, and what is left out."""

from __future__ import annotations

import io
import json
import os
import pty
import subprocess
import sys

import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock.cli import output
from penstock.cli.output import Column, Table
from penstock.errors import InvalidArgument

COLUMNS = (
    Column("name"),
    Column("count", "how many", align="right"),
    Column("time_ms", "time", format=output.local_time),
)
ROWS: list[dict[str, object]] = [
    {"name": "a", "count": 7, "time_ms": None, "hidden": [1, 2]},
    {"name": "longer", "count": 1234567, "time_ms": 0, "hidden": []},
]


def test_a_table_has_a_heading_and_a_line_for_each_row(capsys: pytest.CaptureFixture[str]) -> None:
    output.show(Table(COLUMNS, ROWS), as_json=False)
    said = capsys.readouterr()
    lines = said.out.splitlines()
    assert [line.split() for line in lines] == [
        ["name", "how", "many", "time"],
        ["a", "7", "-"],
        ["longer", "1234567", "-"],
    ]
    # Numbers end in the same column.
    assert lines[1].index("7") == lines[2].index("1234567") + len("1234567") - 1
    assert said.err == ""


def test_the_json_of_a_table_has_the_values_as_they_are(capsys: pytest.CaptureFixture[str]) -> None:
    output.show(Table(COLUMNS, ROWS, title="Title", note="Note"), as_json=True)
    said = capsys.readouterr()
    assert json.loads(said.out) == ROWS
    assert len(said.out.splitlines()) == 1
    assert said.err == ""


def test_an_empty_table_says_so_beside_the_result(capsys: pytest.CaptureFixture[str]) -> None:
    output.show(Table(COLUMNS, [], empty="It is empty."), as_json=False)
    said = capsys.readouterr()
    assert (said.out, said.err) == ("", "It is empty.\n")
    output.show(Table(COLUMNS, [], empty="It is empty."), as_json=True)
    said = capsys.readouterr()
    assert (said.out, said.err) == ("[]\n", "")


def test_nothing_is_folded_or_cut_in_a_pipe(capsys: pytest.CaptureFixture[str]) -> None:
    name = "word " * 200
    output.show(
        Table([Column("name"), Column("count")], [{"name": name, "count": 1}]), as_json=False
    )
    assert name in capsys.readouterr().out


def test_what_others_wrote_cannot_steer_the_terminal(capsys: pytest.CaptureFixture[str]) -> None:
    output.show(Table([Column("name")], [{"name": "\x1b[2Jgone\x07[red]\r"}]), as_json=False)
    shown = capsys.readouterr().out
    assert "\\x1b[2Jgone\\x07[red]\\r" in shown
    assert "\x1b" not in shown


@given(st.text())
def test_plain_text_is_printable_and_keeps_what_was(text: str) -> None:
    shown = output.plain(text)
    assert all(char.isprintable() or char == "\n" for char in shown)
    if text.isprintable():
        assert shown == text


@given(st.integers())
def test_any_number_can_be_shown_as_a_time(milliseconds: int) -> None:
    assert output.local_time(milliseconds)


def test_values_read_as_people_write_them() -> None:
    assert output.cell(True) == "yes"
    assert output.cell(["a", "b"]) == "a, b"
    assert output.cell([]) == "-"
    assert output.cell(None) == "-"
    assert output.cell(1.25) == "1.2"
    assert output.counted(1, "queue") == "1 queue"
    assert output.counted(0, "queue") == "0 queues"


def test_one_thing_is_a_line_for_each_value(capsys: pytest.CaptureFixture[str]) -> None:
    output.show_one(COLUMNS, ROWS[0], as_json=False, title="Thing")
    assert capsys.readouterr().out.splitlines() == [
        "Thing",
        "name      a",
        "how many  7",
        "time      -",
    ]
    output.show_one(COLUMNS, ROWS[0], as_json=True)
    assert json.loads(capsys.readouterr().out) == ROWS[0]


def test_a_question_without_a_terminal_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "stdin", io.StringIO("y\n"))
    with pytest.raises(InvalidArgument, match="nothing was changed; try: add --yes"):
        output.confirm("Delete it all?", yes=False)
    output.confirm("Delete it all?", yes=True)


ASK = "from penstock.cli import output; output.confirm('Sure?', yes=False); print('went on')"


@pytest.mark.parametrize(("answer", "went_on"), [("y", True), ("n", False), ("", False)])
def test_a_question_is_asked_on_a_terminal(answer: str, went_on: bool) -> None:
    master, terminal = pty.openpty()
    asked = subprocess.Popen(
        [sys.executable, "-c", ASK],
        stdin=terminal,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    try:
        os.write(master, f"{answer}\n".encode())
        out, err = asked.communicate(timeout=60)
    finally:
        os.close(terminal)
        os.close(master)
    assert ("went on" in out) is went_on
    assert "Sure?" in err
    assert "Sure?" not in out
    if not went_on:
        assert "Nothing was changed." in err


def test_a_bar_is_drawn_where_it_can_be_seen(capsys: pytest.CaptureFixture[str]) -> None:
    with output.progress(3, "counting") as bar:
        bar.total(4)
        for _ in range(4):
            bar.advance()
    assert bar.done == 4
    assert capsys.readouterr() == ("", "")
    drawn = _on_a_terminal(
        "from penstock.cli import output\n"
        "with output.progress(None, 'counting', after=0) as bar:\n"
        "    bar.total(10)\n"
        "    bar.advance(3)\n"
    )
    assert "counting" in drawn
    assert "3/10" in drawn
    quiet = _on_a_terminal(
        "from penstock.cli import output\n"
        "with output.progress(10, 'counting', quiet=True, after=0) as bar:\n"
        "    bar.advance(3)\n"
    )
    assert quiet == ""


def test_what_is_done_in_a_moment_has_no_bar() -> None:
    drawn = _on_a_terminal(
        "import sys\n"
        "from penstock.cli import output\n"
        "with output.progress(10, 'counting', after=3600) as bar:\n"
        "    bar.advance(3)\n"
        "assert 'rich' not in sys.modules\n"
    )
    assert drawn == ""


WIDE = """
from penstock.cli.output import Column, Table, show
columns = [Column("topic"), Column("messages", align="right"), Column("last", "last message")]
rows = [{"topic": "orders", "messages": 7, "last": "yesterday"},
        {"topic": "letters", "messages": 12, "last": "today"}]
show(Table(columns, rows), as_json=False)
"""


def test_a_terminal_too_narrow_for_the_columns_shows_every_value() -> None:
    wide = _on_a_terminal(WIDE, columns=40, stdout=True).replace("\r", "").splitlines()
    assert len(wide) == 3
    assert wide[1].split() == ["orders", "7", "yesterday"]
    assert "\x1b[1m" in wide[0]
    narrow = _on_a_terminal(WIDE, columns=24, stdout=True).replace("\r", "").splitlines()
    assert [line.rstrip() for line in narrow] == [
        "topic         orders",
        "messages      7",
        "last message  yesterday",
        "",
        "topic         letters",
        "messages      12",
        "last message  today",
    ]


def test_a_narrow_terminal_shows_every_value_in_any_script() -> None:
    code = WIDE.replace("yesterday", "\u6628\u65e5 \u2603").replace("letters", "lettres, \u00e9")
    narrow = _on_a_terminal(code, columns=24, stdout=True).replace("\r", "").splitlines()
    assert [line.rstrip() for line in narrow] == [
        "topic         orders",
        "messages      7",
        "last message  \u6628\u65e5 \u2603",
        "",
        "topic         lettres, \u00e9",
        "messages      12",
        "last message  today",
    ]


LETTERS = """
import os
from penstock.cli.dead_letter_rows import LETTER_COLUMNS
from penstock.cli.output import Table, show
row = {column.name: "text of some length" for column in LETTER_COLUMNS}
row |= {"store_timestamp": 1763300000000, "msg_id": "7F0000017946E973D42C526E62870000"}
for width in range(20, 220, 8):
    os.environ["COLUMNS"] = str(width)
    show(Table(LETTER_COLUMNS, [row | {"attempts": 16}]), as_json=False)
"""


def test_an_id_is_whole_at_any_width() -> None:
    shown = _on_a_terminal(LETTERS, columns=80, stdout=True)
    assert shown.count("7F0000017946E973D42C526E62870000") == len(range(20, 220, 8))


def _on_a_terminal(code: str, *, columns: int = 80, stdout: bool = False) -> str:
    """Run code with stderr, or also stdout, on a terminal; what it showed there."""
    master, terminal = pty.openpty()
    environment = {**os.environ, "TERM": "xterm", "COLUMNS": str(columns)}
    ran = subprocess.Popen(
        [sys.executable, "-c", code],
        stdout=terminal if stdout else None,
        stderr=terminal,
        stdin=subprocess.DEVNULL,
        env=environment,
    )
    os.close(terminal)
    shown = b""
    try:
        while part := os.read(master, 4096):
            shown += part
    except OSError:
        # Linux ends a terminal whose other side is closed with an error.
        pass
    finally:
        os.close(master)
    assert ran.wait(60) == 0
    return shown.decode()
