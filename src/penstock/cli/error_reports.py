"""Turns what ends a command early into one sentence with a remedy, and an exit code.

=====  =========================================================================================
code   meaning
=====  =========================================================================================
0      done; also when the reader of the output closed the pipe, as ``| head`` does
1      it went wrong: the sentence on stderr says what, and what to do
2      it was not understood: an unknown option or command, a value of the wrong kind
130    Ctrl-C, as shells have it
143    SIGTERM, likewise
=====  =========================================================================================

With ``--json`` the sentence is the ``message`` of a JSON object in a line of its own.
"""

from __future__ import annotations

import contextlib
import difflib
import itertools
import os
import re
import shlex
import signal
import sys
import threading
from collections.abc import Iterator
from types import FrameType
from typing import NoReturn

import click

from penstock.errors import NameserverUnavailable, NoPermission, PenstockError

FAILED = 1
INTERRUPTED = 130
TERMINATED = 143
# What only name servers are asked, and how a broker says that it knows no such thing.
_ASKED_A_BROKER = re.compile(
    r"([^\s(]+) refused (?:GET_ROUTEINFO_BY_TOPIC|GET_BROKER_CLUSTER_INFO|"
    r"GET_ALL_TOPIC_LIST_FROM_NAMESERVER) .*REQUEST_CODE_NOT_SUPPORTED"
)
_ASKED_A_WEB_SERVER = re.compile(r"connection to (\S+) ended .*its first bytes b'HTTP/")
_OTHER_NAMES = {
    "--since": ("--from",),
    "--after": ("--from",),
    "--begin": ("--from",),
    "--until": ("--to",),
    "--before": ("--to", "--until"),
    "--end": ("--to", "--until"),
    "--lines": ("--last",),
    "--count": ("--limit", "--messages"),
    "--output": ("--json",),
    "--force": ("--yes",),
    "--nameserver": ("--namesrv",),
    "--bootstrap-server": ("--namesrv",),
    "--port": ("--nameserver-port", "--broker-port"),
}
_AFTER_THE_COMMAND = {
    "--json": "--json",
    "--namesrv": "--namesrv HOST:PORT",
    "-n": "--namesrv HOST:PORT",
    "--context": "--context NAME",
    "--namespace": "--namespace NAME",
}
# A server that takes only TLS closes a plain connection without a word.
_HUNG_UP = re.compile(r"connection to \S+ ended before .*(?:reset by peer|closed by the peer)")
_WRONG_KEYS = "check signature failed"
_IS_IT_TLS = "does that port speak TLS?"
_HINT_WITHIN = re.compile(r"; (?:try: [^()]*|[^();]*\?)\)")

EXPECTED: tuple[type[BaseException], ...] = (
    PenstockError,
    OSError,
    KeyboardInterrupt,
    click.ClickException,
    click.Abort,
)
"""What `report` knows the end of. Anything else is a mistake of ours: it shows its traceback."""


@contextlib.contextmanager
def sigterm_as_ctrl_c() -> Iterator[threading.Event]:
    """Let a command end on SIGTERM as on Ctrl-C: tell what was done, delete what was its own.

    The event says that it was SIGTERM.
    """
    terminated = threading.Event()

    def terminate(number: int, frame: FrameType | None) -> NoReturn:
        terminated.set()
        raise KeyboardInterrupt

    if threading.current_thread() is not threading.main_thread():
        yield terminated
        return
    before = signal.signal(signal.SIGTERM, terminate)
    try:
        yield terminated
    finally:
        signal.signal(signal.SIGTERM, before)


def report(error: BaseException) -> int:
    """Say on stderr what went wrong; return the exit code."""
    if isinstance(error, KeyboardInterrupt | click.Abort):
        return INTERRUPTED
    if isinstance(error, BrokenPipeError):
        _leave_the_pipe()
        return 0
    if isinstance(error, PenstockError):
        _say(in_words(error), error, FAILED)
        return FAILED
    if isinstance(error, OSError):
        _say(of_the_system(error), error, FAILED)
        _leave_the_pipe()  # it may have been the disk under stdout that is full
        return FAILED
    assert isinstance(error, click.ClickException), error
    return _report_usage(error)


def _report_usage(error: click.ClickException) -> int:
    if isinstance(error, click.exceptions.NoArgsIsHelpError):
        error.show()
    else:
        _say(_misplaced_option(error) or _usage_text(error), error, error.exit_code)
    return error.exit_code


def _misplaced_option(error: click.ClickException) -> str | None:
    """The sentence for an option of every command that was given before the command."""
    if not isinstance(error, click.NoSuchOption) or error.ctx is None:
        return None
    name = error.option_name
    if not isinstance(error.ctx.command, click.Group) or name not in _AFTER_THE_COMMAND:
        return None
    return f"{name} goes after the command; try: penstock topic list {_AFTER_THE_COMMAND[name]}"


