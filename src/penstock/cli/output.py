"""How every command shows what it found: a table for people, JSON for programs, a bar, a question.

Results go to stdout, and nothing else does; bars, notes and questions go to stderr. So the output
of any command can be piped. A command builds a `Table` of plain values and hands it to `show`,
which prints it either way: the JSON has the values as they are, the table has them formatted.

rich is imported where something is drawn: what prints JSON, help or an error starts without it.
"""

from __future__ import annotations

import contextlib
import os
import shutil
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Literal

import click

from penstock.cli.commands import option
from penstock.errors import InvalidArgument

if TYPE_CHECKING:
    from rich.console import Console
    from rich.progress import Progress, TaskID

json_flag = option("--json", "as_json", is_flag=True, help="Print JSON instead of a table.")
names_flag = option("--names", "names_only", is_flag=True, help="Only names, one per line: faster.")
yes_flag = option("--yes", "-y", is_flag=True, help="Do not ask; needed in scripts.")

_NOT_KNOWN = "-"
# A pipe has no width: what goes into a file must not be folded to that of no terminal.
_WIDTH_OF_A_PIPE = 100_000
_MEBIBYTE = 1 << 20
_GAP = "  "
_NARROWEST_NAME = 12
# A bar for what is done in a moment only flickers, and rich takes a while to load.
_BAR_AFTER_SECONDS = 0.3
_NO_BOLD = frozenset({None, "", "dumb", "unknown"})


@dataclass(frozen=True, slots=True)
class Column:
    """One column: the key of its values in each row, its heading, and how a value is written."""

    name: str
    title: str | None = None
    align: Literal["left", "right"] = "left"
    format: Callable[[object], str] | None = None
    """Value to text; left out, `cell` does it. Not asked for None, which is shown as ``-``."""
    style: Callable[[object], str] | None = None
    """Value to a rich style such as ``"red"``; an empty text is none."""
    whole: bool = False
    """Never folded, because it is copied: an id."""

    @property
    def heading(self) -> str:
        return self.name.replace("_", " ") if self.title is None else self.title


@dataclass(frozen=True, slots=True)
class Table:
    """Rows of plain values, one for each column at least; more are shown in JSON only."""

    columns: Sequence[Column]
    rows: Sequence[Mapping[str, object]]
    title: str | None = None
    note: str | None = None
    """A sentence below the table, on stderr: what the reader may want to do next."""
    empty: str = "nothing to show"
    """Printed on stderr instead of a table without rows."""


@dataclass(slots=True)
class Bar:
    """Progress of a long operation; without a terminal `advance` costs next to nothing."""

    _draw: Callable[[], tuple[Progress, TaskID]] | None = None
    _draw_at: float = 0.0
    _drawn: tuple[Progress, TaskID] | None = None
    _total: int | None = None
    done: int = field(default=0)

    def advance(self, count: int = 1) -> None:
        """So many more are done."""
        self.done += count
        if self._draw is not None:
            self._show()

    def total(self, count: int) -> None:
        """Set the total when it becomes known."""
        self.update(self.done, count)

    def update(self, done: int, total: int) -> None:
        """Set both."""
        self.done, self._total = done, total
        if self._draw is not None:
            self._show()

    def _show(self) -> None:
        if self._drawn is None:
            if self._draw is None or time.monotonic() < self._draw_at:
                return
            self._drawn = self._draw()
        bar, task = self._drawn
        bar.update(task, completed=self.done, total=self._total)


# ------------------------------------------------------------------------------- tables and JSON


def show(table: Table, *, as_json: bool) -> None:
    """Print a table, or its rows as one JSON list."""
    if as_json:
        print_json(list(table.rows))
        return
    if table.rows:
        _draw(table)
    else:
        note(table.empty)
    if table.note:
        note(table.note)


def show_all(*tables: Table) -> None:
    """Print several tables of one thing, for people, with a line between them."""
    for number, table in enumerate(tables):
        if number and table.rows:
            say("")
        show(table, as_json=False)


def show_names(names: Sequence[str], *, as_json: bool) -> None:
    """Print names alone: one per line, or one JSON list."""
    if as_json:
        print_json(names)
        return
    for name in names:
        say(plain(name))


def show_summaries(
    names: Sequence[str],
    summary: Callable[[str], Mapping[str, object]],
    columns: Sequence[Column],
    *,
    empty: str,
    as_json: bool,
) -> None:
    """Print one row per name, with a progress bar while they are gathered."""
    rows = []
    with progress(len(names), "asking brokers", quiet=as_json) as bar:
        for name in names:
            rows.append(summary(name))
            bar.advance()
    show(Table(columns, rows, empty=empty), as_json=as_json)


