"""Where reading starts: what a user typed, as an offset in each queue."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, NamedTuple

from penstock.cli.times import moment_ms, position
from penstock.model import MessageQueue

if TYPE_CHECKING:
    from penstock import Admin
    from penstock.admin.queue_reading import Stretch


class Start(NamedTuple):
    """Where reading starts: an offset in each queue, and the earliest store time."""

    offsets: dict[MessageQueue, int]
    not_before_ms: int = 0


def start_at(
    admin: Admin, topic: str, where: str, held: Mapping[MessageQueue, Stretch], *, option: str
) -> Start:
    """The offsets at which to start for a `position` that a user typed."""
    wanted = position(where, option=option)
    if wanted == "first":
        return Start({queue: part.start for queue, part in held.items()})
    if wanted == "last":
        return Start({queue: part.end for queue, part in held.items()})
    if isinstance(wanted, int):
        return Start({q: min(max(wanted, part.start), part.end) for q, part in held.items()})
    found = admin.offsets_at(topic, wanted)
    not_before_ms = moment_ms(where, option=option)
    return Start({queue: found[queue] for queue in held if queue in found}, not_before_ms)
