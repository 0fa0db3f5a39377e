"""Work that outlasts a request: how much of it runs, and whose it is."""

from __future__ import annotations

import threading

import pytest

from penstock.console.jobs import KEPT, MAX_RUNNING, Job, Jobs
from penstock.errors import InvalidArgument
from penstock.testing.eventually import eventually


def nothing(job: Job) -> None:
    """Work that is done at once."""


async def test_a_few_jobs_run_at_once_and_any_number_one_after_another() -> None:
    jobs, may_end = Jobs(), threading.Event()

    def wait(job: Job) -> None:
        may_end.wait(60)

    running = [jobs.start("waits", "local", 1, wait) for _ in range(MAX_RUNNING)]
    with pytest.raises(InvalidArgument, match=f"{MAX_RUNNING} jobs are running"):
        jobs.start("one more", "local", 1, nothing)
    may_end.set()
    await eventually(lambda: not any(job.is_running for job in running))
    for _ in range(KEPT + 5):
        job = jobs.start("short", "local", 1, nothing)
        await eventually(lambda: not job.is_running)  # noqa: B023
        assert job.state == "done"
    assert len(jobs.of("local")) == KEPT
    await jobs.close()


async def test_a_job_is_that_of_its_user_on_its_cluster() -> None:
    jobs = Jobs()
    job = jobs.start("redrive", "local", 1, nothing, owner="ann")
    assert jobs.find(job.number, "local", "ann") is job
    assert jobs.of("local", "ann") == [job]
    for context, owner in (("local", "bob"), ("local", ""), ("other", "ann")):
        assert jobs.find(job.number, context, owner) is None
        assert jobs.of(context, owner) == []
    await jobs.close()


async def test_a_job_that_fails_says_why() -> None:
    def fail(job: Job) -> None:
        raise InvalidArgument("a wrong wish", expected="a right one")

    jobs = Jobs()
    job = jobs.start("fails", "local", 1, fail)
    await eventually(lambda: not job.is_running)
    assert job.state == "failed"
    assert "a wrong wish" in (job.error or "")
    await jobs.close()
