"""Records of the schedule topic: how a delayed message is stored, and what it becomes when due.

A delayed message is stored in the schedule topic, one queue per level; its properties name its
topic and queue. When it is due it is stored again in that queue with the same properties.
"""

from __future__ import annotations

from penstock.model.names import SCHEDULE_TOPIC, Property
from penstock.model.properties import encode_stored, parse_properties
from penstock.protocol.delays import DelayLevels
from penstock.protocol.records.codec import Record
from penstock.store import Draft, draft_of


def delayed(draft: Draft, properties: dict[str, str], level: int, levels: DelayLevels) -> Draft:
    """The draft for the schedule topic; ``properties`` are the draft's, parsed."""
    level = levels.clamp(level)
    waiting = {
        **properties,
        Property.DELAY: str(level),
        Property.REAL_TOPIC: draft.topic,
        Property.REAL_QUEUE_ID: str(draft.queue_id),
    }
    return draft._replace(
        topic=SCHEDULE_TOPIC, queue_id=level - 1, properties=encode_stored(waiting)
    )


def due(record: Record) -> Draft | None:
    """The message to store when a delayed record is due; None if the record names no topic."""
    properties = parse_properties(record.properties)
    topic = properties.get(Property.REAL_TOPIC)
    if topic is None:
        return None
    queue_id = _queue_id(properties.get(Property.REAL_QUEUE_ID, ""))
    return draft_of(record, topic, queue_id, record.properties)


def _queue_id(text: str) -> int:
    """The queue id in a record, which another program may have written."""
    return int(text) if text.isascii() and text.isdecimal() and len(text) < 10 else 0
