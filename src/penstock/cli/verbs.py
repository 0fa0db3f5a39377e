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


class Verb(NamedTuple):
    """Where a verb lives, as ``module:name``, and its line in the list of commands."""

    home: str
    help: str


class LazyVerbs(TyperGroup):
    """A group whose commands stand in a table."""

    verbs: ClassVar[Mapping[str, Verb]] = {}
    _is_listing = False

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
            near = difflib.get_close_matches(name, self.verbs, n=1)
            ctx.fail(f"No such command {name!r}." + (f" Did you mean {near[0]!r}?" if near else ""))
        return super().resolve_command(ctx, args)


def load(name: str, verb: Verb) -> TyperCommand | TyperGroup:
    """Import a verb: a function, or a `typer.Typer` with verbs of its own."""
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
    return command


def _end_with_example(command: Any) -> None:
    """Show the example of a docstring below the options, where the eye ends up, and unwrapped."""
    text, separator, example = (command.help or "").partition(_EXAMPLE)
    if separator:
        command.help = text
        command.epilog = f"\b\n{_EXAMPLE.strip()} {example}"
    for part in getattr(command, "commands", {}).values():
        _end_with_example(part)
