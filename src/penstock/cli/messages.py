"""Messages on the command line: as text, and filtered."""

from __future__ import annotations

import ast
import builtins
import difflib
import re
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from datetime import UTC, datetime
from types import CodeType
from typing import TYPE_CHECKING

from penstock.cli.commands import option
from penstock.cli.output import local_time, plain
from penstock.errors import InvalidArgument

if TYPE_CHECKING:
    from penstock.model import StoredMessage

BODY_SHOWN = 200
"""Characters of a body shown in one line."""

tag_option = option("--tag", "--tags", "tag", help="Only these tags, as in 'created || paid'.")
settled_flag = option("--all", "settled", is_flag=True, help="Also redriven and purged ones.")
key_option = option(
    "--key", "keys", multiple=True, help="Only messages with this key; may be repeated."
)
where_option = option(
    "--where",
    metavar="EXPRESSION",
    help="Only where this Python expression is true. Names: body, text, json, tag, keys, "
    "properties, topic, origin_topic, broker, queue_id, offset, msg_id, born, stored, size, "
    "reconsume_times, reason, reason_type, attempts, message.",
)


# As text


def body_text(body: bytes, limit: int | None = None) -> str:
    """A readable body: its text, or its size and first bytes."""
    text = _text(body)
    if text is None:
        shown = body[:16].hex(" ")
        return f"({len(body)} bytes: {shown}{' ...' if len(body) > 16 else ''})"
    if limit is not None and len(text) > limit:
        return f"{plain(text[:limit])}... ({len(body)} bytes)"
    return plain(text)


def _text(body: bytes) -> str | None:
    try:
        return body.decode()
    except UnicodeDecodeError:
        return None


def as_line(message: StoredMessage) -> str:
    """A message on one line: time, queue, tag, keys, body."""
    queue = message.queue
    parts = [local_time(message.store_timestamp), f"{queue.broker_name}:{queue.queue_id}"]
    parts[-1] += f"@{message.queue_offset}"
    if message.tag:
        parts.append(f"[{plain(message.tag)}]")
    if message.keys:
        parts.append(plain(",".join(message.keys)))
    if message.reconsume_times:
        parts.append(f"(tried {message.reconsume_times} times)")
    return "  ".join([*parts, body_text(message.body, BODY_SHOWN).replace("\n", "\\n")])


# Filters


def _moment(milliseconds: int) -> datetime:
    return datetime.fromtimestamp(milliseconds / 1000, UTC).astimezone()


def _json(message: StoredMessage) -> object:
    import orjson

    try:
        return orjson.loads(message.body)
    except orjson.JSONDecodeError:
        return None


def _letter(name: str) -> Callable[[StoredMessage], object]:
    def value(message: StoredMessage) -> object:
        from penstock.admin import DeadLetterRow

        return getattr(DeadLetterRow.from_message(message), name)

    return value


NAMES: dict[str, Callable[[StoredMessage], object]] = {
    "message": lambda m: m,
    "body": lambda m: m.body,
    "text": lambda m: m.body.decode("utf-8", "replace"),
    "json": _json,
    "size": lambda m: len(m.body),
    "tag": lambda m: m.tag,
    "keys": lambda m: m.keys,
    "properties": lambda m: m.properties,
    "topic": lambda m: m.topic,
    "broker": lambda m: m.queue.broker_name,
    "queue_id": lambda m: m.queue.queue_id,
    "offset": lambda m: m.queue_offset,
    "msg_id": lambda m: m.msg_id,
    "born": lambda m: _moment(m.born_timestamp),
    "stored": lambda m: _moment(m.store_timestamp),
    "reconsume_times": lambda m: m.reconsume_times,
    "origin_topic": _letter("origin_topic"),
    "reason": _letter("reason"),
    "reason_type": _letter("reason_type"),
    "attempts": _letter("attempts"),
}
"""What an expression may use, and how it is had."""

_MODULES = {"re": re, "datetime": datetime}


@dataclass(slots=True)
class Expression:
    """A Python expression over one message, typed by the person who runs the command."""

    text: str
    _code: CodeType = field(init=False, repr=False)
    _used: tuple[str, ...] = field(init=False, repr=False)
    failures: int = 0
    first_failure: str | None = None

    def __post_init__(self) -> None:
        try:
            tree = ast.parse(self.text.strip(), "--where", "eval")
        except (SyntaxError, ValueError) as error:
            raise InvalidArgument(
                f"--where {self.text!r} is not Python: {getattr(error, 'msg', error)}",
                expected="an expression such as \"json['total'] > 100\"",
            ) from None
        read, bound = _names(tree)
        unknown = sorted(read - bound - NAMES.keys() - _MODULES.keys() - set(dir(builtins)))
        if unknown:
            near = difflib.get_close_matches(unknown[0], NAMES, n=1)
            raise InvalidArgument(
                f"--where {self.text!r} uses {unknown[0]!r}",
                expected=f"names among {', '.join(NAMES)}",
                hint=f"did you mean {near[0]}?" if near else None,
            )
        self._code = compile(tree, "--where", "eval")
        self._used = tuple(sorted(read & NAMES.keys()))

    def __call__(self, message: StoredMessage) -> bool:
        """Whether it is true for a message. A failure counts as false and is counted."""
        names = {name: NAMES[name](message) for name in self._used}
        try:
            # Globals, so that comprehensions see the names, too.
            return bool(eval(self._code, {**_MODULES, **names}))
        except Exception as error:
            self.failures += 1
            if self.first_failure is None:
                self.first_failure = f"{type(error).__name__}: {error}"
            return False


def _names(tree: ast.AST) -> tuple[set[str], set[str]]:
    read: set[str] = set()
    bound: set[str] = set()
    for node in ast.walk(tree):
        if isinstance(node, ast.Name):
            (read if isinstance(node.ctx, ast.Load) else bound).add(node.id)
        elif isinstance(node, ast.arg):
            bound.add(node.arg)
    return read, bound


class Filter:
    """Selects messages by tag, by key and by expression; all given conditions must hold."""

    def __init__(
        self,
        tag: str | None = None,
        keys: Iterable[str] | None = None,
        where: str | None = None,
    ) -> None:
        self._tags = _tags(tag)
        self._keys = frozenset(keys or ())
        self.expression = None if where is None else Expression(where)

    @property
    def is_open(self) -> bool:
        """Whether every message passes."""
        return self._tags is None and not self._keys and self.expression is None

    def __call__(self, message: StoredMessage) -> bool:
        """Whether a message passes."""
        if self._tags is not None and message.tag not in self._tags:
            return False
        if self._keys and not self._keys.intersection(message.keys):
            return False
        return self.expression is None or self.expression(message)

    def complaint(self) -> str | None:
        """A note for the end of the output if the expression failed for some messages."""
        found = self.expression
        if found is None or not found.failures:
            return None
        return (
            f"--where {found.text!r} failed for {found.failures} messages, which were skipped: "
            f"{found.first_failure}"
        )


def _tags(expression: str | None) -> frozenset[str] | None:
    if expression is None or expression.strip() == "*":
        return None
    tags = frozenset(filter(None, (part.strip() for part in expression.split("||"))))
    if not tags:
        raise InvalidArgument(f"--tag {expression!r}", expected="tags such as 'created || paid'")
    return tags
