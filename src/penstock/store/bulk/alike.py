"""Single messages that are alike but for their unique ids, as one producer sends them in a row.

What is read of their properties is read once for all of them.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from penstock.model.properties import UNIQUE_KEY, indexed_values

_END: Final = b"\x02"


def shared_tag(properties: Sequence[bytes], ids: Sequence[bytes]) -> bytes | None:
    """The tag of messages whose properties differ in the unique id alone and that have no keys.

    ``ids`` has the unique ids. None for other messages.
    """
    first, first_id = properties[0], ids[0]
    at = first.find(UNIQUE_KEY)
    start = at + len(UNIQUE_KEY)
    head, tail = first[:start], first[start + len(first_id) :]
    if at < 0 or not first_id or not tail.startswith(_END) or (at and first[at - 1 : at] != _END):
        return None
    # Bytes of one length each, put together: equal only if each is.
    if (
        len(set(map(len, ids))) > 1
        or len(set(map(len, properties))) > 1
        or b"".join((head, (tail + head).join(ids), tail)) != b"".join(properties)
        or _END in b"".join(ids)
    ):
        return None
    unique_id, words, tag = indexed_values(first)
    # Of two ids in one message the last counts, which may not be the one that differs.
    return None if words or unique_id != first_id else tag
