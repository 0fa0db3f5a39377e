"""Names of topics and groups: what the shell offers, and what was probably meant.

Both ask the cluster. The shell gets nothing, and quickly, when that does not answer.
"""

from __future__ import annotations

import contextlib
import difflib
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING

import click

from penstock.cli.commands import argument
from penstock.cli.target import Target
from penstock.errors import (
    GroupNotFound,
    NameserverUnavailable,
    PenstockError,
    RequestRefused,
    TopicNotFound,
)

if TYPE_CHECKING:
    from penstock import Admin

_COMPLETION_SECONDS = 1.0


def complete_topics(ctx: click.Context, param: click.Parameter, incomplete: str) -> list[str]:
    """For the shell: topics that begin like that."""
    return _complete(ctx, incomplete, lambda admin: admin.topics())


def complete_groups(ctx: click.Context, param: click.Parameter, incomplete: str) -> list[str]:
    """For the shell: groups that begin like that."""
    return _complete(ctx, incomplete, lambda admin: admin.groups())


def _complete(
    ctx: click.Context, incomplete: str, names: Callable[[Admin], list[str]]
) -> list[str]:
    try:
        target = Target.from_parameters(ctx.params)
        with target.admin(timeout=_COMPLETION_SECONDS) as admin:
            return [name for name in names(admin) if name.startswith(incomplete)]
    except PenstockError:
        return []


topic_argument = argument("topic", help="Name of a topic.", shell_complete=complete_topics)
group_argument = argument("group", help="Name of a consumer group.", shell_complete=complete_groups)


@contextlib.contextmanager
def guessing_topic(admin: Admin, topic: str, *, hint: str | None = None) -> Iterator[None]:
    """Add the topic that was probably meant to an error that says there is none of that name.

    ``hint`` replaces that of the error if no name is near: what is to be deleted is not created.
    """
    try:
        yield
    except TopicNotFound as error:
        raise _guessed(error, topic, admin.topics, hint) from error


@contextlib.contextmanager
def guessing_group(admin: Admin, group: str, *, hint: str | None = None) -> Iterator[None]:
    """The same for a group."""
    try:
        yield
    except GroupNotFound as error:
        raise _guessed(error, group, admin.groups, hint) from error


def _guessed(
    error: RequestRefused, name: str, known: Callable[[], list[str]], hint: str | None
) -> RequestRefused:
    try:
        near = nearest(name, known())
    except PenstockError:
        near = None
    if near is None and hint is None:
        return error
    # Without `expected`: what was meant says it better.
    return type(error)(
        error.what, code=error.code, hint=hint if near is None else f"did you mean {near}?"
    )


def other_topics(admin: Admin, topic: str) -> list[str] | None:
    """The topics there are if this one is none of them, else None."""
    try:
        admin.route(topic)
    except TopicNotFound:
        with contextlib.suppress(PenstockError):
            return admin.topics()
        return []
    except NameserverUnavailable:
        return None  # the command waits for it, or fails with its own error
    return None


def nearest(name: str, known: list[str], *, likeness: float = 0.6) -> str | None:
    """The name that was probably meant; ``likeness`` is 1 for the same name."""
    return next(iter(difflib.get_close_matches(name, known, n=1, cutoff=likeness)), None)
