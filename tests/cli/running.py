"""The command line, run in this process: everything but the start of an interpreter is real."""

from __future__ import annotations

import asyncio
import contextlib
import io
import json
import sys
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

from penstock.cli.main import main
from penstock.testing.eventually import eventually

PENSTOCK = [sys.executable, "-m", "penstock"]


class Done(NamedTuple):
    """A command that has ended."""

    code: int
    out: str
    err: str

    @property
    def json(self) -> Any:
        return json.loads(self.out)

    @property
    def lines(self) -> list[list[str]]:
        """The words of each line of output that has any."""
        return [line.split() for line in self.out.splitlines() if line.strip()]


def run(*arguments: str, stdin: str = "") -> Done:
    """Run ``penstock ARGUMENTS`` to its end; neither input nor output is a terminal."""
    out = io.TextIOWrapper(io.BytesIO(), encoding="utf-8", write_through=True)
    err = io.TextIOWrapper(io.BytesIO(), encoding="utf-8", write_through=True)
    with (
        _arguments(["penstock", *arguments]),
        _stdin(stdin),
        contextlib.redirect_stdout(out),
        contextlib.redirect_stderr(err),
    ):
        try:
            main()
        except SystemExit as end:
            code = end.code
        else:
            code = 0
    assert isinstance(code, int), code
    return Done(code, _text(out), _text(err))


def succeed(*arguments: str, stdin: str = "") -> Done:
    """Run a command that must end well."""
    done = run(*arguments, stdin=stdin)
    assert done.code == 0, done
    return done


def fail(*arguments: str, stdin: str = "", code: int = 1) -> str:
    """Run a command that must be refused with one sentence; return that."""
    done = run(*arguments, stdin=stdin)
    assert done.code == code, done
    assert done.out == "", done
    assert done.err.startswith("penstock: "), done
    assert len(done.err.splitlines()) == 1, done
    return done.err


def wait_for(condition: Callable[[], object]) -> None:
    """Wait until a condition holds, in a test that is not asynchronous."""
    asyncio.run(eventually(condition, 60))


def _text(stream: io.TextIOWrapper) -> str:
    stream.seek(0)
    return stream.read()


@contextlib.contextmanager
def _arguments(arguments: list[str]) -> Iterator[None]:
    before, sys.argv = sys.argv, arguments
    try:
        yield
    finally:
        sys.argv = before


@contextlib.contextmanager
def _stdin(text: str) -> Iterator[None]:
    before = sys.stdin
    sys.stdin = io.TextIOWrapper(io.BytesIO(text.encode()), encoding="utf-8")
    try:
        yield
    finally:
        sys.stdin = before
