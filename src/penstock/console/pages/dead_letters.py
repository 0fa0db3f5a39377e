"""Dead letters: by group, by reason, one by one; repaired and redriven from the browser."""

from __future__ import annotations

import asyncio
import hashlib
import json
from collections import defaultdict
from collections.abc import Callable
from dataclasses import dataclass, field

from starlette.responses import Response
from starlette.routing import Route

from penstock.admin import DeadLetterRow, LetterEdit
from penstock.admin.plain_rows import (
    DeadLetterGroupJson,
    DeadLetterJson,
    dead_letter,
    dead_letter_group,
    reason_text,
)
from penstock.admin.redrive_task import RedriveTask, redriven_anywhere
from penstock.console import bodies
from penstock.console.jobs import Job
from penstock.console.message_search import find_message
from penstock.console.shapes import Done, LettersJson, RedrivePlanJson, Rows
from penstock.console.visit import Visit, page
from penstock.errors import InvalidArgument, NotFound
from penstock.protocol.validation import check_body

SHOWN = 200
MAX_CHOSEN = 10_000
RATE = 50.0
MAX_RATE = 1000.0


@dataclass(slots=True)
class Reason:
    """The letters that died of the same."""

    text: str
    letters: list[DeadLetterRow] = field(default_factory=list)

    @property
    def first_ms(self) -> int:
        return min(one.message.store_timestamp for one in self.letters)

    @property
    def last_ms(self) -> int:
        return max(one.message.store_timestamp for one in self.letters)


async def all_groups(visit: Visit) -> Response:
    """The groups that have dead letters."""
    view = visit.view
    names = await view.dead_letter_groups()
    answers = await view.attempt_all(names[:SHOWN], view.dead_letter_queues)
    rows = [
        (dead_letter_group(name, answer.value), answer.error) for name, answer in answers.items()
    ]
    rows.sort(key=lambda row: -(row[0]["pending"] or 0))
    return visit.answer(
        "dead_letter_groups.html",
        lambda: Rows[DeadLetterGroupJson](rows=[row for row, _ in rows]),
        rows=rows,
        left_out=len(names) - len(rows),
    )


async def of_group(visit: Visit) -> Response:
    """The pending letters of a group, newest reasons first."""
    group = visit.name("group")
    settled = visit.query("all") == "1"
    view = visit.view
    queues, letters = await asyncio.gather(
        view.dead_letter_queues(group),
        view.admin.dead_letters(group, count=SHOWN, settled=settled),
    )
    done = await asyncio.to_thread(redriven_anywhere, view.blocking, group, letters)
    by_reason: dict[str, Reason] = defaultdict(lambda: Reason(""))
    for letter in letters:
        reason = reason_text(letter)
        by_reason[reason].text = reason
        by_reason[reason].letters.append(letter)
    settled_before = {one.queue: one.settled for one in queues}
    pending, stored = sum(one.pending for one in queues), sum(one.count for one in queues)
    hide = visit.options.hide_bodies

    def as_json() -> LettersJson:
        rows = [dead_letter(one, done, settled_before, hide_body=hide) for one in letters]
        return {"group": group, "pending": pending, "stored": stored, "rows": rows}

    return visit.answer(
        "dead_letters.html",
        as_json,
        group=group,
        pending=pending,
        stored=stored,
        reasons=sorted(by_reason.values(), key=lambda one: -one.last_ms),
        shown=len(letters),
        done=done,
        redriven=sum(
            one.message.offset_msg_id in done
            and one.message.queue_offset >= settled_before.get(one.message.queue, 0)
            for one in letters
        ),
        settled_before=settled_before,
        line=lambda m: "" if visit.options.hide_bodies else bodies.line(m.body),
        with_all=settled,
    )


async def _letter(visit: Visit, group: str, offset_id: str) -> DeadLetterRow:
    message = await find_message(visit.view, offset_id)
    if message.topic != f"%DLQ%{group}":
        raise NotFound(f"message {offset_id} is not a dead letter of group {group!r}")
    return DeadLetterRow.from_message(message)


