"""Requests described once: the same command and result for sessions and for blocking callers."""

from __future__ import annotations

import pytest

from penstock.client import requests
from penstock.client.requests import Request
from penstock.errors import NotFound, ProtocolError, RequestRefused
from penstock.model import MessageQueue
from penstock.protocol.codes import RequestCode, ResponseCode
from penstock.protocol.commands import Command
from penstock.protocol.headers.codec import encode_header
from penstock.protocol.headers.offsets import OffsetResult

QUEUE = MessageQueue("orders", "broker-a", 3)
TOO_LATE = (
    "timer message illegal, the delay time should not be bigger than the max delay {}ms; or if set "
    "del msg, the delay time should be bigger than the current time"
)


def answer(code: int = ResponseCode.SUCCESS, offset: int = 7) -> Command:
    return Command(code, ext=encode_header(OffsetResult(offset)), remark="no")


@pytest.mark.parametrize(
    ("limit", "said"),
    [
        (259_200_000, "at most 3 days"),
        (86_400_000, "at most 1 day,"),
        (90_000_000, "at most 25 hours"),
        (600_000, "at most 10 minutes"),
        (59_999, "at most 59 seconds"),
    ],
)
def test_a_timer_that_is_too_late_names_the_limit_and_a_way_out(limit: int, said: str) -> None:
    refused = requests.refusal(
        Command(ResponseCode.MESSAGE_ILLEGAL, remark=TOO_LATE.format(limit)), 310, "b:1", "T"
    )
    assert TOO_LATE.format(limit) in refused.what
    assert refused.hint is not None
    assert said in refused.hint
    assert "timerMaxDelaySec" in refused.hint


@pytest.mark.parametrize("remark", [None, "", TOO_LATE.format("9" * 40), TOO_LATE.format("x")])
def test_another_text_of_a_broker_gets_no_way_out(remark: str | None) -> None:
    answer = Command(ResponseCode.MESSAGE_ILLEGAL, remark=remark)
    assert requests.refusal(answer, 310, "b:1", "T").hint is None


@pytest.mark.parametrize(
    ("request_", "code"),
    [
        (requests.max_offset(QUEUE), RequestCode.GET_MAX_OFFSET),
        (requests.min_offset(QUEUE), RequestCode.GET_MIN_OFFSET),
        (requests.offset_at(QUEUE, 5), RequestCode.SEARCH_OFFSET_BY_TIMESTAMP),
        (requests.committed("g", QUEUE), RequestCode.QUERY_CONSUMER_OFFSET),
    ],
)
def test_an_offset_is_asked_for_by_topic_and_queue(
    request_: Request[int | None], code: int
) -> None:
    command = request_.command()
    assert command.code == code
    assert command.ext is not None
    assert (command.ext["topic"], command.ext["queueId"]) == ("orders", "3")
    assert request_.result(answer(), "b:1") == 7


def test_a_refusal_names_the_server_and_the_subject() -> None:
    with pytest.raises(RequestRefused, match=r"^b:1 refused GET_MAX_OFFSET for .*orders.*: no"):
        requests.max_offset(QUEUE).result(answer(ResponseCode.SYSTEM_ERROR), "b:1")


def test_no_committed_offset_is_a_result_only_where_it_is_expected() -> None:
    missing = answer(ResponseCode.QUERY_NOT_FOUND)
    assert requests.committed("g", QUEUE).result(missing, "b:1") is None
    with pytest.raises(NotFound):
        requests.max_offset(QUEUE).result(missing, "b:1")


def test_a_new_group_can_be_distinguished_from_one_at_zero() -> None:
    ext = requests.committed("g", QUEUE, or_zero=False).command().ext
    assert ext is not None
    assert ext["setZeroIfNotFound"] == "false"


def test_offsets_of_one_topic_and_broker_are_one_table() -> None:
    assert requests.offset_table(QUEUE) == requests.offset_table(QUEUE._replace(queue_id=0))
    assert requests.offset_table(QUEUE) != requests.offset_table(QUEUE._replace(topic="x"))


def test_a_body_is_bytes_wherever_it_was_read_to() -> None:
    for body in (b"ab", bytearray(b"ab"), memoryview(b"ab")):
        assert requests.body_bytes(Command(0, body=body)) == b"ab"
    with pytest.raises(ProtocolError, match="body of type str"):
        requests.body_bytes(Command(0, body="ab"))  # type: ignore[arg-type]
