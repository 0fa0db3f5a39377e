"""A message as a test: the one that made trouble, against the reader's own handler."""

from __future__ import annotations

import json
import re

from penstock.model import StoredMessage
from penstock.model.names import Property

_SYSTEM = frozenset(value for name, value in vars(Property).items() if name.isupper())


def as_test(message: StoredMessage) -> str:
    """A pytest file that sends the message to an embedded broker and waits for its handler.

    Producers choose ids, names and properties. All of them become ASCII literals, so none of them
    can end a string and become code of its own.
    """
    name = re.sub(r"\W+", "_", message.topic, flags=re.ASCII).strip("_").lower() or "topic"
    properties = {
        key: value
        for key, value in message.properties.items()
        if key not in _SYSTEM and not key.startswith(("PENSTOCK_", "__", "DLQ_", "1ST_"))
    }
    topic = message.properties.get(Property.RETRY_TOPIC) or message.topic
    arguments = [ascii(topic), f"body={_body(message.body)}"]
    if message.tag:
        arguments.append(f"tag={message.tag!a}")
    if message.keys:
        arguments.append(f"keys={list(message.keys)!a}")
    if properties:
        arguments.append(f"properties={properties!a}")
    lines = ",\n                ".join(arguments)
    title = f"Message {message.msg_id} of topic {topic}, against your handler."
    return f'''{title!a}

from penstock import Message, Producer, PushConsumer


def handle(message):
    """Replace this with your own handler."""
    return message.body


def test_{name}_is_handled(penstock):
    handled = []
    penstock.admin.create_topic({topic!a}, queues=1)
    consumer = PushConsumer("test", namesrv=penstock.namesrv, start_from="first")

    @consumer.on({topic!a})
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
        return f"{text!a}.encode()"
    return repr(body)
