"""``penstock store inspect | verify | export``: look at files, change nothing, need no broker.

What the commands need is imported when they run: ``penstock up`` starts without tables and bars.
"""

from __future__ import annotations

import contextlib
import sys
from collections.abc import Iterator, Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import IO, TYPE_CHECKING

import click

from penstock.cli.commands import PATH, Group, Number, argument, option
from penstock.errors import InvalidArgument

if TYPE_CHECKING:
    from penstock.store.tools import Exporter, ExportRange

app = Group(
    help="Inspect, verify or export the files of a store.\n\n"
    "Example: penstock store inspect penstock-data",
)

directory_argument = argument(
    "directory", type=PATH, metavar="DIR", help="A store, or a directory with one for each broker."
)
json_option = option("--json", "as_json", is_flag=True, help="Print JSON, one object a store.")

_LINES_PER_WRITE = 512


@app.command("inspect")
@directory_argument
@json_option
def inspect_store(
    directory: Path,
    as_json: bool,
) -> None:
    """What is in a store: files, ranges, topics, queues, and how it was stopped.

    Reads only; the store may be in use, a copy, or Apache RocketMQ's.

    Example: penstock store inspect penstock-data
    """
    from penstock.cli.store_reports import print_survey, survey_as_json, visible_progress
    from penstock.store.tools import find_stores, survey

    surveys = []
    for name, root in find_stores(directory):
        with visible_progress(f"looking at {name}") as progress:
            surveys.append(survey(name, root, progress=progress))
    if as_json:
        for found in surveys:
            click.echo(survey_as_json(found))
    else:
        for found in surveys:
            print_survey(found)
    if any(found.problem for found in surveys):
        raise click.exceptions.Exit(1)


@app.command("verify")
@directory_argument
@json_option
def verify_store(
    directory: Path,
    as_json: bool,
) -> None:
    """Walk a whole store: checksums of the log, queues and index against the log.

    Reports the first damage of each file with its position and ends with code 1 if there is any.
    What a running or crashed store has not finished yet is no damage: opening it completes that.

    Example: penstock store verify penstock-data --json
    """
    from penstock.cli.store_reports import (
        print_verification,
        verification_as_json,
        visible_progress,
    )
    from penstock.store.tools import find_stores, verify

    results = []
    for name, root in find_stores(directory):
        with visible_progress(f"verifying {name}") as progress:
            results.append(verify(name, root, progress=progress))
    if as_json:
        for result in results:
            click.echo(verification_as_json(result))
    else:
        for result in results:
            print_verification(result)
    if not all(result.is_whole for result in results):
        raise click.exceptions.Exit(1)


@app.command("export")
@directory_argument
@option("--topic", multiple=True, help="Only this topic; may be repeated.")
@option("--from", "start", help="Log position, or store time such as 2026-11-16T01:40.")
@option("--to", "end", help="The same for the end, which is left out.")
@option("--limit", type=Number(at_least=0), help="At most so many.")
@option("--output", "-o", type=PATH, help="File to write instead of stdout.")
@option("--json", "as_json", is_flag=True, help="JSON lines, which is what is printed anyway.")
def export_store(
    directory: Path,
    topic: tuple[str, ...],
    start: str | None,
    end: str | None,
    limit: int | None,
    output: Path | None,
    as_json: bool,
) -> None:
    """Print messages as JSON lines, in the order of the log.

    Bodies are in base64, opened if they were compressed. Damage is told on stderr and ends with
    code 1; all that can be read is printed all the same.

    Example: penstock store export penstock-data --topic orders --from 2026-11-16 --limit 10
    """
    from penstock.cli.store_reports import visible_progress
    from penstock.store.tools import Exporter, find_stores

    part = _range(start, end, topic)
    damages = []
    left = sys.maxsize if limit is None else limit
    with _output(output) as stream:
        for name, root in find_stores(directory):
            with visible_progress(f"exporting {name}") as progress:
                exporter = Exporter(root, part, progress=progress)
                left -= _write_lines(exporter, stream, left)
            damages += exporter.damages
    for damage in damages:
        click.echo(f"{damage.file} at {damage.position}: {damage.what}", err=True)
    if damages:
        raise click.exceptions.Exit(1)


def _write_lines(exporter: Exporter, stream: IO[bytes], limit: int) -> int:
    """Write up to ``limit`` messages, many to a call; return how many."""
    import orjson

    lines: list[bytes] = []
    count = 0
    if limit > 0:
        for message in exporter:
            lines.append(orjson.dumps(message))
            count += 1
            if len(lines) >= _LINES_PER_WRITE:
                stream.write(b"\n".join(lines) + b"\n")
                lines.clear()
            if count >= limit:
                break
    if lines:
        stream.write(b"\n".join(lines) + b"\n")
    return count


@contextlib.contextmanager
def _output(path: Path | None) -> Iterator[IO[bytes]]:
    if path is not None:
        try:
            stream = path.open("wb")
        except OSError as error:
            raise InvalidArgument(
                f"--output {path} cannot be written: {error.strerror}",
                expected="a file in a directory that exists",
            ) from error
        with stream:
            yield stream
        return
    try:
        yield sys.stdout.buffer
        sys.stdout.buffer.flush()
    except BrokenPipeError:
        # Whoever read the output has seen enough, as `| head` does.
        sys.stderr.close()
        raise click.exceptions.Exit(0) from None


def _range(start: str | None, end: str | None, topics: Sequence[str]) -> ExportRange:
    from penstock.store.tools import ExportRange

    limits: dict[str, int] = {}
    for name, text in (("from", start), ("to", end)):
        if text is not None:
            kind, value = _position_or_time(f"--{name}", text)
            limits[f"{name}_{kind}"] = value
    return ExportRange(topics=topics, **limits)


def _position_or_time(option: str, text: str) -> tuple[str, int]:
    if text.isascii() and text.isdigit():
        return "position", int(text)
    try:
        moment = datetime.fromisoformat(text)
    except ValueError:
        raise InvalidArgument(
            f"{option} {text!r}",
            expected="a log position, or a time such as 2026-11-16T01:40 or 2026-11-16T01:40+01:00",
        ) from None
    # Without a zone it is the local time, as people read their clocks.
    return "ms", int(moment.astimezone(UTC).timestamp() * 1000)
