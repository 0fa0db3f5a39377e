"""From whatever ends a command early to one sentence with a way out, and an exit code.

=====  =========================================================================================
code   meaning
=====  =========================================================================================
0      done; also when whoever read the output had seen enough, as ``| head`` has
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
from typing import Any, NoReturn

import typer

from penstock.errors import NameserverUnavailable, PenstockError

FAILED = 1
INTERRUPTED = 130
TERMINATED = 143
# What only name servers are asked, and how a broker says that it knows no such thing.
_ASKED_A_BROKER = re.compile(
    r"([^\s(]+) refused (?:GET_ROUTEINFO_BY_TOPIC|GET_BROKER_CLUSTER_INFO|"
    r"GET_ALL_TOPIC_LIST_FROM_NAMESERVER) .*REQUEST_CODE_NOT_SUPPORTED"
)
_ASKED_A_WEB_SERVER = re.compile(r"connection to (\S+) ended .*its first bytes b'HTTP/")
_ELSEWHERE = {
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
_KINDS = {"integer": "a whole number is expected", "number": "a number is expected"}
_BOUNDS = {"greater": "expected at least", "less": "expected at most"}
_IS_IT_TLS = "does that port speak TLS?"
_HINT_WITHIN = re.compile(r"; (?:try: [^()]*|[^();]*\?)\)")

# typer carries its own copy of click or uses the installed one, depending on its version; this
# class is public either way, and those above it are what a command line is refused with.
_UsageError, _ClickException = typer.BadParameter.__mro__[1:3]
_REFUSALS: tuple[type[BaseException], ...] = (_ClickException, typer.Abort)
EXPECTED: tuple[type[BaseException], ...] = (
    PenstockError,
    OSError,
    KeyboardInterrupt,
    SystemExit,
    *_REFUSALS,
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
    if isinstance(error, KeyboardInterrupt | typer.Abort):
        return INTERRUPTED
    if isinstance(error, SystemExit):
        # typer leaves by itself when it cannot write, and takes that for a failure.
        if not isinstance(error.__context__, BrokenPipeError):
            raise error
        error = error.__context__
    if isinstance(error, BrokenPipeError):
        _leave_the_pipe()
        return 0
    if isinstance(error, PenstockError):
        _say(_with_way_out(error), error, FAILED)
        return FAILED
    if isinstance(error, OSError):
        _say(of_the_system(error), error, FAILED)
        _leave_the_pipe()  # it may have been the disk under stdout that is full
        return FAILED
    return _report_usage(error)


def _report_usage(error: Any) -> int:
    if type(error).__name__ == "NoArgsIsHelpError":
        error.show()
    else:
        _say(_too_early(error) or _not_understood(error), error, int(error.exit_code))
    return int(error.exit_code)


def _too_early(error: Any) -> str | None:
    """An option that every command has, given before the command."""
    name = getattr(error, "option_name", None)
    is_group = hasattr(getattr(getattr(error, "ctx", None), "command", None), "commands")
    if not is_group or name not in _AFTER_THE_COMMAND:
        return None
    return f"{name} goes after the command; try: penstock topic list {_AFTER_THE_COMMAND[name]}"


def _not_understood(error: Any) -> str:
    text = _naming_value(error, _plainly(error.format_message().strip().rstrip(".")))
    text = _suggested(error, text)
    join = " Try:" if text.endswith("?") else "; try:"
    return f"{text}{join} {_command(error)} --help"


def _plainly(message: str) -> str:
    """A refusal of typer's validators without what they say about themselves."""
    message = message.replace("Value error, ", "")
    for kind, name in _KINDS.items():
        message = re.sub(f"Input should be a valid {kind}, unable to parse .*", name, message)
    for bound, name in _BOUNDS.items():
        message = message.replace(f"Input should be {bound} than or equal to", name)
    return message


def _command(error: Any) -> str:
    """The command that was not understood."""
    context = getattr(error, "ctx", None)
    if context is not None:
        return str(context.command_path)
    # Some refusals do not know; asked for help, arguments in between do no harm.
    words = itertools.takewhile(lambda word: not word.startswith("-"), sys.argv[1:])
    return shlex.join(["penstock", *words])


def _naming_value(error: Any, message: str) -> str:
    """A refused value said, where the refusal tells only what it should have been."""
    flags = getattr(getattr(error, "param", None), "opts", ())
    words = sys.argv[1:]
    for flag in flags:
        given = [word.partition("=")[2] for word in words if word.startswith(f"{flag}=")]
        given += [after for word, after in itertools.pairwise(words) if word == flag]
        # Said once already, or which of several it was is not known.
        if flag.startswith("-") and len(given) == 1 and repr(given[0]) not in message:
            return message.replace("Invalid value for", f"Invalid value {given[0]!r} for", 1)
    return message


def _suggested(error: Any, message: str) -> str:
    """An unknown option with the one that was meant, if that can be guessed."""
    near = getattr(error, "possibilities", None)
    name = getattr(error, "option_name", None)
    if name in _ELSEWHERE:
        # What other tools call it comes before what is spelled alike.
        context = getattr(error, "ctx", None)
        known = [] if context is None else [flag for p in context.command.params for flag in p.opts]
        near = [flag for flag in _ELSEWHERE[name] if flag in known] or near
    if not near and name is not None and name[1:2].isdigit():
        return f"{message} (a value that begins with - goes after --)"
    if not near:
        return message
    nearest = difflib.get_close_matches(error.option_name, near, n=1, cutoff=0)
    return f"{error.message.rstrip('.')}. Did you mean {nearest[0]}?"


def _with_way_out(error: PenstockError) -> str:
    asked = _ASKED_A_BROKER.search(error.what)
    if asked is not None:
        return (
            f"{asked[1]} answers like a broker and not like a name server; try: the address of a "
            "name server, which listens on port 9876 unless told otherwise"
        )
    web = _ASKED_A_WEB_SERVER.search(error.what)
    if web is not None:
        return (
            f"{web[1]} answers like a web server (HTTP), not like RocketMQ; try: the address of a "
            "name server, which listens on port 9876 unless told otherwise"
        )
    if isinstance(error, NameserverUnavailable):
        # What it found out about each address has a hint of its own; one is enough.
        what = _HINT_WITHIN.sub(")", error.what)
        if _IS_IT_TLS in error.what:
            return f"{what}; {_IS_IT_TLS} Try: without --tls, or the port that does"
        return (
            f"{what}; try: `penstock up` to start one on this machine, or another address: "
            "--namesrv HOST:PORT, NAMESRV_ADDR, `penstock context use NAME`"
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
        typer.echo(_for_programs(sentence, error, code) or f"penstock: {sentence}", err=True)
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
