"""How the help of a command is laid out: as a person would write it.

typer prints the types of its parameters (``<list[str]>``, ``{TOPIC...}...``, ``x>=1``) and one list
of options. Here an argument is its name, an option what it is followed by, a range is a word, and
the flags that lead to a cluster, the same everywhere, stand below the command's own.
"""

from __future__ import annotations

import functools
import re
from collections.abc import Callable
from typing import Any, Final

Record = tuple[str, str]

_FLAGS_OF_A_CLUSTER: Final = frozenset(
    {
        "namesrv",
        "context",
        "access_key",
        "secret_key",
        "security_token",
        "tls",
        "tls_ca",
        "namespace",
    }
)
_REQUIRED = re.compile(r"\s*\[required\]$|; required(?=\]$)")
_NUMBERS = "NUMBER"
_IN_WORDS: Final[tuple[tuple[re.Pattern[str], str], ...]] = (
    # What was not a value but words, such as "as many", typer puts in brackets once more.
    (re.compile(r"default: \((.*?)\)(?=[;\]])"), r"default: \1"),
    (re.compile(r"(-?[\d.]+)<=x<=([\d.]+)(?=\]$)"), r"\1 to \2"),
    (re.compile(r"x>=(-?[\d.]+)(?=\]$)"), r"at least \1"),
    (re.compile(r"x<=(-?[\d.]+)(?=\]$)"), r"at most \1"),
)


def lay_out(command: Any) -> None:
    """Make the help of a command, or of all those of a group, read like this."""
    for part in getattr(command, "commands", {}).values():
        lay_out(part)
    if hasattr(command, "commands"):
        return
    for parameter in command.params:
        if parameter.param_type_name == "argument":
            parameter.get_usage_pieces = _constantly([_in_usage(parameter)])
        elif parameter.metavar is None:
            parameter.metavar = _what_follows(parameter)
    command.format_options = functools.partial(_write_sections, command)


def _constantly(pieces: list[str]) -> Callable[[Any], list[str]]:
    return lambda context: pieces


def _name(argument: Any) -> str:
    return str(argument.metavar or argument.name.upper())


def _in_usage(argument: Any) -> str:
    name = _name(argument) if argument.required else f"[{_name(argument)}]"
    return f"{name}..." if argument.nargs == -1 else name


def _what_follows(option: Any) -> str | None:
    """The word after an option; None for one that stands alone, or has its choices there."""
    described = getattr(option, "type_descriptor", None)
    if option.is_flag or described is None or described.is_choice:
        return None
    if described.annotation in (int, float):
        return _NUMBERS
    return str(max(option.opts, key=len)).rpartition("-")[2].upper()


def _write_sections(command: Any, ctx: Any, formatter: Any) -> None:
    sections: dict[str, list[Record]] = {"Arguments": [], "Options": [], "Which cluster": []}
    has_cluster = any(parameter.name == "context" for parameter in command.params)
    for parameter in command.get_params(ctx):
        record = parameter.get_help_record(ctx)
        if record is None:
            continue
        if parameter.param_type_name == "argument":
            sections["Arguments"].append(_of_argument(parameter, record))
        elif has_cluster and parameter.name in _FLAGS_OF_A_CLUSTER:
            sections["Which cluster"].append(_in_words(record))
        else:
            sections["Options"].append(_in_words(record))
    for title, records in sections.items():
        if records:
            with formatter.section(title):
                formatter.write_dl(records)


def _of_argument(argument: Any, record: Record) -> Record:
    name = _name(argument)
    # Whether it is needed is said by the line of usage.
    return (f"{name}..." if argument.nargs == -1 else name, _REQUIRED.sub("", record[1]))


def _in_words(record: Record) -> Record:
    name, text = record
    for pattern, words in _IN_WORDS:
        text = pattern.sub(words, text)
    return name, text