def show_one(
    columns: Sequence[Column], values: dict[str, object], *, as_json: bool, title: str | None = None
) -> None:
    """Print one thing: a line for each of its values, or one JSON object."""
    if as_json:
        print_json(values)
        return
    width = max(len(column.heading) for column in columns)
    if title:
        say(title)
    for column in columns:
        say(f"{column.heading:<{width}}  {_text(column, values.get(column.name))}")


def show_facts(values: dict[str, object], *, as_json: bool) -> None:
    """Print one thing whose values are named well enough: a line for each, or a JSON object."""
    show_one([Column(name) for name in values], values, as_json=as_json)


def print_json(value: object) -> None:
    """One JSON document on stdout: indented for a person, a single line for a program."""
    import orjson

    indent = orjson.OPT_INDENT_2 if sys.stdout.isatty() else 0
    say(orjson.dumps(value, default=str, option=indent).decode())


def print_json_line(value: object) -> None:
    """One line of JSON lines, flushed at once for readers that follow."""
    import orjson

    say(orjson.dumps(value, default=str).decode())


def say(text: str) -> None:
    """A line of result on stdout."""
    click.echo(text)


def note(text: str) -> None:
    """A line on stderr: for people, not part of the result."""
    click.echo(text, err=True)


def _draw(table: Table) -> None:
    lines = _lines(table)
    if lines is None:
        _draw_with_rich(table)
    else:
        say("\n".join(lines))


def _lines(table: Table) -> list[str] | None:
    """A table that needs neither colours nor folding, as most do; None: rich is to draw it."""
    columns = table.columns
    rows = [[_text(column, row.get(column.name)) for column in columns] for row in table.rows]
    cells = [[column.heading for column in columns], *rows]
    title = [] if table.title is None else [plain(table.title)]
    is_simple = all(
        text.isascii() and "\n" not in text for texts in (*cells, title) for text in texts
    )
    # rich knows how wide other letters are, and takes a while to load.
    width_of = len if is_simple else _width
    widths = [max(map(width_of, texts)) for texts in zip(*cells, strict=True)]
    is_terminal = sys.stdout.isatty()
    room = shutil.get_terminal_size().columns if is_terminal else _WIDTH_OF_A_PIPE
    if is_terminal and _least_width(columns, widths) > room:
        return [*title, *_one_below_the_other(cells)]
    if not is_simple:
        return None
    lines = [
        _GAP.join(
            text.rjust(width) if column.align == "right" else text.ljust(width)
            for column, text, width in zip(columns, texts, widths, strict=True)
        ).rstrip()
        for texts in cells
    ]
    if is_terminal:
        if _is_coloured(table) or max(map(len, lines)) > room:
            return None
        if os.environ.get("TERM") not in _NO_BOLD:
            title, lines[0] = list(map(_bold, title)), _bold(lines[0])
    return [*title, *lines]


def _width(text: str) -> int:
    """How many columns a text takes: letters may be two wide or none, and have several lines."""
    from rich.cells import cell_len

    return max(map(cell_len, text.split("\n")))


def _least_width(columns: Sequence[Column], widths: Sequence[int]) -> int:
    """How narrow a table can be: names may be folded, numbers and times not."""
    least = (
        min(width, max(len(column.heading), _NARROWEST_NAME)) if _is_name(column) else width
        for column, width in zip(columns, widths, strict=True)
    )
    return sum(least) + len(_GAP) * (len(widths) - 1)


def _one_below_the_other(cells: Sequence[Sequence[str]]) -> list[str]:
    """A row as a block of lines, for a terminal that is too narrow for the columns."""
    heading, *rows = cells
    width = max(map(len, heading))
    below = "\n" + " " * width + _GAP
    blocks = [
        [
            f"{name.ljust(width)}{_GAP}" + text.replace("\n", below)
            for name, text in zip(heading, row, strict=True)
        ]
        for row in rows
    ]
    return [line for block in blocks for line in (*block, "")][:-1]


def _is_name(column: Column) -> bool:
    return column.align == "left" and column.format is None and not column.whole


def _is_coloured(table: Table) -> bool:
    return any(
        column.style is not None
        and (value := row.get(column.name)) is not None
        and column.style(value)
        for column in table.columns
        for row in table.rows
    )


def _bold(text: str) -> str:
    return f"\x1b[1m{text}\x1b[0m"


