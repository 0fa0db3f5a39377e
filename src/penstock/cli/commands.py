"""The building blocks of every command: options, arguments, help pages, lazily loaded verbs.

Importing every command for ``penstock --help`` would be noticeable. So the first help page and the
completion of verbs come from a table, and a module is imported when its verb is used.
"""

from __future__ import annotations

import difflib
import importlib
import inspect
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple, TypeVar

import click

if TYPE_CHECKING:
    from click.shell_completion import CompletionItem

F = TypeVar("F", bound=Callable[..., Any])

PATH = click.Path(path_type=Path)
OPTIONS = "Options"
_EXAMPLE = "\n\nExample: "


class Number(click.ParamType):  # type: ignore[type-arg]  # generic only in the newest click
    """A number within bounds, which are part of the option's help and of the error."""

    name = "number"

    def __init__(
        self,
        kind: type[int] | type[float] = int,
        *,
        at_least: float | None = None,
        at_most: float | None = None,
    ) -> None:
        self._kind = kind
        self._at_least = at_least
        self._at_most = at_most

    @property
    def bounds(self) -> str:
        """The bounds in words."""
        if self._at_least is not None and self._at_most is not None:
            return f"{self._at_least} to {self._at_most}"
        if self._at_least is not None:
            return f"at least {self._at_least}"
        return "" if self._at_most is None else f"at most {self._at_most}"

    def convert(
        self, value: Any, param: click.Parameter | None, ctx: click.Context | None
    ) -> float:
        try:
            number = self._kind(value)
        except ValueError:
            what = "whole number" if self._kind is int else "number"
            self.fail(f"{value!r} is not a {what}", param, ctx)
        # Written so that NaN is refused, too.
        if self._at_least is not None and not number >= self._at_least:
            self.fail(f"{value!r}, expected at least {self._at_least}", param, ctx)
        if self._at_most is not None and not number <= self._at_most:
            self.fail(f"{value!r}, expected at most {self._at_most}", param, ctx)
        return number


class Option(click.Option):
    """An option whose help names its default and bounds in words; see `option`."""

    def __init__(self, *args: Any, section: str = OPTIONS, **settings: Any) -> None:
        super().__init__(*args, **settings)
        self.section = section

    def make_metavar(self, ctx: click.Context) -> str:
        """The word after the option: for a text, the last word of the option's name."""
        if self.metavar is None and isinstance(self.type, click.types.StringParamType):
            return (
                next(name for name in self.opts if name.startswith("--")).rpartition("-")[2].upper()
            )
        return super().make_metavar(ctx)

    def get_help_record(self, ctx: click.Context) -> tuple[str, str] | None:
        record = super().get_help_record(ctx)
        if record is None:
            return None
        bounds = self.type.bounds if isinstance(self.type, Number) else ""
        extra = "; ".join(
            filter(None, (self._default_text(), bounds, "required" if self.required else ""))
        )
        return record[0], f"{self.help}  [{extra}]" if extra else f"{self.help}"

    def _default_text(self) -> str:
        shown: object = self.show_default if isinstance(self.show_default, str) else self.default
        if shown is True:
            shown = self.opts[0].lstrip("-")
        is_shown = isinstance(shown, str | int | float | Path) and shown is not False
        return f"default: {shown}" if is_shown else ""


class Argument(click.Argument):
    """An argument with a line of help; see `argument`."""

    def __init__(self, *args: Any, help: str, **settings: Any) -> None:
        super().__init__(*args, **settings)
        self.text = help

    @property
    def label(self) -> str:
        """Its name in a list of arguments."""
        return self.human_readable_name + ("..." if self.nargs == -1 else "")

    def make_metavar(self, ctx: click.Context) -> str:
        name = self.human_readable_name if self.required else f"[{self.human_readable_name}]"
        return name + ("..." if self.nargs == -1 else "")


def option(*names: str, **settings: Any) -> Callable[[F], F]:
    """`click.option`; ``section`` is its heading in the help."""
    return click.option(*names, cls=Option, **settings)


def argument(name: str, *, help: str, **settings: Any) -> Callable[[F], F]:
    """`click.argument` with help."""
    return click.argument(name, cls=Argument, help=help, **settings)


def command(function: Callable[..., Any]) -> Command:
    """A command that is a verb of its own; commands of a group have `Group.command`."""
    return click.command(cls=Command)(function)


