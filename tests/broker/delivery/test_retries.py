"""Where a failed message goes next."""

import pytest

from penstock.broker.delivery.retries import (
    NextAttempt,
    after_send_back,
    group_of_retry_topic,
    is_dead_on_send,
    max_reconsume_times,
)


@pytest.mark.spec("S96")
def test_a_negative_level_goes_straight_to_the_dead_letters() -> None:
    assert after_send_back("g", 0, -1, 16) == NextAttempt("%DLQ%g", 0, is_dead=True)


@pytest.mark.spec("S97")
@pytest.mark.parametrize(("times", "level"), [(0, 3), (1, 4), (15, 18)])
def test_level_zero_lets_the_broker_choose_a_level_that_grows(times: int, level: int) -> None:
    assert after_send_back("g", times, 0, 16) == NextAttempt("%RETRY%g", level, is_dead=False)


@pytest.mark.spec("S98")
def test_a_positive_level_is_used_as_given() -> None:
    assert after_send_back("g", 7, 1, 16) == NextAttempt("%RETRY%g", 1, is_dead=False)


@pytest.mark.spec("S112")
def test_the_seventeenth_failure_of_sixteen_retries_is_the_last() -> None:
    assert not after_send_back("g", 15, 0, 16).is_dead
    assert after_send_back("g", 16, 0, 16).is_dead


@pytest.mark.spec("S111")
def test_the_clients_limit_counts_when_its_version_knows_it() -> None:
    assert max_reconsume_times(2, 479, 16) == 2
    assert max_reconsume_times(None, 479, 16) == 16
    assert max_reconsume_times(2, 120, 16) == 16


def test_the_group_is_read_off_its_retry_topic() -> None:
    assert group_of_retry_topic("%RETRY%billing") == "billing"
    assert group_of_retry_topic("orders") is None


def test_a_send_to_the_retry_topic_is_dead_past_the_limit_or_from_an_orderly_group() -> None:
    assert not is_dead_on_send(16, 16, group_is_orderly=False)
    assert is_dead_on_send(17, 16, group_is_orderly=False)
    assert is_dead_on_send(0, 16, group_is_orderly=True)
