"""``penstock store inspect | verify | export | repair``: the files of a store, without a broker."""

from __future__ import annotations

import contextlib
import sys
from collections.abc import Callable, Iterator
from dataclasses import asdict
from pathlib import Path
from typing import IO, TYPE_CHECKING, Any, TypeVar

import click

from penstock.cli import output
from penstock.cli.commands import PATH, Group, Number, argument, option
from penstock.cli.output import Column, Table, counted
from penstock.cli.times import end_option, moment_ms
from penstock.errors import InvalidArgument
from penstock.model.queue_ends import queue_end

if TYPE_CHECKING:
    from penstock.store.tools import Exporter, ExportRange, Repair, Survey, Verification

_T = TypeVar("_T")

app = Group(
    help="Inspect, verify, export or repair the files of a store.\n\n"
    "Example: penstock store inspect penstock-data"
)

directory_argument = argument(
    "directory",
    type=PATH,
    metavar="DIR",
    help="A store, or a directory with one store for each broker.",
)
json_option = option("--json", "as_json", is_flag=True, help="Print JSON, one object per store.")

_LINES_PER_WRITE = 512
_FILE_COLUMNS = (
    Column("kind", "files"),
    Column("count", align="right"),
    Column("size", "bytes", align="right", format=output.byte_count),
    Column("file_size", "each", align="right", format=output.byte_count),
)
_QUEUE_COLUMNS = (
    Column("topic"),
    Column("queue_id", "queue", align="right"),
    Column("min_offset", "from", align="right"),
    Column("max_offset", "to", align="right"),
    Column("count", "messages", align="right"),
    Column("first_ms", "first", format=output.local_time),
    Column("last_ms", "last", format=output.local_time),
)


def _examine(directory: Path, what: str, examine: Callable[..., _T]) -> list[_T]:
    """Examine each store below a directory, with a progress bar."""
    from penstock.store.tools import find_stores

    results = []
    for name, root in find_stores(directory):
        with output.progress(None, f"{what} {name}") as bar:
            results.append(examine(name, root, progress=bar.update))
    return results


@app.command("inspect")
@directory_argument
@json_option
def inspect_store(directory: Path, as_json: bool) -> None:
    """What a store contains: files, topics, queues, and whether it was stopped cleanly.

    Only reads. The store may be in use, a copy, or Apache RocketMQ's.

    Example: penstock store inspect penstock-data
    """
    from penstock.store.tools import survey

    surveys = _examine(directory, "inspecting", survey)
    for found in surveys:
        queues: list[dict[str, Any]] = [{**asdict(q), "count": q.count} for q in found.queues]
        if as_json:
            output.print_json_line({**asdict(found), "queues": queues})
        else:
            _print_survey(found, queues)
    if any(found.problem for found in surveys):
        raise click.exceptions.Exit(1)


def _print_survey(found: Survey, queues: list[dict[str, Any]]) -> None:
    time, checkpoint = output.local_time, found.checkpoint
    state = "stopped cleanly" if found.is_clean else "running, or not stopped cleanly"
    output.say(f"{output.plain(found.name)}  {output.plain(found.root)}")
    output.say(f"  written by {found.written_by}, {state}")
    if found.problem is not None:
        output.say(output.plain(f"  cannot be opened: {found.problem}"))
    else:
        output.say(
            f"  log positions {found.min_position:,} to {found.max_position:,}, "
            f"stored {time(found.first_ms)} to {time(found.last_ms)}"
        )
    output.say(
        f"  checkpoint: log {time(checkpoint.log_timestamp)}, "
        f"queues {time(checkpoint.queue_timestamp)}, index {time(checkpoint.index_timestamp)}"
    )
    _print_waiting(found.timers_waiting, found.open_transactions)
    if found.first_due_ms >= 0:
        first, last = time(found.first_due_ms), time(found.last_due_ms)
        output.say(f"  timer messages are due {first} to {last}")
    output.show(Table(_FILE_COLUMNS, [asdict(kind) for kind in found.files]), as_json=False)
    if queues:
        output.show(Table(_QUEUE_COLUMNS, queues), as_json=False)
    for line in found.foreign:
        output.say(f"  {output.plain(line)}")


def _print_waiting(timers: int, transactions: int) -> None:
    if timers or transactions:
        output.say(
            f"  waiting: {counted(timers, 'timer message')}, "
            f"{counted(transactions, 'transaction')} without a decision"
        )


@app.command("verify")
@directory_argument
@json_option
def verify_store(directory: Path, as_json: bool) -> None:
    """Verify a whole store: the checksums of the log; queues, index and timers against the log.

    Reports the first damage of each file with its position, and ends with code 1 if there is any.
    Work that a running or crashed store has not finished is not damage: opening it completes it.

    Example: penstock store verify penstock-data --json
    """
    from penstock.store.tools import verify

    results = _examine(directory, "verifying", verify)
    for result in results:
        if as_json:
            damages = [damage._asdict() for damage in result.damages]
            fields = {**asdict(result), "damages": damages, "is_whole": result.is_whole}
            output.print_json_line(fields)
        else:
            _print_verification(result)
    if not all(result.is_whole for result in results):
        raise click.exceptions.Exit(1)


