"""What a handler says about its messages."""

from __future__ import annotations

import pickle

import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock.client.consuming.outcomes import (
    ALL_ACKNOWLEDGED,
    ConsumeContext,
    ConsumeResult,
    DeadLetter,
    RetryLater,
    ReturnType,
    acknowledged,
    judge,
)
from penstock.model import MessageQueue


def concurrent(
    returned: object = None,
    error: BaseException | None = None,
    elapsed: float = 0.0,
    strict: bool = False,
) -> tuple[ConsumeResult, ReturnType]:
    outcome = judge(returned, error, elapsed, 900.0, orderly=False, strict=strict)
    assert outcome.error is error
    return outcome.result, outcome.return_type


def orderly(
    returned: object = None,
    error: BaseException | None = None,
    elapsed: float = 0.0,
    strict: bool = False,
) -> tuple[ConsumeResult, ReturnType]:
    return judge(returned, error, elapsed, 900.0, orderly=True, strict=strict)[:2]


SUCCESS, LATER = ConsumeResult.SUCCESS, ConsumeResult.RECONSUME_LATER
SUSPEND = ConsumeResult.SUSPEND


@pytest.mark.spec("S74")
def test_returning_is_success_and_a_failing_result_is_failed() -> None:
    assert concurrent() == (SUCCESS, ReturnType.SUCCESS)
    assert concurrent(SUCCESS) == (SUCCESS, ReturnType.SUCCESS)
    assert concurrent(LATER) == (LATER, ReturnType.FAILED)
    assert orderly() == (SUCCESS, ReturnType.SUCCESS)
    assert orderly(SUSPEND) == (SUSPEND, ReturnType.FAILED)
    assert orderly(ConsumeResult.COMMIT) == (ConsumeResult.COMMIT, ReturnType.SUCCESS)
    assert orderly(ConsumeResult.ROLLBACK) == (ConsumeResult.ROLLBACK, ReturnType.SUCCESS)


@pytest.mark.spec("S75", "S140")
@pytest.mark.parametrize("error", [ValueError("no"), SystemExit(1), KeyboardInterrupt()])
def test_raising_anything_is_an_exception_and_comes_again(error: BaseException) -> None:
    assert concurrent(error=error) == (LATER, ReturnType.EXCEPTION)
    assert orderly(error=error) == (SUSPEND, ReturnType.EXCEPTION)


@pytest.mark.spec("S76")
def test_a_java_style_handler_that_returns_nothing_has_failed() -> None:
    assert concurrent(None, strict=True) == (LATER, ReturnType.RETURNNULL)
    assert orderly(None, strict=True) == (SUSPEND, ReturnType.RETURNNULL)


@pytest.mark.spec("S76")
@pytest.mark.parametrize("nonsense", [42, "SUCCESS", True, [], SUSPEND])
def test_nonsense_counts_as_no_answer(nonsense: object) -> None:
    assert concurrent(nonsense) == (LATER, ReturnType.RETURNNULL)


def test_a_concurrent_result_is_nonsense_in_orderly_mode() -> None:
    assert orderly(LATER) == (SUSPEND, ReturnType.RETURNNULL)


@pytest.mark.spec("S77")
@pytest.mark.parametrize("returned", [SUCCESS, LATER, None])
def test_a_call_at_its_timeout_is_timed_out_with_any_result(returned: object) -> None:
    result, return_type = concurrent(returned, elapsed=900.0)
    assert return_type is ReturnType.TIME_OUT
    assert result is (LATER if returned is LATER else SUCCESS)
    assert concurrent(returned, elapsed=899.9)[1] is not ReturnType.TIME_OUT


@pytest.mark.spec("S77")
def test_an_exception_is_an_exception_even_after_the_timeout() -> None:
    assert concurrent(error=ValueError(), elapsed=9999.0) == (LATER, ReturnType.EXCEPTION)


def test_asking_for_a_retry_is_a_failure_and_no_accident() -> None:
    assert concurrent(error=RetryLater("1m")) == (LATER, ReturnType.FAILED)
    assert orderly(error=RetryLater()) == (SUSPEND, ReturnType.FAILED)
    assert concurrent(error=DeadLetter("broken")) == (LATER, ReturnType.FAILED)


@pytest.mark.spec("S80")
@pytest.mark.parametrize(
    ("ack_index", "done"), [(1, 2), (0, 1), (-1, 0), (-7, 0), (4, 5), (9, 5), (ALL_ACKNOWLEDGED, 5)]
)
def test_the_ack_index_counts_from_the_start_of_the_batch(ack_index: int, done: int) -> None:
    assert acknowledged(SUCCESS, ack_index, 5) == done


@pytest.mark.spec("S81")
@given(ack_index=st.integers(-3, 10), size=st.integers(1, 10))
def test_a_failed_batch_acknowledges_nothing(ack_index: int, size: int) -> None:
    assert acknowledged(LATER, ack_index, size) == 0


def test_a_new_context_acknowledges_all_and_commits_by_itself() -> None:
    context = ConsumeContext("billing", MessageQueue("orders", "broker-a", 1))
    assert acknowledged(SUCCESS, context.ack_index, 32) == 32
    assert (context.delay_level, context.auto_commit) == (0, True)
    assert context.queue.queue_id == 1


@pytest.mark.spec("S98")
@pytest.mark.parametrize(("delay", "level"), [(1, 1), (18, 18), ("10s", 3), ("2h", 18), (None, 0)])
def test_a_retry_names_a_level_or_its_text(delay: int | str | None, level: int) -> None:
    assert RetryLater(delay).level == level


@pytest.mark.parametrize("delay", [19, -1, "11s", "soon"])
def test_another_delay_is_a_value_error_that_lists_the_18(delay: int | str) -> None:
    with pytest.raises(ValueError, match=r"1s, 5s, 10s, .* 1h, 2h"):
        RetryLater(delay)


def test_what_a_handler_raises_survives_pickling() -> None:
    retry = pickle.loads(pickle.dumps(RetryLater("1m", "busy")))
    assert (retry.level, retry.reason, str(retry)) == (5, "busy", "retry after 1m: busy")
    dead = pickle.loads(pickle.dumps(DeadLetter("not JSON")))
    assert (dead.reason, str(dead)) == ("not JSON", "not JSON")
