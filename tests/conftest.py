"""Settings that all tests share."""

import os
import signal
from typing import Any

import pytest
from hypothesis import HealthCheck, settings
from xdist.scheduler import LoadScopeScheduling  # type: ignore[import-untyped]

# A busy machine must not fail a property: no test here depends on how long an example takes.
# The suite draws the same examples each time, so that a run can be repeated; PENSTOCK_EXAMPLES is
# how `make soak` asks for more of them, and new ones each time.
EXAMPLES = os.environ.get("PENSTOCK_EXAMPLES")
settings.register_profile(
    "penstock",
    deadline=None,
    derandomize=EXAMPLES is None,
    max_examples=int(EXAMPLES or "60"),
    suppress_health_check=[HealthCheck.too_slow],
)
settings.load_profile("penstock")

# Who starts the tests in the background may have them ignore Ctrl-C; the commands that tests start
# would inherit that, and some of them are tested for how they take it.
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)


SPARK = "tests/spark/"
SPARK_OF_THEIR_OWN = {
    "test_cluster.py",
    "test_declarative_pipeline.py",
    "test_demo.py",
    "test_java.py",
    "test_soak.py",
}
"""Tests that start Spark in a process of its own, instead of sharing a session."""


TOGETHER = (
    "tests/docs/test_site.py",
    "tests/doctor/test_command.py",
    "tests/packaging/test_wheel.py",
    "tests/arrow/test_reading.py",
    "tests/console/test_browser.py",
)
"""Files whose fixture takes long and serves all their tests."""


class SparkTogether(LoadScopeScheduling):  # type: ignore[misc]
    """Deals tests out to processes one by one, but those of Spark in three lots.

    Starting Spark takes longer than most tests. What shares a session is run in two processes, the
    pipelines in one of them, and what starts its own in another; large lots go first. Files of
    `TOGETHER` are a lot each.
    """

    def _split_scope(self, nodeid: str) -> str:
        path = nodeid.partition("::")[0]
        if path in TOGETHER:
            return path
        if not path.startswith(SPARK):
            return nodeid
        if path.rpartition("/")[2] in SPARK_OF_THEIR_OWN:
            return "of their own"
        return "pipelines" if path.startswith(f"{SPARK}pipelines/") else "shared"


def pytest_xdist_make_scheduler(config: pytest.Config, log: Any) -> SparkTogether:
    return SparkTogether(config, log)
