"""``penstock group lag``: how far a group is behind, once or again and again."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from penstock.cli import output
from penstock.cli.commands import command, option
from penstock.cli.name_completion import complete_topics, group_argument, guessing_group
from penstock.cli.output import Column, Table, json_flag
from penstock.cli.target import Target, on_cluster
from penstock.errors import InvalidArgument, RemotingError, ServiceNotAvailable
from penstock.runtime.durations import seconds

if TYPE_CHECKING:
    from penstock import Admin
    from penstock.admin import Member, QueueLag
    from penstock.admin.plain_rows import LagQueueJson
    from penstock.model import MessageQueue

EVERY = "2s"
_LEAST_SECONDS = 0.1
_CLEAR = "\x1b[H\x1b[2J"

_BROKER = Column("broker")
_COLUMNS = (
    Column("queue_id", "queue", align="right"),
    Column("committed", align="right"),
    Column("latest", align="right"),
    Column(
        "lag", align="right", style=lambda lag: "yellow" if isinstance(lag, int) and lag else ""
    ),
    Column("in_flight", "in flight", align="right"),
    Column("last_ms", "consumed up to", format=lambda moment: _short_time(moment)),
)
_MEMBER = Column("members", "member")


@dataclass(frozen=True, slots=True)
class Standing:
    """Where a group stands at a moment."""

    moment: float
    queues: list[QueueLag]
    holders: dict[MessageQueue, list[str]]

    @property
    def behind(self) -> int:
        """The lag of all queues."""
        return sum(queue.lag for queue in self.queues)

    def rows(self) -> list[LagQueueJson]:
        """A row for each queue."""
        from penstock.admin.plain_rows import lag_queue

        return [lag_queue(queue, self.holders) for queue in self.queues]

    def rates_since(self, before: Standing | None) -> tuple[float, float] | None:
        """Messages per second that arrived and were consumed between two moments."""
        if before is None or self.moment <= before.moment:
            return None
        elapsed = self.moment - before.moment
        arrived = sum(q.latest for q in self.queues) - sum(q.latest for q in before.queues)
        consumed = sum(q.committed for q in self.queues) - sum(q.committed for q in before.queues)
        return arrived / elapsed, consumed / elapsed


@command
@on_cluster
@group_argument
@option("--topic", help="Only this topic.", shell_complete=complete_topics)
@option("--watch", "-w", is_flag=True, help="Update it, with rates, until Ctrl-C.")
@option(
    "--every",
    metavar="DURATION",
    help="Time between two updates; implies --watch.",
    show_default=EVERY,
)
@json_flag
def show_lag(
    target: Target,
    group: str,
    topic: str | None,
    watch: bool,
    every: str | None,
    as_json: bool,
) -> None:
    """How far a group is behind, queue by queue, its retries included.

    Shows the member that holds each queue, where the members report it. With --watch and --json,
    one object per line.

    Example: penstock group lag billing --topic orders --watch
    """
    pause = _pause(every)
    with target.admin() as admin:
        with guessing_group(admin, group):
            found = _look(admin, group, topic)
        if not (watch or every is not None):
            if as_json:
                output.print_json(found.rows())
            else:
                show(found, group, topic)
            return
        try:
            _watch(admin, group, topic, found, pause, as_json=as_json)
        except KeyboardInterrupt:
            # That is how it is meant to end.
            return


def _pause(every: str | None) -> float:
    pause = seconds(EVERY if every is None else every)
    if pause < _LEAST_SECONDS:
        raise InvalidArgument(f"--every {every!r}", expected=f"at least {_LEAST_SECONDS} seconds")
    return pause


def _look(admin: Admin, group: str, topic: str | None) -> Standing:
    queues = admin.group_lag(group, topic=topic)
    return Standing(time.monotonic(), queues, _holders(admin.members(group)))


def _holders(members: Iterable[Member]) -> dict[MessageQueue, list[str]]:
    """The client ids of the members that hold a queue: one, or all when they broadcast."""
    found: dict[MessageQueue, list[str]] = {}
    for member in members:
        for queue in member.queues or ():
            found.setdefault(queue, []).append(member.client.client_id)
    return found


def show(
    found: Standing,
    group: str,
    topic: str | None = None,
    rates: tuple[float, float] | None = None,
) -> None:
    """Print a table for each topic, and what would be repeated in its rows only once.

    A watch is of use only while all of it is on the screen, which is often 80 columns wide.
    """
    if not found.queues:
        where = "" if topic is None else f" in {topic}"
        output.note(output.plain(f"Group {group} has committed no offsets{where}."))
        return
    rows = found.rows()
    client_ids = sorted({one for row in rows for one in row["members"] or ()})
    numbers = {client_id: number for number, client_id in enumerate(client_ids, start=1)}
    output.show_all(*_tables(rows, numbers))
    if numbers:
        output.say("")
    for client_id, number in numbers.items():
        output.say(output.plain(f"member {number}: {client_id}"))
    note = f"{found.behind} behind in {output.counted(len(rows), 'queue')}"
    if rates is not None:
        note += f"; {rates[0]:.1f} per second arrive, {rates[1]:.1f} are consumed"
    output.note(note)


def _tables(rows: Sequence[LagQueueJson], numbers: Mapping[str, int]) -> Iterator[Table]:
    """A table for each topic; members are shown as ``numbers``, as their ids are long."""
    for name in dict.fromkeys(row["topic"] for row in rows):
        of_topic = [row for row in rows if row["topic"] == name]
        brokers = {row["broker"] for row in of_topic}
        shown = [
            {**row, "members": row["members"] and [numbers[one] for one in row["members"]]}
            for row in of_topic
        ]
        yield Table(
            (
                *([] if len(brokers) == 1 else [_BROKER]),
                *_COLUMNS,
                *([_MEMBER] if numbers else []),
            ),
            shown,
            title=f"{name} on {brokers.pop()}" if len(brokers) == 1 else name,
        )


def _short_time(moment: object) -> str:
    """A local time, without the year if it is the present one."""
    this_year = output.local_time(time.time_ns() // 1_000_000)[:5]
    return output.local_time(moment).removeprefix(this_year)


def _watch(
    admin: Admin,
    group: str,
    topic: str | None,
    found: Standing,
    pause: float,
    *,
    as_json: bool,
    sleep: Callable[[float], None] = time.sleep,
) -> None:
    before: Standing | None = None
    while True:
        rates = found.rates_since(before)
        if as_json:
            output.print_json_line(
                {
                    "time_ms": time.time_ns() // 1_000_000,
                    "group": group,
                    "lag": found.behind,
                    "arrived_per_second": None if rates is None else round(rates[0], 3),
                    "consumed_per_second": None if rates is None else round(rates[1], 3),
                    "queues": found.rows(),
                }
            )
        else:
            _draw_heading(group)
            show(found, group, topic, rates)
        sleep(pause)
        before = found
        found = _look_until_answered(admin, group, topic, pause, sleep)


def _look_until_answered(
    admin: Admin, group: str, topic: str | None, pause: float, sleep: Callable[[float], None]
) -> Standing:
    """The next look; while servers are away it waits for them."""
    is_in_trouble = False
    while True:
        try:
            return _look(admin, group, topic)
        except (RemotingError, ServiceNotAvailable) as error:
            if not is_in_trouble:
                output.note(output.plain(f"{error.what}; waiting for it; Ctrl-C stops"))
            is_in_trouble = True
            sleep(pause)


def _draw_heading(group: str) -> None:
    now = output.local_time(time.time_ns() // 1_000_000)
    if sys.stdout.isatty():
        output.say(f"{_CLEAR}Group {output.plain(group)} at {now}")
    else:
        output.say(now)