async def letter(visit: Visit) -> Response:
    """One letter: what died, beside what is to be sent."""
    group, offset_id = visit.name("group"), visit.name("id")
    row = await _letter(visit, group, offset_id)
    done = await asyncio.to_thread(redriven_anywhere, visit.view.blocking, group, [row])
    can_edit = not visit.options.hide_bodies and bodies.is_text(row.message.body)
    return visit.answer(
        "dead_letter.html",
        lambda: dead_letter(row, done, {}, hide_body=visit.options.hide_bodies),
        group=group,
        letter=row,
        reason=reason_text(row),
        done=offset_id in done,
        body=None if visit.options.hide_bodies else bodies.show(row.message.body),
        can_edit=can_edit,
        text=row.message.body.decode() if can_edit else "",
        problem=None,
    )


@dataclass(frozen=True, slots=True)
class Order:
    """What a form asks to redrive."""

    group: str
    ids: frozenset[str]
    reason: str | None
    to: str | None
    rate: float
    limit: int
    edits: dict[str, LetterEdit]

    def wants(self, one: DeadLetterRow) -> bool:
        """Whether a letter is chosen."""
        if self.ids:
            return one.message.offset_msg_id in self.ids
        return self.reason is None or reason_text(one) == self.reason


async def _order(visit: Visit, group: str) -> Order:
    form = await visit.form()

    def one(name: str, default: str = "") -> str:
        return form.get(name, [default])[0].strip()

    rate = one("rate", str(RATE)) or str(RATE)
    limit = one("limit") or str(MAX_CHOSEN)
    try:
        pace, most = float(rate), int(limit)
    except ValueError:
        raise InvalidArgument(f"rate {rate!r} and limit {limit!r}", expected="numbers") from None
    if not 0.1 <= pace <= MAX_RATE:
        raise InvalidArgument(f"rate {rate}", expected=f"0.1 to {MAX_RATE:g} letters a second")
    if not 1 <= most <= MAX_CHOSEN:
        raise InvalidArgument(
            f"limit {limit}",
            expected=f"1 to {MAX_CHOSEN}",
            hint=f"penstock spark dlq {group} --redrive{visit.command_options}",
        )
    ids = frozenset(form.get("id", []))
    reason = form.get("reason", [None])[0]
    if not ids and reason is None and one("all") != "1":
        raise InvalidArgument("no letter was chosen", expected="at least one letter")
    to = one("to_topic") if one("to") == "topic" else ""
    edits = {}
    if "body" in form and len(ids) == 1:
        edits = await _edits(visit, group, next(iter(ids)), form)
    return Order(group, ids, reason, to or None, pace, most, edits)


async def _edits(
    visit: Visit, group: str, offset_id: str, form: dict[str, list[str]]
) -> dict[str, LetterEdit]:
    """What was changed in the editor; nothing if it is what died."""
    row = await _letter(visit, group, offset_id)
    message = row.message
    if visit.options.hide_bodies or not bodies.is_text(message.body):
        return {}
    # A browser sends every line end as CR LF; a body that has such ends keeps them.
    text = form["body"][0]
    if "\r\n" not in message.body.decode():
        text = text.replace("\r\n", "\n")
    body = check_body(text.encode())
    if form.get("check_json", [""])[0] and body != message.body:
        try:
            json.loads(body)
        except ValueError as error:
            raise InvalidArgument(
                f"the edited body is no JSON: {error}",
                expected="JSON, as the body was",
                hint="clear the check box to send it all the same",
            ) from None
    tag = form.get("tag", [""])[0].strip() or None
    keys = tuple(form.get("keys", [""])[0].split())
    if (body, tag, keys) == (message.body, message.tag, message.keys):
        return {}
    return {offset_id: LetterEdit(body, tag, keys)}


def _plan(visit: Visit, order: Order) -> RedriveTask:
    admin = visit.view.blocking
    task = RedriveTask(
        admin, order.group, order.to, admin.dead_letter_queues(order.group), edits=order.edits
    )
    task.plan(order.wants, order.limit)
    return task


async def dry_run(visit: Visit) -> Response:
    """What would go, what went before; nothing is sent."""
    order = await _order(visit, visit.name("group"))
    task = await asyncio.to_thread(_plan, visit, order)

    def as_json() -> RedrivePlanJson:
        hide = visit.options.hide_bodies
        return {
            "group": order.group,
            "to": order.to,
            "letters": len(task.chosen),
            "stay_pending": len(task.others),
            "sample": [dead_letter(one, (), {}, hide_body=hide) for one in task.sample],
        }

    return visit.answer(
        "redrive_plan.html",
        as_json,
        order=order,
        task=task,
        before=max(0, len(order.ids) - len(task.chosen)) if order.ids else None,
        reason_of=reason_text,
        line=lambda m: "" if visit.options.hide_bodies else bodies.line(m.body),
        edit=next(iter(order.edits.values()), None),
    )


