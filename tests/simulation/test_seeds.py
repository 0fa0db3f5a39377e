"""Two hundred clusters under faults. A failure prints its plan and the command to repeat it."""

from __future__ import annotations

import pytest
from tests.simulation.world import SimulationFailed, run_seed

SEEDS = range(100)
PER_TEST = 5


@pytest.mark.spec("S3", "S29", "S86", "S125", "S134", "S148")
@pytest.mark.parametrize(
    "first", SEEDS[::PER_TEST], ids=lambda first: f"{first}-{first + PER_TEST - 1}"
)
def test_a_cluster_under_faults_keeps_its_promises(first: int) -> None:
    for seed in range(first, first + PER_TEST):
        try:
            run_seed(seed)
        except SimulationFailed as error:
            pytest.fail(str(error), pytrace=False)


def test_a_seed_is_reproducible() -> None:
    assert run_seed(2) == run_seed(2)


def test_a_big_cluster_keeps_its_promises() -> None:
    summary = run_seed(1, is_big=True)
    assert summary.acknowledged > 0
