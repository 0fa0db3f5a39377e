"""Verbs that are loaded when they are used.

``penstock --help`` and every command would otherwise import all commands: each is small, together
they are felt. So the help page and the shell's completion are served from a table, and a module is
imported only when its verb is asked for.
"""

from __future__ import annotations

import difflib
import importlib
from collections.abc import Mapping
from typing import Any, ClassVar, NamedTuple

import typer
from typer.core import TyperCommand, TyperGroup
from typer.main import get_command

_EXAMPLE = "\n\nExample: "
_DIGITS = 18


class Verb(NamedTuple):
    """Where a verb lives, as ``module:name``, and its line in the list of commands."""

    home: str
    help: str


class LazyVerbs(TyperGroup):
    """A group whose commands stand in a table."""

    verbs: ClassVar[Mapping[str, Verb]] = {}
    elsewhere: ClassVar[Mapping[str, str]] = {}
    """What is no verb of ours to the one that is meant."""
    _is_listing = False

    def get_params(self, ctx: Any) -> list[Any]:
        return [_relieved(parameter) for parameter in super().get_params(ctx)]

    def list_commands(self, ctx: Any) -> list[str]:
        return list(self.verbs)

    def get_command(self, ctx: Any, cmd_name: str) -> TyperCommand | TyperGroup | None:
        verb = self.verbs.get(cmd_name)
        if verb is None:
            return None
        if self._is_listing:
            return TyperCommand(name=cmd_name, help=verb.help)
        return load(cmd_name, verb)

    def format_commands(self, ctx: Any, formatter: Any) -> None:
        with formatter.section("Commands"):
            formatter.write_dl([(name, verb.help) for name, verb in self.verbs.items()])

    def shell_complete(self, ctx: Any, incomplete: str) -> list[Any]:
        # Asks for every command, and wants no more of it than its line.
        self._is_listing = True
        try:
            return super().shell_complete(ctx, incomplete)
        finally:
            self._is_listing = False

    def resolve_command(self, ctx: Any, args: list[str]) -> Any:
        name = args[0]
        is_unknown = name not in self.verbs and not name.startswith("-")
        if is_unknown and not ctx.resilient_parsing:
            near = [self.elsewhere[name]] if name in self.elsewhere else None
            near = near or difflib.get_close_matches(name, self.verbs, n=1)
            ctx.fail(f"No such command {name!r}." + (f" Did you mean {near[0]!r}?" if near else ""))
        return super().resolve_command(ctx, args)


def load(name: str, verb: Verb) -> TyperCommand | TyperGroup:
    """Import a verb: a function, or a `typer.Typer` with verbs of its own."""
    from penstock.cli.help_pages import lay_out

    module, _, attribute = verb.home.partition(":")
    found = getattr(importlib.import_module(module), attribute)
    holder = typer.Typer(rich_markup_mode=None, add_completion=False)
    # With a callback the holder stays a group although it has one command.
    holder.callback()(lambda: None)
    if isinstance(found, typer.Typer):
        holder.add_typer(found, name=name)
    else:
        holder.command(name)(found)
    group = get_command(holder)
    assert isinstance(group, TyperGroup), "it has a callback"
    command = group.commands[name]
    assert isinstance(command, TyperCommand | TyperGroup), "typer made it"
    _end_with_example(command)
    lay_out(command)
    _take_values_as_they_are(command)
    return command


def _end_with_example(command: Any) -> None:
    """Show the example of a docstring below the options, where the eye ends up, and unwrapped."""
    text, separator, example = (command.help or "").partition(_EXAMPLE)
    if separator:
        command.help = text
        command.epilog = f"\b\n{_EXAMPLE.strip()} {example}"
    for part in getattr(command, "commands", {}).values():
        _end_with_example(part)


class _AsItIs:
    """Takes a parameter's value as it is where nothing has to be made of it.

    typer turns every value into its type with pydantic, texts and values that were not given
    included; loading that takes longer than most commands run.
    """

    def __init__(self, parameter: Any) -> None:
        self._parameter = parameter
        self._type = parameter.type_descriptor.annotation
        self._is_list = parameter.multiple or parameter.nargs == -1

    def _is_of_type(self, value: Any) -> bool:
        if isinstance(value, str):
            return self._type is str
        # The command line has only texts in it: anything else is a default.
        return isinstance(self._type, type) and isinstance(value, self._type)

    def _number(self, text: str) -> int | None:
        """A number as everybody writes it; None for what should be looked at more closely."""
        allowed = self._parameter.type_descriptor.parameter_info
        if not (text.isascii() and text.isdigit() and len(text) < _DIGITS):
            return None
        number = int(text)
        low = allowed.min is not None and number < allowed.min
        high = allowed.max is not None and number > allowed.max
        return None if low or high else number

    def coerce(self, value: Any, param: Any, ctx: Any) -> Any:
        """What typer asks for a value: the value, of the parameter's type."""
        if value is None:
            return () if self._is_list else None
        if self._is_list and self._type == list[str] and isinstance(value, list | tuple):
            return list(value)
        if not self._is_list:
            if self._is_of_type(value):
                return value
            is_number = self._type is int and isinstance(value, str)
            if is_number and (number := self._number(value)) is not None:
                return number
        self._parameter._runtime_param = None  # typer makes its own
        return self._parameter.get_runtime_param().coerce(value, param=param, ctx=ctx)


def _relieved(parameter: Any) -> Any:
    """The parameter, which loads pydantic only for a value that needs it."""
    # Other versions of typer have no such thing, nor the need.
    if getattr(parameter, "_runtime_param", parameter) is None:
        parameter._runtime_param = _AsItIs(parameter)
    return parameter


def _take_values_as_they_are(command: Any) -> None:
    all_of = command.get_params
    # Asked each time, since the option for help is made when it is first asked for.
    command.get_params = lambda ctx: [_relieved(parameter) for parameter in all_of(ctx)]
    for part in getattr(command, "commands", {}).values():
        _take_values_as_they_are(part)
