"""Codes and their names."""

from __future__ import annotations

from penstock.protocol.codes import (
    REQUEST_NAMES,
    RESPONSE_NAMES,
    RequestCode,
    ResponseCode,
    request_name,
    response_name,
)


def test_codes_are_plain_integers() -> None:
    assert type(RequestCode.SEND_MESSAGE_V2) is int
    assert type(ResponseCode.PULL_NOT_FOUND) is int


def test_no_two_requests_share_a_code_and_no_two_responses_do() -> None:
    for codes, names in ((RequestCode, REQUEST_NAMES), (ResponseCode, RESPONSE_NAMES)):
        assert len(names) == sum(name.isupper() for name in vars(codes))


def test_a_code_means_one_thing_in_a_request_and_another_in_a_response() -> None:
    assert request_name(11) == "PULL_MESSAGE"
    assert response_name(11) == "SLAVE_NOT_AVAILABLE"


def test_an_unknown_code_is_named_by_its_number() -> None:
    assert request_name(9999) == "request 9999"
    assert response_name(-5) == "response -5"


def test_pop_codes_are_beyond_sixteen_bits() -> None:
    assert [code for code in REQUEST_NAMES if code > 32767] == sorted(
        code for code, name in REQUEST_NAMES.items() if code >= 200050
    )