class Command(click.Command):
    """A command whose docstring ends with ``Example: ...``, shown below the options."""

    def format_help(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        _write_help(self, ctx, formatter)


def was_given(parameter: str) -> bool:
    """Whether an option of the running command was typed, and is not its default."""
    source = click.get_current_context().get_parameter_source(parameter)
    return source is click.core.ParameterSource.COMMANDLINE


class Group(click.Group):
    """Commands below one verb, listed in the order of their declaration."""

    command_class = Command

    def __init__(
        self, *args: Any, other_names: Mapping[str, str] | None = None, **settings: Any
    ) -> None:
        super().__init__(*args, **settings)
        self._other_names = other_names or {}
        """Names that other tools use to the command that is meant."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        return list(self.commands)

    def summaries(self) -> list[tuple[str, str]]:
        """Each command with the first line of its help."""
        return [(name, summary(part)) for name, part in self.commands.items()]

    def format_help(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        _write_help(self, ctx, formatter)

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        with formatter.section("Commands"):
            formatter.write_dl(self.summaries())

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        name, known = args[0], self.list_commands(ctx)
        if name not in known and not name.startswith("-") and not ctx.resilient_parsing:
            meant = self._other_names.get(name)
            near = [meant] if meant else difflib.get_close_matches(name, known, n=1)
            ctx.fail(f"No such command {name!r}." + (f" Did you mean {near[0]!r}?" if near else ""))
        return super().resolve_command(ctx, args)


class ServingGroup(Group):
    """A command that runs by itself, and has commands about what it runs below it."""

    def __init__(self, *args: Any, callback: Callable[..., Any], **settings: Any) -> None:
        def run(**parameters: Any) -> None:
            ctx = click.get_current_context()
            if ctx.invoked_subcommand is None:
                callback(**parameters)
                return
            for parameter in self.params:
                source = ctx.get_parameter_source(str(parameter.name))
                if source is click.core.ParameterSource.COMMANDLINE:
                    ctx.fail(
                        f"{parameter.opts[0]} is for starting it, not for {ctx.invoked_subcommand}."
                    )

        super().__init__(
            *args,
            callback=run,
            invoke_without_command=True,
            subcommand_metavar="[COMMAND] [ARGS]...",
            **settings,
        )


class Verb(NamedTuple):
    """Where a command is, as ``module:name``, and the first line of its help."""

    home: str
    help: str

    def load(self) -> click.Command:
        """Import the command."""
        module, _, attribute = self.home.partition(":")
        found = getattr(importlib.import_module(module), attribute)
        assert isinstance(found, click.Command), self.home
        return found


class LazyGroup(Group):
    """A group whose commands are imported when they are used."""

    def __init__(self, *args: Any, verbs: Mapping[str, Verb], **settings: Any) -> None:
        super().__init__(*args, **settings)
        self._verbs = verbs

    def list_commands(self, ctx: click.Context) -> list[str]:
        return list(self._verbs)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        verb = self._verbs.get(cmd_name)
        return None if verb is None else verb.load()

    def summaries(self) -> list[tuple[str, str]]:
        return [(name, verb.help) for name, verb in self._verbs.items()]

    def shell_complete(self, ctx: click.Context, incomplete: str) -> list[CompletionItem]:
        from click.shell_completion import CompletionItem

        verbs = [
            CompletionItem(name, help=verb.help)
            for name, verb in self._verbs.items()
            if name.startswith(incomplete)
        ]
        # Without `click.Group`, which would import every command.
        return verbs + click.Command.shell_complete(self, ctx, incomplete)


def summary(part: click.Command) -> str:
    """The first paragraph of a command's help, on one line."""
    return " ".join(inspect.cleandoc(part.help or "").partition("\n\n")[0].split())


def _write_help(shown: Command | Group, ctx: click.Context, formatter: click.HelpFormatter) -> None:
    text, _, example = inspect.cleandoc(shown.help or "").partition(_EXAMPLE)
    shown.format_usage(ctx, formatter)
    formatter.write_paragraph()
    with formatter.indentation():
        formatter.write_text(text)
    sections: dict[str, list[tuple[str, str]]] = {"Arguments": [], OPTIONS: []}
    for parameter in shown.get_params(ctx):
        if isinstance(parameter, Argument):
            sections["Arguments"].append((parameter.label, parameter.text))
        elif (record := parameter.get_help_record(ctx)) is not None:
            title = parameter.section if isinstance(parameter, Option) else OPTIONS
            sections.setdefault(title, []).append(record)
    for title, records in sections.items():
        if records:
            with formatter.section(title):
                formatter.write_dl(records)
    if isinstance(shown, Group):
        shown.format_commands(ctx, formatter)
    if example:
        # Not wrapped: it is for copying.
        formatter.write(f"\n  Example: {example}\n")
