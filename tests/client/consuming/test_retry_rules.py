"""The rules of what a failed message becomes."""

from __future__ import annotations

import pytest

from penstock.client.consuming.outcomes import (
    ConsumeResult,
    DeadLetter,
    Outcome,
    RetryLater,
    ReturnType,
)
from penstock.client.consuming.retry_rules import (
    MAX_REASON_CHARACTERS,
    is_last,
    level_of,
    reason_of,
    retry_copy,
    send_back_header,
)
from penstock.model import MessageQueue, StoredMessage
from penstock.model.names import Failure

QUEUE = MessageQueue("orders", "broker-a", 3)


def failed(error: BaseException | None) -> Outcome:
    return Outcome(ConsumeResult.RECONSUME_LATER, ReturnType.EXCEPTION, error)


def message(times: int = 0, **properties: str) -> StoredMessage:
    said = {"UNIQ_KEY": "ID", **properties}
    return StoredMessage("orders", b"x", said, QUEUE, 7, 4711, reconsume_times=times)


@pytest.mark.parametrize(
    ("error", "level"),
    [(ValueError(), 2), (RetryLater("1m"), 5), (RetryLater(), 0), (DeadLetter("no"), -1)],
)
def test_the_handlers_error_chooses_the_delay(error: Exception, level: int) -> None:
    assert level_of(failed(error), otherwise=2) == level


def test_the_last_failure_is_the_one_after_all_retries_or_the_handlers_word() -> None:
    assert not is_last(message(1), 0, 2)
    assert is_last(message(2), 0, 2)
    assert is_last(message(0), -1, 2)


def test_a_send_back_says_where_the_message_is() -> None:
    header = send_back_header(message(), "billing", 5, 16)
    assert (header.offset, header.group, header.delay_level) == (4711, "billing", 5)
    assert (header.origin_msg_id, header.origin_topic) == ("ID", "orders")
    assert header.max_reconsume_times == 16


def test_a_copy_for_the_retry_topic_waits_longer_after_every_failure() -> None:
    levels = [retry_copy(message(times), 0, {}, 99).properties["DELAY"] for times in (0, 4, 15, 40)]
    assert levels == ["3", "7", "18", "18"]
    assert retry_copy(message(), 9, {}, 99).properties["DELAY"] == "9"


def test_a_copy_that_is_given_up_has_failed_more_often_than_it_may() -> None:
    copy = retry_copy(message(1, DELAY="4", MIN_OFFSET="0"), -1, {"why": "bad"}, 16)
    assert copy.reconsume_times > copy.max_reconsume_times
    assert copy.properties == {
        "UNIQ_KEY": "ID",
        "ORIGIN_MESSAGE_ID": "ID",
        "RETRY_TOPIC": "orders",
        "why": "bad",
    }


def test_a_reason_fits_into_properties() -> None:
    reason = reason_of(message(2), failed(ValueError("a\x01b\x02c\ud800" + "x" * 5000)), "host-1")
    assert reason["PENSTOCK_REASON_TYPE"] == "ValueError"
    assert reason["PENSTOCK_REASON_MESSAGE"].startswith("a b c?x")
    assert len(reason["PENSTOCK_REASON_MESSAGE"]) == MAX_REASON_CHARACTERS
    assert reason["PENSTOCK_REASON_HOST"] == "host-1"
    assert reason["PENSTOCK_REASON_ATTEMPT"] == "3"
    assert reason_of(message(), None, "h")["PENSTOCK_REASON_TYPE"] == "ConsumeTimeout"
    assert reason_of(message(), failed(DeadLetter("why")), "h")["PENSTOCK_REASON_MESSAGE"] == "why"


class Speechless(Exception):
    """An error that fails when it is asked for its text."""

    def __str__(self) -> str:
        raise RuntimeError("no text of me")


@pytest.mark.parametrize(
    ("error", "kind", "text"),
    [
        (DeadLetter(ValueError("no card")), "DeadLetter", "no card"),  # type: ignore[arg-type]
        (RetryLater("1s", ValueError("busy")), "RetryLater", "busy"),  # type: ignore[arg-type]
        (DeadLetter(None), "DeadLetter", None),  # type: ignore[arg-type]
        (Speechless(), "Speechless", None),
    ],
)
def test_no_error_keeps_a_message_from_its_way(
    error: Exception, kind: str, text: str | None
) -> None:
    reason = reason_of(message(), failed(error), "here")
    assert reason[Failure.TYPE] == kind
    assert reason.get(Failure.MESSAGE) == text


def raised(by: BaseException, cause: BaseException | None, *, during: bool = False) -> Outcome:
    """The outcome of a handler that raised, from a cause or while it handled one."""
    try:
        if cause is None:
            raise by
        if not during:
            raise by from cause
        try:
            raise cause
        except type(cause):
            raise by  # noqa: B904  that is the case
    except BaseException as error:
        return Outcome(ConsumeResult.RECONSUME_LATER, ReturnType.FAILED, error)


@pytest.mark.parametrize("during", [False, True])
@pytest.mark.parametrize(
    ("error", "kind", "text"),
    [
        (RetryLater("1s"), "ConnectionError", "no answer"),
        (DeadLetter(), "ConnectionError", "no answer"),
        (RetryLater("1s", "the bank"), "RetryLater", "the bank (ConnectionError: no answer)"),
        (DeadLetter("the bank"), "DeadLetter", "the bank (ConnectionError: no answer)"),
        (ValueError("bad"), "ValueError", "bad"),
    ],
)
def test_the_cause_of_a_handlers_choice_is_kept(
    error: BaseException, kind: str, text: str, during: bool
) -> None:
    outcome = raised(error, ConnectionError("no answer"), during=during)
    reason = reason_of(message(), outcome, "host")
    assert (reason[Failure.TYPE], reason[Failure.MESSAGE]) == (kind, text)


def test_a_suppressed_cause_is_not_mentioned() -> None:
    try:
        try:
            raise ConnectionError("no answer")
        except ConnectionError:
            raise RetryLater("1s", "busy") from None
    except RetryLater as error:
        outcome = Outcome(ConsumeResult.RECONSUME_LATER, ReturnType.FAILED, error)
    assert reason_of(message(), outcome, "host")[Failure.MESSAGE] == "busy"
