"""The soak's short form: kills of Spark and of the broker, and every message accounted for."""

from __future__ import annotations

from pathlib import Path

import pytest
from tools.spark_soak import Plan, soak


@pytest.mark.timeout(600)
@pytest.mark.usefixtures("quick_java")
def test_kills_in_mid_batch_lose_no_message(tmp_path: Path) -> None:
    plan = Plan(messages=2000, kills=1, broker_kills=1, seed=7)
    fates = soak(plan, tmp_path)
    assert fates.is_good, fates
    assert fates.handled + fates.dead_letters >= plan.messages
    assert fates.dead_letters > 0, "some messages were given up"
    assert fates.calls > fates.messages, "some messages were retried"