def _print_verification(result: Verification) -> None:
    verdict = "whole" if result.is_whole else "damaged"
    output.say(output.plain(f"{result.name}  {result.root}: {verdict}"))
    output.say(
        f"  {counted(result.records, 'record')} ({counted(result.record_bytes, 'byte')}) in "
        f"{counted(result.segments, 'segment')}, {result.queue_entries:,} entries in "
        f"{counted(result.queues, 'queue')}, {counted(result.index_keys, 'key')} in "
        f"{counted(result.index_files, 'index file')}"
    )
    _print_waiting(result.timers_waiting, result.open_transactions)
    for note in result.notes:
        output.say(output.plain(f"  note: {note}"))
    for damage in result.damages:
        output.say(output.plain(f"  damage: {damage.file} at {damage.position}: {damage.what}"))


@app.command("repair")
@directory_argument
@json_option
def repair_store(directory: Path, as_json: bool) -> None:
    """Rebuild consume queues and key index from the commit log. The broker must be stopped.

    Refuses a store whose commit log is damaged; offsets stay as they are.

    Example: penstock store repair penstock-data
    """
    from penstock.store.tools import repair

    for result in _examine(directory, "repairing", repair):
        if as_json:
            output.print_json_line(asdict(result))
        else:
            _print_repair(result)


def _print_repair(result: Repair) -> None:
    output.say(output.plain(f"{result.name}  {result.root}: rebuilt"))
    output.say(
        f"  {result.queue_entries:,} entries in {counted(result.queues, 'queue')} and "
        f"{counted(result.index_files, 'index file')}, from {counted(result.records, 'record')}"
    )


@app.command("export")
@directory_argument
@option("--topic", "topics", multiple=True, help="Only this topic; may be repeated.")
@option(
    "--internal",
    is_flag=True,
    help="Also what waits in system topics: delayed messages, timers, transactions, traces.",
)
@option(
    "--from",
    "start",
    metavar="WHERE",
    help="First log position, a store time such as 2026-11-16T01:40, or first.",
)
@end_option("End, exclusive: a log position, a store time, or last.", metavar="WHERE")
@option("--limit", type=Number(at_least=0), help="Maximum number of messages.")
@option("--output", "-o", "file", type=PATH, help="File to write instead of stdout.")
@option("--json", "as_json", is_flag=True, help="JSON lines, which is the only format.")
def export_store(
    directory: Path,
    topics: tuple[str, ...],
    internal: bool,
    start: str | None,
    end: str | None,
    limit: int | None,
    file: Path | None,
    as_json: bool,
) -> None:
    """Print messages as JSON lines, in log order.

    Bodies are in base64, decompressed. Damage is reported on stderr and ends with code 1, but
    every readable message is printed.

    Example: penstock store export penstock-data --topic orders --from 2026-11-16 --limit 10
    """
    from penstock.store.tools import Exporter

    part = _range(start, end, topics, internal=internal)
    damages = []
    hidden = 0
    left = most = sys.maxsize if limit is None else limit
    with _opened(file) as stream:

        def export(name: str, root: str, *, progress: Callable[[int, int], None]) -> None:
            nonlocal left, hidden
            exporter = Exporter(root, part, progress=progress)
            left -= _write_lines(exporter, stream, left)
            damages.extend(exporter.damages)
            hidden += exporter.hidden

        _examine(directory, "exporting", export)
    if left == most > 0:
        output.note("No message was found.")
    if hidden:
        output.note(
            f"{counted(hidden, 'record')} of system topics left out, such as messages that "
            "wait for their time or for a decision: --internal prints them, too"
        )
    for damage in damages:
        output.note(f"{damage.file} at {damage.position}: {damage.what}")
    if damages:
        raise click.exceptions.Exit(1)


def _write_lines(exporter: Exporter, stream: IO[bytes], limit: int) -> int:
    """Write up to ``limit`` messages, many per call; return their number."""
    import itertools

    import orjson

    count = 0
    messages = itertools.islice(exporter, limit)
    while lines := [orjson.dumps(m) for m in itertools.islice(messages, _LINES_PER_WRITE)]:
        stream.write(b"\n".join(lines) + b"\n")
        count += len(lines)
    return count


@contextlib.contextmanager
def _opened(path: Path | None) -> Iterator[IO[bytes]]:
    if path is None:
        yield sys.stdout.buffer
        sys.stdout.buffer.flush()
        return
    try:
        stream = path.open("wb")
    except OSError as error:
        raise InvalidArgument(
            f"--output {path} cannot be written: {error.strerror}",
            expected="a file in a directory that exists",
        ) from error
    with stream:
        yield stream


def _range(
    start: str | None, end: str | None, topics: tuple[str, ...], *, internal: bool
) -> ExportRange:
    from penstock.store.tools import ExportRange

    limits: dict[str, int] = {}
    for name, text, whole in (("from", start, "first"), ("to", end, "last")):
        if text is None or queue_end(text) == whole:
            continue
        if text.isascii() and text.isdigit():
            limits[f"{name}_position"] = int(text)
        else:
            also = f"{whole}, a log position"
            limits[f"{name}_ms"] = moment_ms(text, option=f"--{name}", also=also)
    return ExportRange(topics=topics, hides_internal=not internal, **limits)
