"""Answers that take too long for one turn of the event loop.

A handler whose work grows with what it is asked about is a generator. It yields after each part,
so that the loop serves other requests in between:

    @handles(RequestCode.GET_TOPIC_STATS_INFO)
    def get_topic_stats(broker: BrokerState, ask: GetTopicStats) -> Steps:
        for queue_id in range(queues):
            if queue_id % STEP == 0:
                yield None
            ...
        return Reply(body=...)

What it yields is None, or a function that is run in a thread and whose result is sent back. Usual
requests are answered at once: the first steps run without a pause. Long ones take turns, one step
of one of them in each turn of the loop, and their answers are encoded in a thread.
"""

from __future__ import annotations

import asyncio
import functools
import logging
from collections import deque
from collections.abc import Callable, Generator
from concurrent.futures import Executor, ThreadPoolExecutor
from typing import Any, NamedTuple, TypeAlias

from penstock.errors import PenstockError, SystemBusy
from penstock.protocol.commands import Command
from penstock.remoting.promise import Promise, error_answer
from penstock.runtime.service import Service
from penstock.runtime.threads import run_to_end

log = logging.getLogger(__name__)

Steps: TypeAlias = Generator[Callable[[], Any] | None, Any, Any]

STEP = 64
"""How many queues, or similar items, are one step."""
_STEPS_AT_ONCE = 8
_MAX_WAITING = 64
"""Bounds the memory of half-finished answers."""


class _Job(NamedTuple):
    steps: Steps
    promise: Promise
    wanted: Callable[[], Any] | None
    """What it has yielded last."""


class LongAnswers(Service):
    """Runs the long answers of one server."""

    def __init__(self, answer_of: Callable[[Any], Command | Promise]) -> None:
        """``answer_of`` turns what a handler returns into an answer."""
        self._answer_of = answer_of
        self._jobs: deque[_Job] = deque()
        self._added = asyncio.Event()

    def start_answer(self, steps: Steps) -> Command | Promise:
        """The answer, or a promise of it if it needs more than a few steps."""
        try:
            yielded = next(steps)
            for _ in range(_STEPS_AT_ONCE):
                if yielded is not None:
                    break
                yielded = next(steps)
            if not self.is_running:
                # A server that is not started, or is stopping, has no turns to give.
                while True:
                    yielded = _proceed(steps, yielded)
        except StopIteration as end:
            return self._answer_of(end.value)
        if len(self._jobs) >= _MAX_WAITING:
            steps.close()
            raise SystemBusy(
                f"{len(self._jobs)} long answers are under way",
                expected=f"at most {_MAX_WAITING}",
                hint="ask again later, or about fewer queues",
            )
        promise = Promise()
        self._jobs.append(_Job(steps, promise, yielded))
        self._added.set()
        return promise

    async def _run(self, ready: Callable[[], None]) -> None:
        with ThreadPoolExecutor(1, thread_name_prefix="penstock-answers") as thread:
            ready()
            while True:
                if not self._jobs:
                    self._added.clear()
                    await self._added.wait()
                job = self._jobs.popleft()
                try:
                    await self._advance(job, thread)
                except Exception as error:
                    if not isinstance(error, PenstockError):
                        log.exception("a long answer failed")
                    job.promise.resolve(error_answer(error))

    async def _advance(self, job: _Job, thread: Executor) -> None:
        """Take one step of a job; put it back, or answer."""
        if job.wanted is None:
            await asyncio.sleep(0)
            proceed = functools.partial(job.steps.send, None)
        else:
            try:
                found = await run_to_end(thread, job.wanted)
            except PenstockError as error:
                proceed = functools.partial(job.steps.throw, error)
            else:
                proceed = functools.partial(job.steps.send, found)
        try:
            wanted = proceed()
        except StopIteration as end:
            value = end.value
            answer = await run_to_end(thread, lambda: self._answer_of(value))
            assert isinstance(answer, Command), "a long answer promises nothing more"
            job.promise.resolve(answer)
        else:
            self._jobs.append(job._replace(wanted=wanted))


def _proceed(steps: Steps, wanted: Callable[[], Any] | None) -> Callable[[], Any] | None:
    """The next step, after what the last one has yielded."""
    try:
        found = None if wanted is None else wanted()
    except PenstockError as error:
        return steps.throw(error)
    return steps.send(found)
