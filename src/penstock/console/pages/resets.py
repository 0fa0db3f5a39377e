"""Move a group: first the plan, then the move; a plan that no longer holds comes back."""

from __future__ import annotations

import hashlib
from dataclasses import dataclass
from datetime import UTC, datetime

from starlette.responses import Response
from starlette.routing import Route

from penstock.admin import Move
from penstock.admin.plain_rows import move_row
from penstock.console.shapes import PlanJson, StandsJson
from penstock.console.visit import Visit, page
from penstock.errors import InvalidArgument

GOALS = ("first", "last", "time", "offset")


@dataclass(frozen=True, slots=True)
class Goal:
    """Where a group is to go, as the address or the form says it."""

    topic: str
    to: str
    time: str
    offset: str
    queue: str

    def target(self, visit: Visit) -> int | str | datetime:
        """The goal as the administrator takes it."""
        if self.to == "time":
            at = visit.moment_ms(self.time, "time")
            if at is None:
                raise InvalidArgument("no time was given", expected="a time such as 10m ago")
            return datetime.fromtimestamp(at / 1000, UTC)
        if self.to == "offset":
            if not (self.offset.isascii() and self.offset.isdigit() and len(self.offset) < 19):
                raise InvalidArgument(f"offset {self.offset!r}", expected="a number")
            if not self.queue:
                raise InvalidArgument(
                    f"offset {self.offset} without a queue",
                    expected="one queue, since an offset means something else in each",
                )
            return int(self.offset)
        if self.to not in GOALS:
            raise InvalidArgument(f"goal {self.to!r}", expected=f"one of {', '.join(GOALS)}")
        return self.to


@dataclass(frozen=True, slots=True)
class Plan:
    """The moves of all queues, and what they come to."""

    moves: list[Move]

    @property
    def again(self) -> int:
        """Messages that are delivered once more."""
        return -sum(min(move.change or 0, 0) for move in self.moves)

    @property
    def left_out(self) -> int:
        """Messages that the group never gets."""
        return sum(max(move.change or 0, 0) for move in self.moves)

    @property
    def digest(self) -> str:
        """Says whether a plan is still the one that was shown.

        The ends of the queues are left out: they grow all the time and change nothing.
        """
        text = "|".join(f"{m.queue}:{m.committed}:{m.target}" for m in self.moves)
        return hashlib.sha256(text.encode()).hexdigest()


async def _plan(visit: Visit, group: str, goal: Goal) -> Plan:
    moves = await visit.view.admin.plan_reset(
        group, goal.topic, goal.target(visit), queue=goal.queue or None
    )
    return Plan(moves)


async def reset(visit: Visit) -> Response:
    """The form, and with a goal in the address the plan."""
    visit.require_operator()
    group = visit.name("group")
    goal = Goal(*(visit.query(name) for name in ("topic", "to", "time", "offset", "queue")))
    plan = await _plan(visit, group, goal) if goal.to and goal.topic else None
    return await _show(visit, group, goal, plan)


async def _show(
    visit: Visit, group: str, goal: Goal, plan: Plan | None, problem: str = "", status: int = 200
) -> Response:
    view = visit.view
    lag = await view.attempt(view.group_lag(group))
    topics = lag.value.rows[0].topics if lag.value and lag.value.rows else ()
    clients = await view.attempt(view.clients(group))

    def as_json() -> PlanJson:
        return {
            "moves": [move_row(one) for one in plan.moves] if plan else [],
            "again": plan.again if plan else 0,
            "left_out": plan.left_out if plan else 0,
            "plan": plan.digest if plan else None,
            "problem": problem or None,
        }

    return visit.answer(
        "reset.html",
        as_json,
        status=status,
        group=group,
        goal=goal,
        plan=plan,
        topics=topics,
        clients=clients,
        problem=problem,
    )


async def move(visit: Visit) -> Response:
    """Carry out the plan that was shown."""
    group = visit.name("group")
    fields = {name: values[0] for name, values in (await visit.form()).items()}
    goal = Goal(
        *(fields.get(name, "").strip() for name in ("topic", "to", "time", "offset", "queue"))
    )
    plan = await _plan(visit, group, goal)
    if fields.get("plan") != plan.digest:
        return await _show(
            visit, group, goal, plan, "The group has moved meanwhile. This is the plan now.", 409
        )
    if plan.left_out and fields.get("name", "").strip() != group:
        return await _show(
            visit, group, goal, plan, f"To leave messages out, type the group's name: {group}", 400
        )
    one = plan.moves[0].queue if goal.queue and plan.moves else None
    stands = await visit.view.admin.reset_offsets(group, goal.topic, goal.target(visit), queue=one)
    visit.record(
        "reset",
        group,
        topic=goal.topic,
        before={str(m.queue): m.committed for m in plan.moves},
        after={str(queue): offset for queue, offset in stands.items()},
    )
    visit.view.forget("lags", "doctor", "stats")
    return visit.answer(
        "reset_done.html",
        lambda: StandsJson(stands={str(queue): offset for queue, offset in stands.items()}),
        group=group,
        goal=goal,
        plan=plan,
        stands=stands,
    )


ROUTES: list[Route] = []
CHANGES = [
    Route("/groups/{group}/reset", page(reset, PlanJson)),
    Route("/groups/{group}/reset", page(move, StandsJson), methods=["POST"]),
]
