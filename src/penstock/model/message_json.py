"""A stored message as a plain object: the JSON of the command line and of the console's exports."""

from __future__ import annotations

from base64 import b64encode
from typing import NotRequired, TypedDict

from penstock.model.message import StoredMessage


class MessageJson(TypedDict):
    """A message; a body that is not UTF-8 is in ``body_base64`` instead."""

    topic: str
    broker: str
    queue_id: int
    queue_offset: int
    msg_id: str
    offset_msg_id: str
    tags: str | None
    keys: list[str]
    body: str | None
    body_base64: NotRequired[str]
    properties: dict[str, str]
    born_timestamp: int
    store_timestamp: int
    born_host: str
    store_host: str
    reconsume_times: int
    sys_flag: int


def message_json(message: StoredMessage, *, hide_body: bool = False) -> MessageJson:
    """A message as an object."""
    text: str | None = None
    encoded: str | None = None
    if not hide_body:
        try:
            text = message.body.decode()
        except UnicodeDecodeError:
            encoded = b64encode(message.body).decode()
    shown: MessageJson = {
        "topic": message.topic,
        "broker": message.queue.broker_name,
        "queue_id": message.queue.queue_id,
        "queue_offset": message.queue_offset,
        "msg_id": message.msg_id,
        "offset_msg_id": message.offset_msg_id,
        "tags": message.tag,
        "keys": list(message.keys),
        "body": text,
        "properties": dict(message.properties),
        "born_timestamp": message.born_timestamp,
        "store_timestamp": message.store_timestamp,
        "born_host": message.born_host,
        "store_host": message.store_host,
        "reconsume_times": message.reconsume_times,
        "sys_flag": message.sys_flag,
    }
    if encoded is not None:
        shown["body_base64"] = encoded
    return shown
