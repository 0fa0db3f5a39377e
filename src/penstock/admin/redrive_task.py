"""A redrive from plan to report: which letters are sent, and which offsets are settled.

Letters are read twice, once to choose and once to send. In between only their places are kept, so
that a million of them fit into memory.
"""

from __future__ import annotations

import itertools
import time
from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from penstock.admin import queue_reading
from penstock.admin.reports import DeadLetterQueue, DeadLetterRow, LetterEdit
from penstock.errors import InvalidArgument
from penstock.runtime.pacing import Pacer

if TYPE_CHECKING:
    from collections.abc import Iterator

    from penstock.admin.blocking import Admin
    from penstock.model import MessageQueue

CHUNK = 64
"""Letters sent per call."""
SAMPLE = 100
"""Letters shown by a dry run."""

Place = tuple["MessageQueue", int]


def stretches_of(
    queues: Iterable[DeadLetterQueue], *, settled: bool
) -> dict[MessageQueue, queue_reading.Stretch]:
    """The pending range of each queue; ``settled`` adds what was redriven or purged."""
    return {
        one.queue: queue_reading.Stretch(one.min_offset if settled else one.settled, one.max_offset)
        for one in queues
    }


def letters_in(
    admin: Admin,
    queues: Iterable[DeadLetterQueue],
    *,
    settled: bool,
    on_read: Callable[[int], None] = lambda count: None,
) -> Iterator[DeadLetterRow]:
    """The letters of all brokers, oldest first; ``settled`` adds redriven and purged ones."""
    stretches = stretches_of(queues, settled=settled)
    return map(DeadLetterRow.from_message, queue_reading.read(admin, stretches, on_read=on_read))


def redriven_anywhere(
    admin: Admin, group: str, letters: list[DeadLetterRow], to: str | None = None
) -> set[str]:
    """The offset ids of letters with a copy in the retry topic, the origin topic or ``to``."""
    done = admin.redriven(group, letters)
    by_topic: dict[str, list[DeadLetterRow]] = defaultdict(list)
    for letter in letters:
        if letter.message.offset_msg_id not in done:
            for topic in {letter.origin_topic, to} - {None}:
                by_topic[str(topic)].append(letter)
    for topic, some in by_topic.items():
        done |= admin.redriven(group, some, to=topic)
    return done


@dataclass(slots=True)
class RedriveTask:
    """The chosen letters and the others: their places decide which offsets are settled."""

    admin: Admin
    group: str
    to: str | None
    queues: list[DeadLetterQueue]
    again: bool = False
    edits: Mapping[str, LetterEdit] = field(default_factory=dict)
    """What to send instead, by offset id."""
    chosen: dict[Place, str] = field(default_factory=dict)
    """Place to id."""
    others: set[Place] = field(default_factory=set)
    """Letters that stay pending: neither chosen nor redriven before."""
    sample: list[DeadLetterRow] = field(default_factory=list)
    sent: dict[Place, str] = field(default_factory=dict)

    def plan(
        self,
        choice: Callable[[DeadLetterRow], bool],
        limit: int | None,
        *,
        on_read: Callable[[int], None] = lambda count: None,
    ) -> None:
        """Choose letters; send nothing."""
        settled = {one.queue: one.settled for one in self.queues}
        stream = letters_in(self.admin, self.queues, settled=self.again, on_read=on_read)
        while part := list(itertools.islice(stream, CHUNK)):
            done = set() if self.again else redriven_anywhere(self.admin, self.group, part, self.to)
            for letter in part:
                message = letter.message
                place = (message.queue, message.queue_offset)
                is_full = limit is not None and len(self.chosen) >= limit
                if message.offset_msg_id in done:
                    continue
                if not is_full and choice(letter):
                    self._choose(letter, place)
                elif message.queue_offset >= settled.get(message.queue, 0):
                    self.others.add(place)

    def _choose(self, letter: DeadLetterRow, place: Place) -> None:
        if self.to is None and letter.origin_topic is None:
            raise InvalidArgument(
                f"dead letter {letter.message.msg_id} has no origin topic, so no handler of group "
                f"{self.group!r} would receive it",
                hint="--to-topic TOPIC, or skip it: --where origin_topic",
            )
        self.chosen[place] = letter.message.msg_id
        if len(self.sample) < SAMPLE:
            self.sample.append(letter)

    def run(
        self,
        rate: float | None,
        *,
        on_sent: Callable[[int], None],
        sleep: Callable[[float], None] = time.sleep,
    ) -> None:
        """Send the chosen letters; then settle everything before the first pending letter.

        It settles also after an error, so that the next run does not read the sent letters again.
        """
        pacer = Pacer(rate, sleep=sleep)
        stream = (
            letter
            for letter in letters_in(self.admin, self.queues, settled=self.again)
            if (letter.message.queue, letter.message.queue_offset) in self.chosen
        )
        try:
            while part := list(itertools.islice(stream, 1 if pacer.is_limiting else CHUNK)):
                pacer.wait(len(part))
                self.admin.redrive(self.group, part, to=self.to, edits=self.edits)
                for letter in part:
                    place = (letter.message.queue, letter.message.queue_offset)
                    self.sent[place] = letter.message.msg_id
                on_sent(len(part))
        finally:
            self._settle()

    @property
    def left(self) -> int:
        """The number that stay pending."""
        return len(self.others) + len(self.chosen.keys() - self.sent.keys())

    def _settle(self) -> None:
        first: dict[MessageQueue, int] = {}
        for queue, offset in self.others | (self.chosen.keys() - self.sent.keys()):
            first[queue] = min(offset, first.get(queue, offset))
        marks = {one.queue: first.get(one.queue, one.max_offset) for one in self.queues}
        moved = {
            one.queue: marks[one.queue] for one in self.queues if marks[one.queue] > one.settled
        }
        if moved:
            self.admin.settle_dead_letters(self.group, moved)

    def report(self, *, dry_run: bool) -> dict[str, object]:
        """The result, or the plan, as JSON values."""
        ids = self.chosen if dry_run else self.sent
        return {
            "group": self.group,
            "to": self.to,
            "dry_run": dry_run,
            "redriven": 0 if dry_run else len(ids),
            "pending": self.left,
            "ids": list(ids.values()),
        }
