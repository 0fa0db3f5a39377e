"""Jobs: what runs, how far it is, what became of each part."""

from __future__ import annotations

from starlette.responses import Response
from starlette.routing import Route

from penstock.console.charts import bar
from penstock.console.jobs import Job
from penstock.console.shapes import Done, JobJson, JobPageJson, Rows
from penstock.console.visit import Visit, page
from penstock.errors import NotFound


async def jobs(visit: Visit) -> Response:
    """All jobs of this cluster since the console started."""
    known = visit.console.jobs.of(visit.context, visit.user)
    return visit.answer(
        "jobs.html", lambda: Rows[JobJson](rows=[_row(one) for one in known]), jobs=known, bar=bar
    )


def _row(one: Job) -> JobJson:
    return {
        "number": one.number,
        "title": one.title,
        "state": one.state,
        "done": one.done,
        "total": one.total,
        "began_ms": one.began_ms,
        "ended_ms": one.ended_ms,
        "error": one.error,
    }


def _find(visit: Visit) -> Job:
    text = visit.name("number")
    number = int(text) if text.isascii() and text.isdigit() and len(text) < 10 else 0
    job = visit.console.jobs.find(number, visit.context, visit.user)
    if job is None:
        raise NotFound(f"there is no job {text}", expected="a job since the console started")
    return job


async def job(visit: Visit) -> Response:
    """One job."""
    found = _find(visit)
    return visit.answer(
        "job.html",
        lambda: JobPageJson(
            **_row(found),
            results=[{"message": name, "result": result} for name, result in found.lines],
        ),
        job=found,
        bar=bar(found.done / (found.total or 1)),
    )


async def cancel(visit: Visit) -> Response:
    """End a job before its next part."""
    await visit.form()
    found = _find(visit)
    before = found.state
    found.cancel()
    visit.record("cancel job", found.title, before=before, after="cancelled", job=found.number)
    return visit.go("jobs", found.number)


ROUTES = [
    Route("/jobs", page(jobs, Rows[JobJson])),
    Route("/jobs/{number}", page(job, JobPageJson)),
]
CHANGES = [Route("/jobs/{number}/cancel", page(cancel, Done), methods=["POST"])]