def _usage_text(error: click.ClickException) -> str:
    text = error.format_message().strip().rstrip(".")
    if isinstance(error, click.NoSuchOption):
        text = _with_suggestion(error)
    join = " Try:" if text.endswith("?") else "; try:"
    return f"{text}{join} {_command(error)} --help"


def _command(error: click.ClickException) -> str:
    """The command that was not understood."""
    if isinstance(error, click.UsageError) and error.ctx is not None:
        return error.ctx.command_path
    # Some errors do not know their command. Extra arguments before --help do no harm.
    words = itertools.takewhile(lambda word: not word.startswith("-"), sys.argv[1:])
    return shlex.join(["penstock", *words])


def _with_suggestion(error: click.NoSuchOption) -> str:
    """An unknown option with the option that was probably meant."""
    name, near = error.option_name, error.possibilities
    if name in _OTHER_NAMES and error.ctx is not None:
        # The name that other tools use comes before a similar spelling.
        known = [flag for parameter in error.ctx.command.params for flag in parameter.opts]
        near = [flag for flag in _OTHER_NAMES[name] if flag in known] or near
    text = error.message.rstrip(".")
    if near:
        nearest = difflib.get_close_matches(name, near, n=1, cutoff=0)
        return f"{text}. Did you mean {nearest[0]}?"
    return f"{text} (a value that begins with - goes after --)" if name[1:2].isdigit() else text


def in_words(error: PenstockError) -> str:
    """What went wrong, with a way out."""
    asked = _ASKED_A_BROKER.search(error.what)
    if asked is not None:
        return (
            f"{asked[1]} answers like a broker and not like a name server; try: the address of a "
            "name server, which listens on port 9876 by default"
        )
    web = _ASKED_A_WEB_SERVER.search(error.what)
    if web is not None:
        return (
            f"{web[1]} answers like a web server (HTTP), not like RocketMQ; try: the address of a "
            "name server, which listens on port 9876 by default"
        )
    if isinstance(error, NameserverUnavailable):
        # What it found out about each address has a hint of its own; one is enough.
        what = _HINT_WITHIN.sub(")", error.what)
        if _IS_IT_TLS in error.what:
            return f"{what}; {_IS_IT_TLS} Try: without --tls, or the port that does"
        if _HUNG_UP.search(what):
            return (
                f"{what}; try: --tls, with --tls-ca FILE, if that port takes only TLS, or another "
                "address: --namesrv HOST:PORT, NAMESRV_ADDR, `penstock context use NAME`"
            )
        return (
            f"{what}; try: `penstock up` to start one on this machine, or another address: "
            "--namesrv HOST:PORT, NAMESRV_ADDR, `penstock context use NAME`"
        )
    if isinstance(error, NoPermission) and error.hint is None and _WRONG_KEYS in error.what:
        return (
            f"{error}; try: look for a mistake in the access key or its secret, in the context, in "
            "PENSTOCK_ACCESS_KEY and PENSTOCK_SECRET_KEY, or a user that is disabled"
        )
    return str(error)


def of_the_system(error: OSError) -> str:
    """What the system refused, with the name it was about first and what may help last."""
    if not isinstance(error.filename, str | bytes) or error.strerror is None:
        return str(error)
    name = os.fsdecode(error.filename)
    what = f"{name}: {error.strerror.lower()}"
    if isinstance(error, PermissionError):
        return f"{what}; try: as the user it belongs to, or change its owner or mode"
    if isinstance(error, FileNotFoundError):
        return f"{what}; try: look for a mistake in the name"
    return what


def _say(sentence: str, error: BaseException, code: int) -> None:
    try:
        click.echo(_for_programs(sentence, error, code) or f"penstock: {sentence}", err=True)
    except BrokenPipeError:
        _leave_the_pipe()


def _for_programs(sentence: str, error: BaseException, code: int) -> str | None:
    """The sentence as a line of JSON where JSON was asked for, and in the right place."""
    words = itertools.takewhile(lambda word: word != "--", sys.argv[1:])
    if "--json" not in words or getattr(error, "option_name", None) == "--json":
        return None
    import orjson

    said = {"error": type(error).__name__, "message": sentence, "exit_code": code}
    # What was typed may hold bytes that are no letters, which JSON has no place for.
    return orjson.dumps(said, default=str).decode() if _is_text(sentence) else None


def _is_text(sentence: str) -> bool:
    return not any("\ud800" <= char <= "\udfff" for char in sentence)


def _leave_the_pipe() -> None:
    # Python flushes both streams once more when it ends, and would complain about the pipe again.
    nowhere = os.open(os.devnull, os.O_WRONLY)
    for stream in (sys.stdout, sys.stderr):
        try:
            stream.flush()
        except OSError:
            os.dup2(nowhere, stream.fileno())
