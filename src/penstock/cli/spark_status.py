"""``penstock spark status``: Spark streams that commit to groups, and how far they are behind."""

from __future__ import annotations

import time
from dataclasses import dataclass
from typing import TYPE_CHECKING

from penstock.cli import output
from penstock.cli.commands import argument, command, option
from penstock.cli.name_completion import complete_groups, guessing_group
from penstock.cli.output import Column, Table, json_flag
from penstock.cli.target import Target, on_cluster
from penstock.errors import GroupNotFound, InvalidArgument
from penstock.runtime.durations import seconds

if TYPE_CHECKING:
    from penstock import Admin
    from penstock.admin import QueueLag

OVER = "2s"
_LEAST_SECONDS = 0.1

_COLUMNS = (
    Column("group"),
    Column("topics", whole=True),
    Column("streams", align="right", style=lambda count: "" if count else "yellow"),
    Column("rate", "rate/s", align="right"),
    Column("lag", align="right", style=lambda lag: "yellow" if lag else ""),
    Column("last_ms", "read up to", format=output.local_time),
    Column("behind_since_ms", "behind since", format=output.local_time),
)


@dataclass(frozen=True, slots=True)
class Standing:
    """Where a group stands at a moment."""

    moment: float
    queues: list[QueueLag]

    @property
    def committed(self) -> int:
        return sum(queue.committed for queue in self.queues)


@command
@on_cluster
@argument(
    "group",
    metavar="[GROUP]",
    required=False,
    shell_complete=complete_groups,
    help="Only this consumer group.",
)
@option("--over", metavar="DURATION", default=OVER, help="Time that the rate is measured over.")
@json_flag
def show_status(target: Target, group: str | None, over: str, as_json: bool) -> None:
    """Spark streams that commit to a group: rate, lag, and since when they are behind.

    Shows the groups with a running stream, or the one that is named. "Read up to" is the store time
    of the newest message that was read, "behind since" that of the last one read in the queue that
    is furthest behind. Both follow the last finished micro-batch.

    Example: penstock spark status audit
    """
    pause = seconds(over)
    if pause < _LEAST_SECONDS:
        raise InvalidArgument(f"--over {over!r}", expected=f"at least {_LEAST_SECONDS} seconds")
    with target.admin() as admin:
        if group is None:
            streams = {name: len(admin.streams(name)) for name in admin.groups()}
            chosen = sorted(name for name, count in streams.items() if count)
        else:
            with guessing_group(admin, group):
                _look(admin, group)
            chosen, streams = [group], {group: len(admin.streams(group))}
        before = {name: _look(admin, name) for name in chosen}
        if chosen:
            time.sleep(pause)
        rows = [_row(name, streams[name], before[name], _look(admin, name)) for name in chosen]
    nothing = "No running Spark stream commits to a group. Streams need option group to be seen."
    output.show(Table(_COLUMNS, rows, empty=nothing), as_json=as_json)


def _look(admin: Admin, group: str) -> Standing:
    try:
        queues = admin.group_lag(group)
    except GroupNotFound:
        if not admin.streams(group):
            raise
        queues = []  # a stream that has not finished its first batch
    return Standing(time.monotonic(), queues)


def _row(group: str, streams: int, before: Standing, now: Standing) -> dict[str, object]:
    late = [queue for queue in now.queues if queue.lag]
    rate = (now.committed - before.committed) / (now.moment - before.moment)
    return {
        "group": group,
        "topics": sorted({queue.topic for queue in now.queues}),
        "streams": streams,
        "rate": round(rate, 1) if streams else 0.0,
        "lag": sum(queue.lag for queue in late),
        "last_ms": max((queue.last_timestamp for queue in now.queues), default=0) or None,
        "behind_since_ms": min((queue.last_timestamp for queue in late), default=0) or None,
    }
