"""What waits: delay levels, timer messages, and the retries of a group."""

from __future__ import annotations

from dataclasses import dataclass

from starlette.responses import Response
from starlette.routing import Route

from penstock.admin import WaitingTimer
from penstock.admin.plain_rows import timer_row
from penstock.console import bodies, browse
from penstock.console.message_filter import MessageFilter
from penstock.console.shapes import DelaysJson, Rows
from penstock.console.view import Answer
from penstock.console.visit import Visit, page
from penstock.errors import PenstockError, TopicNotFound
from penstock.model.message_json import MessageJson, message_json
from penstock.model.names import Failure, retry_topic
from penstock.protocol.delays import DEFAULT_DELAY_LEVELS, DelayLevels

TIMERS_SHOWN = 100
MAX_TIMERS = 10_000


@dataclass(slots=True)
class Level:
    """A delay level and what waits in it, over all brokers."""

    number: int
    text: str
    waiting: int = 0


async def delays(visit: Visit) -> Response:
    """The delay levels and the timer messages."""
    view = visit.view
    masters = [row.broker_name for row in await view.cluster() if row.broker_id == 0]
    infos = await view.attempt_all(masters, view.broker_info)
    configs = await view.attempt_all(masters, view.broker_config)
    levels: dict[int, Level] = {}
    for name in masters:
        texts = _texts((configs[name].value or {}).get("messageDelayLevel"))
        for key, value in (infos[name].value or {}).items():
            number = key.removeprefix("scheduleMessageOffset_")
            low, _, high = value.partition(",")
            if number == key or not (number.isdigit() and low.isdigit() and high.isdigit()):
                continue
            level = levels.setdefault(int(number), Level(int(number), texts.text_of(int(number))))
            level.waiting += max(0, int(high) - int(low))
    parked = sum(_number((answer.value or {}).get("timerCongestNum")) for answer in infos.values())
    timers: Answer[list[WaitingTimer]] = Answer([])
    if 0 < parked <= MAX_TIMERS:
        # The list is read from the messages themselves, so it is left out where there are many.
        timers = await view.attempt(view.get(("timers",), 2.0, view.admin.timers))

    def as_json() -> DelaysJson:
        return {
            "levels": [
                {"level": one.number, "delay": one.text, "waiting": one.waiting}
                for _, one in sorted(levels.items())
            ],
            "timers": None if timers.value is None else [timer_row(one) for one in timers.value],
            "waiting_timers": parked,
        }

    return visit.answer(
        "delays.html",
        as_json,
        levels=[levels[number] for number in sorted(levels)],
        timers=timers,
        parked=parked,
        shown=TIMERS_SHOWN,
        silent=sorted(name for name, answer in infos.items() if not answer.is_known),
    )


def _number(text: str | None) -> int:
    return int(text) if text and text.isdigit() else 0


def _texts(setting: str | None) -> DelayLevels:
    try:
        return DelayLevels(setting or DEFAULT_DELAY_LEVELS)
    except PenstockError:
        return DelayLevels()


async def retries(visit: Visit) -> Response:
    """The newest failed messages of a group whose next attempt is due or was made."""
    group = visit.name("group")
    topic = retry_topic(group)
    try:
        found = await browse.newest(visit.view, topic, MessageFilter(), 100)
    except TopicNotFound:
        found = None
    lag = await visit.view.attempt(visit.view.group_lag(group))
    committed = {}
    if lag.value and lag.value.rows:
        committed = {
            (row.topic, row.broker_name, row.queue_id): row.committed
            for row in lag.value.rows[0].queues
        }
    shown = found.messages if found else ()
    return visit.answer(
        "retries.html",
        lambda: Rows[MessageJson](
            rows=[message_json(one, hide_body=visit.options.hide_bodies) for one in shown]
        ),
        group=group,
        found=found,
        committed=committed,
        failure=Failure,
        line=lambda m: "" if visit.options.hide_bodies else bodies.line(m.body),
    )


ROUTES = [
    Route("/delays", page(delays, DelaysJson)),
    Route("/groups/{group}/retries", page(retries, Rows[MessageJson])),
]
