"""``penstock tail --group``: a member of a consumer group whose handler prints.

The members of a group must subscribe to the same and consume in the same way, else messages are
missed. So this member takes both from the members that are connected, and refuses what differs.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from datetime import datetime
from typing import TYPE_CHECKING

from penstock.cli import output
from penstock.cli.name_completion import guessing_topic
from penstock.cli.target import Target
from penstock.cli.times import position
from penstock.errors import InvalidArgument

if TYPE_CHECKING:
    from penstock import Admin
    from penstock.model import StoredMessage, Subscription

_LEAVE_SECONDS = 1.0
"""How long a stop waits for a message beyond the limit, which is not acknowledged."""


def consume(
    target: Target,
    topic: str,
    group: str,
    *,
    tag: str | None,
    start: str | None,
    limit: int | None,
    show: Callable[[StoredMessage], None],
) -> None:
    """Print messages as a member until Ctrl-C, or until ``limit`` are printed."""
    from penstock import PushConsumer

    with target.admin() as admin, guessing_topic(admin, topic):
        admin.route(topic)
        known = _subscribed(admin, group, topic)
        members = admin.members(group)
        models = {seen.message_model for seen in admin.connections(group).values()}
    if any(model is not None and model.value == "BROADCASTING" for model in models):
        raise InvalidArgument(
            f"--group {group!r}: its members broadcast, so each gets every message",
            expected="a group whose members share the messages",
            hint="penstock tail without --group shows the same messages",
        )
    orderly = any(member.is_orderly for member in members)
    consumer = PushConsumer(
        group,
        start_from=_start(start),
        orderly=orderly,
        threads=1,
        **target.access.as_keywords(),
    )
    printing = _Printing(show, limit)
    if known is not None and known.expression_type != "TAG":
        _refuse_other(tag, known, group)
        consumer.on(topic, sql=known.expression)(printing)
    else:
        if known is not None and tag is not None and _tags(tag) != _tags(known.expression):
            _refuse_other(tag, known, group)
        expression = "*" if known is None else known.expression
        consumer.on(topic, tags=tag or expression)(printing)
    output.note(_joined(group, len(members)))
    consumer.start()
    try:
        printing.ended.wait()
    except KeyboardInterrupt:
        # That is how it is meant to end.
        pass
    finally:
        printing.is_leaving = True
        consumer.stop(_LEAVE_SECONDS)
        printing.released.set()
    if printing.failure is not None:
        raise printing.failure


def _joined(group: str, members: int) -> str:
    others = f" beside {output.counted(members, 'other member')}" if members else ""
    return output.plain(
        f"Joined group {group}{others}: what is printed is acknowledged; Ctrl-C leaves."
    )


def _subscribed(admin: Admin, group: str, topic: str) -> Subscription | None:
    """The subscription of the connected members to a topic; refuses a group without it."""
    subscribed = admin.subscriptions(group)
    found = next((wanted for wanted in subscribed if wanted.topic == topic), None)
    if found is None and (others := [w.topic for w in subscribed if not w.topic.startswith("%")]):
        raise InvalidArgument(
            f"--group {group!r}: its connected members subscribe to {', '.join(others)}, "
            f"not to {topic!r}",
            expected="a topic of the group: members with different subscriptions miss messages",
            hint="choose another group",
        )
    return found


def _refuse_other(tag: str | None, known: Subscription, group: str) -> None:
    if tag is not None:
        raise InvalidArgument(
            f"--tag {tag!r}: the connected members of group {group!r} subscribe with "
            f"{known.expression!r}",
            expected="the same subscription, or none given: members with different "
            "subscriptions miss messages",
        )


def _tags(expression: str) -> frozenset[str]:
    return frozenset(part.strip() for part in expression.split("||"))


def _start(text: str | None) -> str | datetime:
    if text is None:
        return "last"
    start = position(text, option="--from")
    if isinstance(start, int):
        raise InvalidArgument(
            f"--from {text} with --group",
            expected="first, last or a time, for a group that has no offsets yet",
            hint="penstock group reset moves a group to an offset",
        )
    return start


class _Printing:
    """The handler: prints until the limit; what comes after it is left unacknowledged."""

    def __init__(self, show: Callable[[StoredMessage], None], limit: int | None) -> None:
        self._show = show
        self._left = limit
        self.ended = threading.Event()
        self.released = threading.Event()
        self.is_leaving = False
        self.failure: BaseException | None = None

    def __call__(self, message: StoredMessage) -> None:
        if self.is_leaving or self.ended.is_set():
            self._leave()
        try:
            self._show(message)
        except BaseException as error:
            # The reader of the pipe is gone, or the disk is full: not printed, not acknowledged.
            self.failure = error
            self.ended.set()
            self._leave()
        if self._left is not None:
            self._left -= 1
            if self._left <= 0:
                self.ended.set()

    def _leave(self) -> None:
        """Do not end before the consumer has given up the message, so that it comes again."""
        self.released.wait()
        raise RuntimeError("the command ended before this message was printed")
