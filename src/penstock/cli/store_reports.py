"""How the store commands show what they found: tables for people, JSON for programs, a bar."""

from __future__ import annotations

import contextlib
import sys
from collections.abc import Callable, Iterator
from dataclasses import asdict
from datetime import UTC, datetime

import orjson
from rich.box import SIMPLE
from rich.console import Console
from rich.markup import escape
from rich.progress import BarColumn, Progress, TaskProgressColumn, TextColumn, TimeRemainingColumn
from rich.table import Table

from penstock.store.tools import Survey, Verification

_MEBIBYTE = 1 << 20
_WIDTH_OF_A_PIPE = 160


@contextlib.contextmanager
def visible_progress(what: str) -> Iterator[Callable[[int, int], None] | None]:
    """A bar on stderr while something takes long; nothing where nobody would see it."""
    if not sys.stderr.isatty():
        yield None
        return
    bar = Progress(
        TextColumn("{task.description}"),
        BarColumn(),
        TaskProgressColumn(),
        TimeRemainingColumn(),
        console=Console(stderr=True),
        transient=True,
    )
    with bar:
        task = bar.add_task(what, total=None)
        yield lambda done, total: bar.update(task, completed=done, total=total)


def _console() -> Console:
    # A pipe has no width; what goes into a file must not be cut to that of no terminal.
    return Console() if sys.stdout.isatty() else Console(width=_WIDTH_OF_A_PIPE)


def _say(console: Console, text: str) -> None:
    """A line as it is: paths are for copying, numbers need no colour."""
    console.print(text, highlight=False, soft_wrap=True)


def survey_as_json(found: Survey) -> str:
    """Everything `inspect` knows, as one line."""
    queues = [{**asdict(queue), "count": queue.count} for queue in found.queues]
    return orjson.dumps({**asdict(found), "queues": queues}).decode()


def verification_as_json(result: Verification) -> str:
    """Everything `verify` found, as one line."""
    damages = [damage._asdict() for damage in result.damages]
    fields = {**asdict(result), "damages": damages, "is_whole": result.is_whole}
    return orjson.dumps(fields).decode()


def _time(milliseconds: int) -> str:
    if milliseconds <= 0:
        return "-"
    moment = datetime.fromtimestamp(milliseconds / 1000, UTC).astimezone()
    return moment.isoformat(sep=" ", timespec="seconds")[:19]


def _bytes(size: int) -> str:
    return f"{size:,}" if size < _MEBIBYTE else f"{size / _MEBIBYTE:,.1f} MiB"


def print_survey(found: Survey) -> None:
    """A store in tables."""
    console = _console()
    stop = "stopped cleanly" if found.is_clean else "running, or not stopped cleanly"
    _say(console, f"[bold]{escape(found.name)}[/bold]  {escape(found.root)}")
    _say(console, f"  written by {found.written_by}, {stop}")
    if found.problem is not None:
        _say(console, f"  [red]cannot be opened:[/red] {escape(found.problem)}")
    else:
        _say(
            console,
            f"  log positions {found.min_position:,} to {found.max_position:,}, "
            f"stored {_time(found.first_ms)} to {_time(found.last_ms)}",
        )
    checkpoint = found.checkpoint
    _say(
        console,
        f"  checkpoint: log {_time(checkpoint.log_timestamp)}, "
        f"queues {_time(checkpoint.queue_timestamp)}, index {_time(checkpoint.index_timestamp)}",
    )
    files = Table("files", "count", "bytes", "each", box=None, padding=(0, 2))
    for kind in found.files:
        files.add_row(kind.kind, f"{kind.count:,}", _bytes(kind.size), _bytes(kind.file_size))
    console.print(files)
    if found.queues:
        queues = Table("topic", "queue", "from", "to", "messages", "first", "last", box=SIMPLE)
        queues.columns[0].overflow = "fold"
        for column in queues.columns[1:]:
            column.no_wrap = True
        for queue in found.queues:
            queues.add_row(
                escape(queue.topic),
                str(queue.queue_id),
                f"{queue.min_offset:,}",
                f"{queue.max_offset:,}",
                f"{queue.count:,}",
                _time(queue.first_ms),
                _time(queue.last_ms),
            )
        console.print(queues)
    for line in found.foreign:
        _say(console, f"  {escape(line)}")


def print_verification(result: Verification) -> None:
    """The verdict, and what led to it."""
    console = _console()
    verdict = "[green]whole[/green]" if result.is_whole else "[red]damaged[/red]"
    _say(console, f"[bold]{escape(result.name)}[/bold]  {escape(result.root)}: {verdict}")
    _say(
        console,
        f"  {result.records:,} records of {_bytes(result.record_bytes)} in {result.segments:,} "
        f"segments, {result.queue_entries:,} entries in {result.queues:,} queues, "
        f"{result.index_keys:,} keys in {result.index_files:,} index files",
    )
    for note in result.notes:
        _say(console, f"  note: {escape(note)}")
    for damage in result.damages:
        what = escape(f"{damage.file} at {damage.position}: {damage.what}")
        _say(console, f"  [red]damage:[/red] {what}")
