"""A stored message as a plain object: the JSON of the command line and of the console's exports."""

from __future__ import annotations

from base64 import b64encode

from penstock.model.message import StoredMessage


def message_json(message: StoredMessage, *, hide_body: bool = False) -> dict[str, object]:
    """A message as an object; a body that is not UTF-8 is in ``body_base64`` instead."""
    body: dict[str, object] = {"body": None}
    if not hide_body:
        try:
            body = {"body": message.body.decode()}
        except UnicodeDecodeError:
            body["body_base64"] = b64encode(message.body).decode()
    return {
        "topic": message.topic,
        "broker": message.queue.broker_name,
        "queue_id": message.queue.queue_id,
        "queue_offset": message.queue_offset,
        "msg_id": message.msg_id,
        "offset_msg_id": message.offset_msg_id,
        "tags": message.tag,
        "keys": list(message.keys),
        **body,
        "properties": message.properties,
        "born_timestamp": message.born_timestamp,
        "store_timestamp": message.store_timestamp,
        "born_host": message.born_host,
        "store_host": message.store_host,
        "reconsume_times": message.reconsume_times,
        "sys_flag": message.sys_flag,
    }
