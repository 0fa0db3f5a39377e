"""What a topic or a broker allows, as three bits: 4 read, 2 write, 1 inherit.

6 is a normal topic, 4 read-only, 2 write-only, 7 a template for new topics.
"""

from __future__ import annotations

from penstock.errors import InvalidArgument
from penstock.model.names import INHERIT, READ, WRITE

_ALL = READ | WRITE | INHERIT


def check_permission(permission: int) -> int:
    """The permission itself, if a topic may have it."""
    if not 0 <= permission <= _ALL:
        raise InvalidArgument(
            f"permission {permission}", expected="0 to 7: the sum of 4 read, 2 write, 1 inherit"
        )
    return permission


def permission_text(permission: int) -> str:
    """Such as ``RW-``, the form RocketMQ's tools print."""
    return "".join(
        letter if permission & bit else "-"
        for bit, letter in ((READ, "R"), (WRITE, "W"), (INHERIT, "X"))
    )
