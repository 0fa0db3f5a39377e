"""Send a message: from an empty form, or like one that is there."""

from __future__ import annotations

from dataclasses import dataclass

from starlette.responses import Response
from starlette.routing import Route

from penstock.client.nonblocking.producer import Producer
from penstock.console import bodies
from penstock.console.message_search import find_message
from penstock.console.shapes import ReceiptJson
from penstock.console.visit import Visit, page
from penstock.errors import InvalidArgument, PenstockError
from penstock.model import Message
from penstock.model.names import Property

PRODUCER_GROUP = "penstock_console"
_SYSTEM = frozenset(value for name, value in vars(Property).items() if name.isupper())


@dataclass(frozen=True, slots=True)
class Draft:
    """The fields of the form."""

    body: str = ""
    tag: str = ""
    keys: str = ""
    properties: str = ""
    delay: str = ""


async def form(visit: Visit) -> Response:
    """The form, filled from another message with ``like=``."""
    visit.require_operator()
    draft, note = Draft(), ""
    if like := visit.query("like"):
        message = await find_message(visit.view, like)
        if visit.options.hide_bodies or not bodies.is_text(message.body):
            note = "The body is not text that can be shown here; write another one."
        own = {
            key: value
            for key, value in message.properties.items()
            if key not in _SYSTEM and not key.startswith(("PENSTOCK_", "__", "DLQ_", "1ST_"))
        }
        draft = Draft(
            "" if note else message.body.decode(),
            message.tag or "",
            " ".join(message.keys),
            "\n".join(f"{key}={value}" for key, value in own.items()),
        )
    return visit.render(
        "send.html", topic=visit.name("topic"), draft=draft, note=note, problem=None, receipt=None
    )


async def send(visit: Visit) -> Response:
    """Send what the form holds; the receipt leads to the message."""
    fields = await visit.form()
    topic = visit.name("topic")
    draft = Draft(
        *(fields.get(name, [""])[0] for name in ("body", "tag", "keys", "properties", "delay"))
    )
    receipt, problem = None, None
    try:
        async with Producer(PRODUCER_GROUP, **visit.view.access.as_keywords()) as producer:
            receipt = await producer.send(_message(topic, draft))
        visit.record(
            "send",
            topic,
            before=None,
            after={"msg_id": receipt.msg_id, "bytes": len(draft.body.encode())},
        )
        visit.view.forget("topics", "stats")
    except PenstockError as error:
        if visit.is_api:
            raise
        visit.record_refusal(error)
        problem = str(error)

    def as_json() -> ReceiptJson:
        assert receipt is not None, "the error was raised"
        return {
            "msg_id": receipt.msg_id,
            "offset_msg_id": receipt.offset_msg_id,
            "queue": str(receipt.queue),
            "queue_offset": receipt.queue_offset,
        }

    return visit.answer(
        "send.html",
        as_json,
        status=400 if problem else 200,
        topic=topic,
        draft=draft,
        note="",
        problem=problem,
        receipt=receipt,
    )


def _message(topic: str, draft: Draft) -> Message:
    properties = {}
    for line in draft.properties.splitlines():
        if not line.strip():
            continue
        key, equals, value = line.partition("=")
        if not equals:
            raise InvalidArgument(f"property {line!r}", expected="KEY=VALUE, one in each line")
        properties[key.strip()] = value.strip()
    # Browsers send lines ended by CR LF.
    return Message(
        topic,
        draft.body.replace("\r\n", "\n").encode(),
        tag=draft.tag.strip() or None,
        keys=draft.keys.split(),
        properties=properties or None,
        delay=draft.delay.strip() or None,
    )


ROUTES: list[Route] = []
CHANGES = [
    Route("/topics/{topic}/send", page(form)),
    Route("/topics/{topic}/send", page(send, ReceiptJson), methods=["POST"]),
]
