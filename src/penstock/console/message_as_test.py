"""A message as a test: the one that made trouble, against the reader's own handler."""

from __future__ import annotations

import json
import re

from penstock.model import StoredMessage
from penstock.model.names import Property

_SYSTEM = frozenset(value for name, value in vars(Property).items() if name.isupper())


def as_test(message: StoredMessage) -> str:
    """A pytest file that sends the message to an embedded broker and waits for its handler."""
    name = re.sub(r"\W+", "_", message.topic).strip("_").lower() or "topic"
    properties = {
        key: value
        for key, value in message.properties.items()
        if key not in _SYSTEM and not key.startswith(("PENSTOCK_", "__", "DLQ_", "1ST_"))
    }
    topic = message.properties.get(Property.RETRY_TOPIC) or message.topic
    arguments = [repr(topic), f"body={_body(message.body)}"]
    if message.tag:
        arguments.append(f"tag={message.tag!r}")
    if message.keys:
        arguments.append(f"keys={list(message.keys)!r}")
    if properties:
        arguments.append(f"properties={properties!r}")
    lines = ",\n                ".join(arguments)
    return f'''"""Message {message.msg_id} of topic {topic}, against your handler."""

from penstock import Message, Producer, PushConsumer


def handle(message):
    """Replace this with your own handler."""
    return message.body


def test_{name}_is_handled(penstock):
    handled = []
    penstock.admin.create_topic({topic!r}, queues=1)
    consumer = PushConsumer("test", namesrv=penstock.namesrv, start_from="first")

    @consumer.on({topic!r})
    def run(message):
        handled.append(handle(message))

    with consumer, Producer("sender", namesrv=penstock.namesrv) as producer:
        producer.send(
            Message(
                {lines},
            )
        )
        penstock.clock.advance("5s")
    assert len(handled) == 1
'''


def _body(body: bytes) -> str:
    try:
        text = body.decode()
        value = json.loads(text)
    except (ValueError, RecursionError):
        return repr(body)
    if json.dumps(value, separators=(",", ":"), ensure_ascii=False) == text:
        return f"{text!r}.encode()"
    return repr(body)
