"""Dead letters on the command line: selected, and as rows of a table."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from penstock.cli import messages, output
from penstock.cli.output import Column

if TYPE_CHECKING:
    from penstock.admin import DeadLetterRow

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