async def redrive(visit: Visit) -> Response:
    """Send the chosen letters, as a job."""
    order = await _order(visit, visit.name("group"))
    task = await asyncio.to_thread(_plan, visit, order)
    if not task.chosen:
        raise InvalidArgument(
            "no letter is left to be sent: all of them were redriven before",
            expected="a pending letter",
        )
    job = visit.console.jobs.start(
        f"Redrive {len(task.chosen)} of {order.group}",
        visit.context,
        len(task.chosen),
        _work(task, order),
        link=("groups", order.group, "dead-letters"),
        owner=visit.user,
    )
    pending = len(task.chosen) + len(task.others)
    facts: dict[str, object] = {
        "before": {"pending": pending},
        "after": {"redriven": len(task.chosen), "pending": len(task.others)},
        "job": job.number,
        "to": order.to or f"group {order.group}",
    }
    for offset_id, edit in order.edits.items():
        row = await _letter(visit, order.group, offset_id)
        facts["edited"] = {
            "id": offset_id,
            "before": [len(row.message.body), hashlib.sha256(row.message.body).hexdigest()],
            "after": [len(edit.body), hashlib.sha256(edit.body).hexdigest()],
        }
    visit.record("redrive", order.group, **facts)
    visit.view.forget("dead", "lags", "doctor", "life")
    return visit.go("jobs", job.number)


def _work(task: RedriveTask, order: Order) -> Callable[[Job], None]:
    def run(job: Job) -> None:
        def sent(count: int) -> None:
            job.done += count
            for name in list(task.sent.values())[-count:]:
                job.lines.append((name, "sent"))
            job.check()

        try:
            task.run(order.rate, on_sent=sent, sleep=job.sleep)
        finally:
            for place, name in task.chosen.items():
                if place not in task.sent:
                    job.lines.append((name, "not sent, stays pending"))

    return run


async def put_aside(visit: Visit) -> Response:
    """Settle all pending letters; they stay stored until their files expire."""
    group = visit.name("group")
    form = await visit.form()
    if form.get("sure", [""])[0] != "1":
        raise InvalidArgument("nothing was put aside", expected="the box to be checked")
    queues = await visit.view.admin.dead_letter_queues(group)
    marks = await visit.view.admin.settle_dead_letters(group)
    visit.record(
        "put aside",
        group,
        before={str(one.queue): one.settled for one in queues},
        after={str(queue): offset for queue, offset in marks.items()},
    )
    visit.view.forget("dead", "doctor")
    return visit.go("groups", group, "dead-letters")


async def delete(visit: Visit) -> Response:
    """Delete all dead letters of a group, if its name was typed."""
    group = visit.name("group")
    form = await visit.form()
    if form.get("name", [""])[0].strip() != group:
        raise InvalidArgument(
            f"the dead letters of {group!r} were not deleted", expected="the group's name, typed"
        )
    stored = sum(one.count for one in await visit.view.admin.dead_letter_queues(group))
    await visit.view.admin.delete_dead_letters(group)
    visit.record("delete dead letters", group, before={"stored": stored}, after={"stored": 0})
    visit.view.forget("dead", "doctor", "topics")
    return visit.go("dead-letters")


ROUTES = [
    Route("/dead-letters", page(all_groups, Rows[DeadLetterGroupJson])),
    Route("/groups/{group}/dead-letters", page(of_group, LettersJson)),
    Route("/groups/{group}/dead-letters/{id}", page(letter, DeadLetterJson)),
]
CHANGES = [
    Route("/groups/{group}/dead-letters/plan", page(dry_run, RedrivePlanJson), methods=["POST"]),
    Route("/groups/{group}/dead-letters/redrive", page(redrive, Done), methods=["POST"]),
    Route("/groups/{group}/dead-letters/aside", page(put_aside, Done), methods=["POST"]),
    Route("/groups/{group}/dead-letters/delete", page(delete, Done), methods=["POST"]),
]
