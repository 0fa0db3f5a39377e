"""A Spark session for one command: quiet, with a bar, and with errors people can read."""

from __future__ import annotations

import contextlib
import importlib.util
import logging
import os
import re
import shutil
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Self

from penstock.cli import output
from penstock.errors import InvalidArgument, PenstockError

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

_OUR_ERROR = re.compile(r"penstock\.errors\.(\w+): (.+)")
_LOG_LINES_SHOWN = 5
_LINE_SECONDS = 10.0


@contextlib.contextmanager
def running_spark(
    name: str, master: str | None, *, stopped: str = "Stopped."
) -> Iterator[SparkSession]:
    """A session, stopped at the end if it began here; errors name the file that Spark logs to.

    ``stopped`` is printed when Ctrl-C ends the command: the state, and how to continue.
    """
    if importlib.util.find_spec("pyspark") is None:
        raise PenstockError(
            "this needs Spark, which is not installed",
            hint="pip install 'penstock[spark,java,report]'",
        )
    from pyspark.errors import AnalysisException, PySparkException
    from pyspark.logger import PySparkLogger

    from penstock.spark import session
    from penstock.spark.jvm import running_context

    # py4j logs a traceback for a call that Ctrl-C interrupts; drop it.
    logging.getLogger("py4j").addHandler(logging.NullHandler())
    is_ours = running_context() is None
    log = Path(tempfile.mkdtemp(prefix="penstock-spark-")) / "spark.log"
    if is_ours:
        output.note("Starting Spark ...")
    try:
        with _stderr_to(log):
            spark = session(name, master=master, config={"spark.log.level": "WARN"})
    except PenstockError:
        shutil.rmtree(log.parent, ignore_errors=True)
        raise
    except KeyboardInterrupt:
        output.note("Stopped before it began.")
        shutil.rmtree(log.parent, ignore_errors=True)
        raise
    except Exception as error:
        last = "; ".join(log.read_text(errors="replace").splitlines()[-_LOG_LINES_SHOWN:])
        raise PenstockError(
            f"Spark did not start: {_first_line(error)} ({last})", hint=f"look into {log}"
        ) from error
    # It writes every error of a query to stderr, which the error itself tells better.
    chatter = PySparkLogger.getLogger("SQLQueryContextLogger")
    chatter.addFilter(_nothing)
    keeps_log = False
    try:
        yield spark
    except KeyboardInterrupt:
        output.note(stopped)
        raise
    except AnalysisException as error:
        ours = _OUR_ERROR.findall(str(error))
        said = ours[-1][1].strip() if ours else _first_line(error).rstrip(";")
        raise InvalidArgument(said) from error
    except PySparkException as error:
        keeps_log = True
        raise readable(error, log) from error
    finally:
        chatter.removeFilter(_nothing)
        if is_ours:
            spark.stop()
        if not keeps_log:
            # The temporary directory may be gone already.
            shutil.rmtree(log.parent, ignore_errors=True)


def _nothing(record: logging.LogRecord) -> bool:
    return False


@contextlib.contextmanager
def _stderr_to(log: Path) -> Iterator[None]:
    """What is started meanwhile, Spark's JVM, writes its chatter into a file for good."""
    sys.stderr.flush()
    kept = os.dup(2)
    target = os.open(log, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
    try:
        os.dup2(target, 2)
        yield
    finally:
        sys.stderr.flush()
        os.dup2(kept, 2)
        os.close(kept)
        os.close(target)


def readable(error: Exception, log: Path) -> PenstockError:
    """One sentence of what a job died of: ours from an executor if there is one, else Spark's."""
    text = str(error)
    ours = _OUR_ERROR.findall(text)
    if ours:
        return PenstockError(ours[-1][1].strip())
    return PenstockError(f"Spark: {_first_line(error)}", hint=f"look into {log}")


def _first_line(error: BaseException) -> str:
    return next((line.strip() for line in str(error).splitlines() if line.strip()), repr(error))


class Bars:
    """Shows a pipeline's progress: a bar for each thing it does, one after the other.

    In a log, where a bar cannot be drawn, it is a line for each thing and one now and then.
    """

    def __init__(self, *, quiet: bool) -> None:
        self._quiet = quiet
        self._open = contextlib.ExitStack()
        self._what: str | None = None
        self._bar = output.Bar()
        self._in_lines = not quiet and not sys.stderr.isatty()
        self._next_line = 0.0

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        exc_type: type[BaseException] | None,
        exc: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self._open.close()

    def __call__(self, what: str, done: int, total: int) -> None:
        """What a pipeline calls."""
        if self._in_lines:
            now = time.monotonic()
            if what != self._what or now >= self._next_line:
                output.note(f"{what}: {done} of {total}")
                self._next_line = now + _LINE_SECONDS
        if what != self._what:
            self._open.close()
            self._what = what
            self._bar = self._open.enter_context(output.progress(total, what, quiet=self._quiet))
        self._bar.update(done, total)
