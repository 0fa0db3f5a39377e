"""The search box: one text that may be an id, a key, a topic or a group."""

from __future__ import annotations

import asyncio
import time

from starlette.responses import JSONResponse, Response
from starlette.routing import Route

from penstock.console.message_search import SEARCH_SECONDS, find_message, is_id
from penstock.console.shapes import SearchJson
from penstock.console.view import page_deadline
from penstock.console.visit import Visit, page
from penstock.errors import InvalidArgument, NotFound, PenstockError
from penstock.model import StoredMessage
from penstock.model.message_json import message_json

MAX_TOPICS = 500
MAX_NAMES = 20


async def search(visit: Visit) -> Response:
    """What a text may mean; one certain hit is opened at once."""
    text = visit.query("q")
    view = visit.view
    page_deadline.set(time.monotonic() + SEARCH_SECONDS)
    if visit.is_api and not text:
        raise InvalidArgument("a search for nothing", expected="?q= with an id, a key or a name")
    if not text:
        return visit.render("search.html", search_shown=True, text="", found=None)
    topic, group, by_id = await asyncio.gather(
        view.attempt(view.find_topic(text)), view.attempt(view.has_group(text)), _by_id(visit, text)
    )
    if topic.value is not None:
        return _open(visit, "topics", text)
    if group.value:
        return _open(visit, "groups", text)
    topics, groups = await asyncio.gather(view.attempt(view.topics()), view.attempt(view.groups()))
    names = [row.name for row in topics.value.rows] if topics.value else []
    message, id_error = by_id
    if message is not None:
        return _open(visit, "messages", text, topic=message.topic)
    plain = [row.name for row in topics.value.rows if not row.kind] if topics.value else []
    skipped = min(visit.count("after", 0, most=len(plain)), len(plain))
    searched = plain[skipped : skipped + MAX_TOPICS]
    left_out = len(plain) - skipped - len(searched)
    keyed, key_errors = await _by_key(visit, text, searched)
    if len(keyed) == 1:
        return _open(visit, "messages", keyed[0].offset_msg_id, topic=keyed[0].topic)
    low = text.lower()
    errors = [error for error in (topics.error, groups.error, id_error, *key_errors) if error]
    near_topics = [name for name in names if low in name.lower()][:MAX_NAMES]
    near_groups = [name for name in groups.value or () if low in name.lower()][:MAX_NAMES]
    hide = visit.options.hide_bodies
    return visit.answer(
        "search.html",
        lambda: SearchJson(
            location=None,
            topics=near_topics,
            groups=near_groups,
            messages=[message_json(one, hide_body=hide) for one in keyed],
            errors=errors,
            topics_left=left_out,
        ),
        search_shown=True,
        text=text,
        found={"topics": near_topics, "groups": near_groups, "messages": keyed},
        searched=len(searched),
        left_out=left_out,
        next_after=skipped + len(searched),
        errors=sorted(set(errors))[:5],
    )


def _open(visit: Visit, *parts: str, **query: object) -> Response:
    """Lead to the one page that is meant."""
    if not visit.is_api:
        return visit.go(*parts, **query)
    found = SearchJson(
        location=visit.api_at(*parts, **query),
        topics=[],
        groups=[],
        messages=[],
        errors=[],
        topics_left=0,
    )
    return JSONResponse(found)


async def _by_id(visit: Visit, text: str) -> tuple[StoredMessage | None, str | None]:
    if not is_id(text):
        return None, None
    try:
        return await find_message(visit.view, text), None
    except NotFound:
        return None, None
    except (PenstockError, TimeoutError) as error:
        return None, f"the search for an id did not end: {error or 'no answer in time'}"


async def _by_key(
    visit: Visit, text: str, topics: list[str]
) -> tuple[list[StoredMessage], list[str]]:
    admin = visit.view.admin
    answers = await visit.view.attempt_all(topics, lambda name: admin.query(name, text, count=32))
    found = [message for answer in answers.values() for message in answer.value or ()]
    found.sort(key=lambda message: -message.store_timestamp)
    return found[:200], [answer.error for answer in answers.values() if answer.error]


ROUTES = [Route("/search", page(search, SearchJson))]
