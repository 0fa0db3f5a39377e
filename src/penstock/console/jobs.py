"""Work that outlasts a request: redrives. It has progress, a result, and can be cancelled."""

from __future__ import annotations

import asyncio
import itertools
import logging
import threading
import time
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field

from penstock.errors import InvalidArgument, PenstockError

log = logging.getLogger(__name__)

MAX_RUNNING = 4
KEPT = 50
KEPT_LINES = 1000


class Cancelled(Exception):
    """Raised within the work of a job that is to end."""


@dataclass(slots=True)
class Job:
    """One piece of work; its thread writes, pages read."""

    number: int
    title: str
    context: str
    total: int
    link: tuple[str, ...] = ()
    owner: str = ""
    """The user who started it; empty without a login."""
    done: int = 0
    state: str = "running"
    error: str | None = None
    began_ms: int = field(default_factory=lambda: time.time_ns() // 1_000_000)
    ended_ms: int | None = None
    lines: deque[tuple[str, str]] = field(default_factory=lambda: deque(maxlen=KEPT_LINES))
    """What became of each part: a name and a sentence."""
    _stop: threading.Event = field(default_factory=threading.Event)

    @property
    def is_running(self) -> bool:
        return self.ended_ms is None

    def cancel(self) -> None:
        """Have the work end before its next part."""
        self._stop.set()

    def check(self) -> None:
        """Called by the work between its parts."""
        if self._stop.is_set():
            raise Cancelled

    def sleep(self, seconds: float) -> None:
        """Wait, unless the job is cancelled meanwhile."""
        if self._stop.wait(seconds):
            raise Cancelled


@dataclass(slots=True)
class Jobs:
    """The newest jobs; a few run at once."""

    _jobs: dict[int, Job] = field(default_factory=dict)
    _numbers: itertools.count[int] = field(default_factory=lambda: itertools.count(1))
    _tasks: set[asyncio.Task[None]] = field(default_factory=set)

    def start(
        self,
        title: str,
        context: str,
        total: int,
        work: Callable[[Job], None],
        *,
        link: tuple[str, ...] = (),
        owner: str = "",
    ) -> Job:
        """Run work in a thread."""
        running = sum(job.is_running for job in self._jobs.values())
        if running >= MAX_RUNNING:
            raise InvalidArgument(
                f"{running} jobs are running", expected=f"at most {MAX_RUNNING} at a time"
            )
        job = Job(next(self._numbers), title, context, total, link, owner)
        self._jobs[job.number] = job
        while len(self._jobs) > KEPT:
            oldest = next(n for n, job in self._jobs.items() if not job.is_running)
            del self._jobs[oldest]
        task = asyncio.create_task(self._run(job, work))
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        return job

    async def _run(self, job: Job, work: Callable[[Job], None]) -> None:
        try:
            await asyncio.to_thread(work, job)
            job.state = "done"
        except Cancelled:
            job.state = "cancelled"
        except PenstockError as error:
            job.state, job.error = "failed", str(error)
        except Exception as error:
            log.exception("job failed title=%s", job.title)
            job.state, job.error = "failed", f"{type(error).__name__}: {error}"
        finally:
            job.ended_ms = time.time_ns() // 1_000_000

    def find(self, number: int, context: str, owner: str = "") -> Job | None:
        """A job that this user started on this cluster."""
        job = self._jobs.get(number)
        return job if job is not None and (job.context, job.owner) == (context, owner) else None

    def of(self, context: str, owner: str = "") -> list[Job]:
        """The jobs that this user started on this cluster, newest first."""
        return [
            job
            for job in reversed(self._jobs.values())
            if (job.context, job.owner) == (context, owner)
        ]

    async def close(self) -> None:
        """Cancel all and wait for them."""
        for job in self._jobs.values():
            job.cancel()
        if self._tasks:
            await asyncio.wait(self._tasks)