def _draw_with_rich(table: Table) -> None:
    from rich.table import Table as Drawing
    from rich.text import Text

    drawing = Drawing(box=None, pad_edge=False, padding=(0, 2, 0, 0))
    for column in table.columns:
        # Names are folded and not cut: what cannot be read whole cannot be typed again. Numbers
        # and times are left alone as long as there are names to fold.
        drawing.add_column(
            column.heading,
            justify=column.align,
            overflow="fold",
            no_wrap=not _is_name(column),
            min_width=len(column.heading),
        )
    for row in table.rows:
        cells = []
        for column in table.columns:
            value = row.get(column.name)
            style = "" if column.style is None or value is None else column.style(value)
            cells.append(Text(_text(column, value), style=style))
        drawing.add_row(*cells)
    where = console()
    if table.title:
        # Not the title of the drawing, which is folded to the width of its columns.
        where.print(Text(plain(table.title), style="bold"), soft_wrap=True)
    where.print(drawing)


def console(*, stderr: bool = False) -> Console:
    """A rich console for stdout that neither folds nor colours what goes into a pipe."""
    from rich.console import Console

    stream = sys.stderr if stderr else sys.stdout
    return Console(
        stderr=stderr, width=None if stream.isatty() else _WIDTH_OF_A_PIPE, highlight=False
    )


# ---------------------------------------------------------------------------------- single values


def _text(column: Column, value: object) -> str:
    if value is None:
        return _NOT_KNOWN
    return plain(cell(value) if column.format is None else column.format(value))


def cell(value: object) -> str:
    """A value as it stands in a table."""
    if value is None:
        return _NOT_KNOWN
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, float):
        return f"{value:.1f}"
    if isinstance(value, list | tuple | set | frozenset):
        return ", ".join(map(cell, value)) or _NOT_KNOWN
    return str(value) or _NOT_KNOWN


def plain(text: str) -> str:
    """Text that is safe on a terminal: what others wrote may hold escape sequences."""
    if text.isprintable():
        return text
    return "".join(
        char if char.isprintable() or char == "\n" else char.encode("unicode_escape").decode()
        for char in text
    )


def local_time(milliseconds: object) -> str:
    """Epoch milliseconds as local time; 0 and less mean that it is not known."""
    if not isinstance(milliseconds, int) or milliseconds <= 0:
        return _NOT_KNOWN
    try:
        moment = datetime.fromtimestamp(milliseconds / 1000, UTC).astimezone()
    except (OverflowError, OSError, ValueError):
        return str(milliseconds)
    return moment.strftime("%Y-%m-%d %H:%M:%S")


def counted(count: int, what: str) -> str:
    """``1 queue``, ``2,000 queues``."""
    return f"{count:,} {what}" if count == 1 else f"{count:,} {what}s"


def byte_count(size: object) -> str:
    """Bytes, or MiB from one MiB on."""
    if not isinstance(size, int):
        return cell(size)
    return f"{size:,}" if size < _MEBIBYTE else f"{size / _MEBIBYTE:,.1f} MiB"


# --------------------------------------------------------------------------- progress, questions


@contextlib.contextmanager
def progress(
    total: int | None, what: str, *, quiet: bool = False, after: float = _BAR_AFTER_SECONDS
) -> Iterator[Bar]:
    """A bar on stderr during a long operation; none without a terminal.

    It appears with the first progress that is made when ``after`` seconds have passed.
    """
    if quiet or not sys.stderr.isatty():
        yield Bar()
        return
    with contextlib.ExitStack() as drawn:

        def draw() -> tuple[Progress, TaskID]:
            from rich.progress import (
                BarColumn,
                MofNCompleteColumn,
                Progress,
                TextColumn,
                TimeElapsedColumn,
            )

            drawing = Progress(
                TextColumn("{task.description}"),
                BarColumn(),
                MofNCompleteColumn(),
                TimeElapsedColumn(),
                console=console(stderr=True),
                transient=True,
            )
            drawn.enter_context(drawing)
            return drawing, drawing.add_task(what, total=total)

        yield Bar(draw, time.monotonic() + after, _total=total)


def confirm(question: str, *, yes: bool) -> None:
    """Continue only after a yes; otherwise end the command with nothing changed."""
    if yes:
        return
    if not sys.stdin.isatty():
        raise InvalidArgument(
            f"{question} There is no terminal to confirm on, so nothing was changed",
            hint="add --yes if you mean it",
        )
    if not click.confirm(question, err=True):
        note("Nothing was changed.")
        raise click.exceptions.Exit(1)
