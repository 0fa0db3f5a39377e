"""The checks used by our client scenarios, and some scenarios run for real."""

from __future__ import annotations

import re
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.interop import cli_scenarios, client_failover, client_guarded, mixed_groups
from tests.interop.client_consuming import InOrder
from tests.interop.client_lab import Failed, Lab, NotApplicable, Seen, check, same, texts, wait_for
from tests.interop.client_scenarios import PENSTOCK_LIMITS, RUNS, run_clients
from tests.interop.members import Got
from tests.interop.mixed_groups import check_orderly
from tests.interop.results import FAIL, LIMIT, NOT_APPLICABLE, PASS
from tests.interop.run import APACHE, Choice
from tests.interop.scenarios import SCENARIOS
from tests.interop.servers import BROKER_NAME, CLUSTER_NAME, Cluster

from penstock import MessageQueue, StoredMessage, embedded

QUEUE = MessageQueue("T", "broker-a", 0)


def stored(body: str, offset: int = 0) -> StoredMessage:
    return StoredMessage("T", body.encode(), {}, QUEUE, offset)


def got(offset: int, began: float, ended: float, member: str = "java", queue_id: int = 0) -> Got:
    return Got(member, queue_id, offset, 0, began, ended, f"m-{offset}")


@pytest.fixture(scope="module")
def cluster() -> Iterator[Cluster]:
    with embedded() as mq:
        (broker,) = mq.admin.cluster()
        yield Cluster(mq.namesrv, broker.address, CLUSTER_NAME, BROKER_NAME, Path(mq.data))


def test_a_failed_comparison_shows_both_values() -> None:
    same(1, 1, "number")
    with pytest.raises(Failed, match="number: expected 1, found 2"):
        same(1, 2, "number")
    with pytest.raises(Failed, match="no"):
        check(False, "no")


def test_a_failed_wait_describes_the_condition() -> None:
    wait_for(lambda: True, lambda: "never shown")
    with pytest.raises(Failed, match="the queue is empty"):
        wait_for(lambda: False, lambda: "the queue is empty", 0.01)


def test_each_message_must_arrive_exactly_once() -> None:
    seen = Seen()
    seen.add(stored("m-0"), stored("m-1"))
    seen.check_once(texts(2))
    with pytest.raises(Failed, match="1 of 3 messages never arrived"):
        seen.wait_for(texts(3), 0.01)
    with pytest.raises(Failed, match="consumed messages"):
        seen.check_once(texts(1))
    seen.add(stored("m-1"))
    with pytest.raises(Failed, match="arrived more than once"):
        seen.check_once(texts(2))


def test_a_wrong_order_is_detected() -> None:
    kept, mixed = InOrder(), InOrder()
    for offset in (0, 1, 1, 2):
        kept(stored("x", offset))
    kept.check(again=True)
    for offset in (0, 2, 1):
        mixed(stored("x", offset))
    with pytest.raises(Failed, match="was delivered in the order"):
        mixed.check(again=True)


def test_two_members_in_one_queue_at_once_are_detected() -> None:
    apart = [got(0, 1.0, 1.1), got(1, 1.1, 1.2, "penstock"), got(0, 1.0, 1.2, queue_id=1)]
    assert check_orderly(apart) == []
    with pytest.raises(Failed, match="two members at once"):
        check_orderly([got(0, 1.0, 1.1), got(1, 1.05, 1.2, "penstock")])
    with pytest.raises(Failed, match="out of order"):
        check_orderly([got(1, 1.0, 1.1), got(0, 1.1, 1.2)])


def test_a_redelivery_names_both_members() -> None:
    again = check_orderly([got(0, 1.0, 1.1), got(0, 1.2, 1.3, "penstock"), got(1, 1.3, 1.4)])
    assert again == ["0/0 by penstock after java"]


def test_row_names_are_unique() -> None:
    ours = (*RUNS, *client_guarded.NAMES, *client_failover.NAMES, *mixed_groups.NAMES)
    names = [*SCENARIOS, *ours, *cli_scenarios.RUNS]
    assert len(set(names)) == len(names)
    assert set(PENSTOCK_LIMITS) <= set(RUNS)
    assert Choice(["client"]).of("client", list(RUNS)) == list(RUNS)
    assert Choice(["cli"]).of("cli", list(cli_scenarios.RUNS)) == list(cli_scenarios.RUNS)
    assert Choice(["client_send_sync"]).of("client", list(RUNS)) == ["client_send_sync"]
    assert set(APACHE) == {"apache-5.5.0", "apache-4.9.7"}


def test_a_cell_shows_how_its_run_ended(cluster: Cluster) -> None:
    def passes(lab: Lab) -> str:
        return lab.name("seen")

    def fails(lab: Lab) -> str:
        raise Failed("3 of 4")

    def breaks(lab: Lab) -> str:
        raise KeyError("colour")

    def lacks_the_feature(lab: Lab) -> str:
        raise NotApplicable("4.9 has none")

    def is_refused(lab: Lab) -> str:
        raise Failed("code 16: timers are not supported by this broker yet; try: later")

    runs = {run.__name__: run for run in (passes, fails, breaks, lacks_the_feature, is_refused)}
    limits = {"is_refused": re.compile(r"timers .* yet"), "fails": re.compile("never")}
    cells = run_clients(cluster, list(runs), "on penstock", runs=runs, limits=limits)
    found = {cell.row: (cell.status, cell.evidence) for cell in cells}
    assert found["passes"][0] == PASS
    assert found["passes"][1].startswith("seen-passes-")
    assert found["fails"] == (FAIL, "3 of 4")
    assert found["breaks"][0] == FAIL
    assert found["breaks"][1].startswith("KeyError: 'colour' at breaks:")
    assert found["lacks_the_feature"] == (NOT_APPLICABLE, "4.9 has none")
    assert found["is_refused"] == (LIMIT, "timers are not supported by this broker yet")


def test_a_run_that_hangs_is_a_failure(cluster: Cluster, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tests.interop.client_scenarios.LIMIT_SECONDS", 0.05)

    def hangs(lab: Lab) -> str:
        time.sleep(0.5)
        return "too late"

    (cell,) = run_clients(cluster, ["hangs"], "on penstock", runs={"hangs": hangs})
    assert (cell.status, cell.evidence) == (FAIL, "not finished after 0 s")


def test_scenarios_run_against_our_own_broker(cluster: Cluster) -> None:
    names = [f"client_{name}" for name in ("send_sync", "send_batch", "aio_send", "admin_groups")]
    cells = list(run_clients(cluster, names, "on penstock"))
    assert {cell.row: cell.status for cell in cells} == dict.fromkeys(names, PASS)
