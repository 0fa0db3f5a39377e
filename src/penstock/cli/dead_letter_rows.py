"""Dead letters on the command line: selected, and as rows of a table."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from penstock.cli import messages, output
from penstock.cli.output import Column
from penstock.model.message_json import message_json

if TYPE_CHECKING:
    from penstock.admin import DeadLetterRow
    from penstock.model import MessageQueue

REASON_SHOWN = 80
NOT_RECORDED = "not recorded"

LETTER_COLUMNS = (
    Column("store_timestamp", "died", format=output.local_time),
    Column("msg_id", whole=True),
    Column("origin_topic", "topic"),
    Column("tags"),
    Column("keys"),
    Column("attempts", align="right"),
    Column("reason_text", "reason"),
    Column("state"),
)


@dataclass(frozen=True, slots=True)
class Choice:
    """Selects the dead letters of a command."""

    wanted: messages.Filter
    reason: str | None = None
    ids: frozenset[str] = frozenset()

    def __call__(self, letter: DeadLetterRow) -> bool:
        """Whether a letter is selected."""
        message = letter.message
        if self.ids and not self.ids.intersection((message.msg_id, message.offset_msg_id)):
            return False
        if self.reason is not None:
            said = f"{letter.reason_type or ''} {letter.reason or ''}".lower()
            if self.reason.lower() not in said:
                return False
        return self.wanted(message)


def row(
    letter: DeadLetterRow, redriven: set[str], settled: dict[MessageQueue, int]
) -> dict[str, object]:
    """A letter as a row; ``redriven`` has offset ids, ``settled`` the settled offset by queue."""
    message = letter.message
    state = "pending"
    if message.offset_msg_id in redriven:
        state = "redriven"
    elif message.queue_offset < settled.get(message.queue, 0):
        state = "settled"
    return {
        **message_json(message),
        "origin_topic": letter.origin_topic,
        "origin_msg_id": letter.origin_msg_id,
        "attempts": letter.attempts,
        "reason_type": letter.reason_type,
        "reason": letter.reason,
        "reason_text": reason_text(letter, REASON_SHOWN),
        "host": letter.host,
        "redrives": letter.redrives,
        "state": state,
    }


def reason_text(letter: DeadLetterRow, limit: int | None = None) -> str:
    """The reason on one line."""
    said = ": ".join(filter(None, (letter.reason_type, letter.reason))) or NOT_RECORDED
    return said if limit is None or len(said) <= limit else f"{said[:limit]}..."
