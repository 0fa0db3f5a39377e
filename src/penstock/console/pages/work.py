"""Jobs: what runs, how far it is, what became of each part."""

from __future__ import annotations

from starlette.responses import Response
from starlette.routing import Route

from penstock.console.charts import bar
from penstock.console.jobs import Job
from penstock.console.visit import Visit, page
from penstock.errors import NotFound


async def jobs(visit: Visit) -> Response:
    """All jobs of this cluster since the console started."""
    return visit.render("jobs.html", jobs=visit.console.jobs.of(visit.context), bar=bar)


def _find(visit: Visit) -> Job:
    text = visit.name("number")
    number = int(text) if text.isascii() and text.isdigit() and len(text) < 10 else 0
    job = visit.console.jobs.find(number, visit.context)
    if job is None:
        raise NotFound(f"there is no job {text}", expected="a job since the console started")
    return job


async def job(visit: Visit) -> Response:
    """One job."""
    found = _find(visit)
    return visit.render("job.html", job=found, bar=bar(found.done / (found.total or 1)))


async def cancel(visit: Visit) -> Response:
    """End a job before its next part."""
    await visit.form()
    found = _find(visit)
    found.cancel()
    visit.record("cancel job", found.title, job=found.number)
    return visit.go("jobs", found.number)


ROUTES = [Route("/jobs", page(jobs)), Route("/jobs/{number}", page(job))]
CHANGES = [Route("/jobs/{number}/cancel", page(cancel), methods=["POST"])]
