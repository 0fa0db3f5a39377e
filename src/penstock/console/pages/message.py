"""One message: its life, its body and properties, and the same as a test."""

from __future__ import annotations

import time

from starlette.responses import PlainTextResponse, Response
from starlette.routing import Route

from penstock.admin.message_life import LifeEvent, MessageLife
from penstock.console import bodies
from penstock.console.life_drawing import draw_life
from penstock.console.message_as_test import as_test
from penstock.console.message_search import find_message
from penstock.console.shapes import HandledJson, LifeEventJson, MessageLifeJson
from penstock.console.view import page_deadline
from penstock.console.visit import Visit, file_name, page
from penstock.errors import InvalidArgument, NotFound
from penstock.model import StoredMessage
from penstock.model.message_json import message_json

LIFE_SECONDS = 10.0
"""It asks for each group of the topic, so it takes longer than other pages."""


async def _message(visit: Visit) -> StoredMessage:
    topic = visit.query("topic") or None
    return await find_message(visit.view, visit.name("id"), topic)


async def message(visit: Visit) -> Response:
    """A message and what happened to it."""
    view, msg_id = visit.view, visit.name("id")
    page_deadline.set(time.monotonic() + LIFE_SECONDS)
    record = await _message(visit)
    life = await view.attempt(
        view.get(
            ("life", record.offset_msg_id),
            2.0,
            lambda: view.admin.message_life(record.offset_msg_id, topic=record.topic),
        ),
        LIFE_SECONDS,
    )
    clients = []
    if life.value is not None and visit.may_change:
        answers = await view.attempt_all(life.value.groups[:20], view.clients)
        clients = [
            (group, client.client_id)
            for group, answer in answers.items()
            for client in answer.value or ()
        ]

    def as_json() -> MessageLifeJson:
        return {
            "message": message_json(record, hide_body=visit.options.hide_bodies),
            "life": None if life.value is None else [_event(one) for one in life.value.events],
            "not_known": [str(life.error)] if life.value is None else list(life.value.unknown),
        }

    return visit.answer(
        "message.html",
        as_json,
        msg_id=msg_id,
        message=record,
        life=life,
        drawing=draw_life(life.value, visit.times) if life.value else "",
        lanes=_lanes(life.value),
        body=None if visit.options.hide_bodies else bodies.show(record.body, visit.query("view")),
        clients=clients,
    )


def _event(one: LifeEvent) -> LifeEventJson:
    return {
        "at_ms": one.at_ms or None,
        "kind": one.kind,
        "text": one.text,
        "group": one.group,
        "reason": one.reason,
        "offset_msg_id": one.offset_msg_id,
    }


def _lanes(life: MessageLife | None) -> list[tuple[str | None, list[LifeEvent]]]:
    if life is None:
        return []
    return [(group, life.of_group(group)) for group in (None, *life.groups)]


async def body(visit: Visit) -> Response:
    """The body as it is, to be saved."""
    if visit.options.hide_bodies:
        raise NotFound("bodies are not shown here (--hide-bodies)")
    record = await _message(visit)
    return Response(
        record.body,
        media_type="application/octet-stream",
        headers={"content-disposition": f'attachment; filename="{file_name(record.msg_id)}.bin"'},
    )


async def test_file(visit: Visit) -> Response:
    """The message as a pytest file with Penstock's fixture."""
    if visit.options.hide_bodies:
        raise NotFound("bodies are not shown here (--hide-bodies)")
    return PlainTextResponse(as_test(await _message(visit)))


async def handle_again(visit: Visit) -> Response:
    """Have a connected consumer handle the message now, and show how that went."""
    form = await visit.form()
    group, _, client_id = form.get("client", [""])[0].partition(" ")
    if not client_id:
        raise InvalidArgument("no client was chosen", expected="a connected member of a group")
    record = await _message(visit)
    result = await visit.view.admin.consume_directly(
        group, client_id, record.offset_msg_id, topic=record.topic
    )
    visit.record(
        "handle again",
        record.msg_id,
        before=None,
        after=result.consume_result.value,
        group=group,
        client=client_id,
    )
    return visit.answer(
        "handled.html",
        lambda: HandledJson(
            group=group,
            client_id=client_id,
            result=result.consume_result.value,
            remark=result.remark,
        ),
        message=record,
        group=group,
        client_id=client_id,
        result=result,
    )


ROUTES = [
    Route("/messages/{id}", page(message, MessageLifeJson)),
]
EXPORTS = [
    Route("/messages/{id}/body", page(body)),
    Route("/messages/{id}/test", page(test_file)),
]
CHANGES = [Route("/messages/{id}/handle", page(handle_again, HandledJson), methods=["POST"])]
