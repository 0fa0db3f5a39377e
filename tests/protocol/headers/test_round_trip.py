"""Every header class: round trips in both serialisations, and the request that it belongs to."""

from __future__ import annotations

import importlib
import inspect
import pkgutil
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.support.request_types import (
    REQUEST_BODIES,
    REQUESTS,
    RESPONSE_BODIES,
    RawBody,
    RequestType,
)

from penstock.broker import handlers
from penstock.errors import HeaderFieldError
from penstock.nameserver import handlers as nameserver_handlers
from penstock.protocol.codes import REQUEST_NAMES, RequestCode, ResponseCode
from penstock.protocol.commands import Command, decode_command, encode_command
from penstock.protocol.frames import BINARY, JSON, FrameDecoder
from penstock.protocol.headers import (
    admin,
    auth,
    clients,
    nameserver,
    offsets,
    pop,
    pull,
    send,
    transactions,
)
from penstock.protocol.headers.codec import (
    Header,
    HeaderField,
    decode_header,
    encode_header,
    header_fields,
)

FAMILIES = (*(admin, auth, clients, nameserver, offsets, pop, pull, send, transactions),)


def header_classes() -> dict[str, type[Header]]:
    return {
        cls.__name__: cls
        for family in FAMILIES
        for cls in vars(family).values()
        if inspect.isclass(cls) and issubclass(cls, Header) and cls.__module__ == family.__name__
    }


CLASSES = {**header_classes(), "SendMessageV2": send.SendMessageV2}
# There are many classes and one codec: few examples of each are many of it.
A_FEW_EXAMPLES = settings(max_examples=20)
EVERY_HEADER = pytest.mark.parametrize("cls", CLASSES.values(), ids=CLASSES)

VALUES: dict[str, st.SearchStrategy[object]] = {
    "str": st.text(st.characters(codec="utf-8"), max_size=20),
    "bool": st.booleans(),
    "int32": st.integers(-(2**31), 2**31 - 1),
    "int64": st.integers(-(2**63), 2**63 - 1),
}


def values_of(field: HeaderField) -> st.SearchStrategy[object]:
    return VALUES[field.kind] | st.none() if field.is_nullable else VALUES[field.kind]


def headers_of(cls: type[Header]) -> st.SearchStrategy[Any]:
    return st.builds(cls, **{field.name: values_of(field) for field in header_fields(cls)})


@EVERY_HEADER
@A_FEW_EXAMPLES
@given(data=st.data())
def test_a_header_survives_the_wire_in_both_serialisations(
    cls: type[Header], data: st.DataObject
) -> None:
    header = data.draw(headers_of(cls))
    for serializer in (JSON, BINARY):
        command = Command(10, ext=encode_header(header), serializer=serializer)
        (frame,) = FrameDecoder().feed(encode_command(command))
        received = decode_command(frame).ext or {}
        assert received == command.ext
        assert decode_header(cls, received) == header


@EVERY_HEADER
@A_FEW_EXAMPLES
@given(data=st.data())
def test_a_mutated_header_is_read_or_refused_by_name(
    cls: type[Header], data: st.DataObject
) -> None:
    ext = encode_header(data.draw(headers_of(cls)))
    name = data.draw(st.sampled_from(sorted(cls.__struct_encode_fields__)))
    change = data.draw(st.none() | st.text(max_size=5))
    if change is None:
        ext.pop(name, None)
    else:
        ext[name] = change
    field = next(field for field in header_fields(cls) if field.wire == name)
    try:
        header = decode_header(cls, ext)
    except HeaderFieldError as error:
        assert repr(name) in str(error)  # noqa: PT017 - most changes are harmless
        assert field.is_required or field.kind in ("int32", "int64")
    else:
        assert decode_header(cls, encode_header(header)) == header


@EVERY_HEADER
def test_every_field_has_its_own_name_on_the_wire(cls: type[Header]) -> None:
    assert len(set(cls.__struct_encode_fields__)) == len(cls.__struct_fields__)
    assert all(field.wire.isascii() for field in header_fields(cls))


@EVERY_HEADER
def test_required_fields_come_first_and_are_refused_when_missing(cls: type[Header]) -> None:
    required = [field.wire for field in header_fields(cls) if field.is_required]
    if required:
        with pytest.raises(HeaderFieldError, match=f"without field '{required[0]}'"):
            decode_header(cls, {})
    else:
        assert decode_header(cls, {}) == cls()


# ------------------------------------------------------------------------------------- requests


def headers_of_handlers() -> set[type[Header]]:
    modules = [nameserver_handlers] + [
        importlib.import_module(f"{handlers.__name__}.{module.name}")
        for module in pkgutil.iter_modules(handlers.__path__)
    ]
    return {
        cls
        for module in modules
        for cls in vars(module).values()
        if inspect.isclass(cls) and issubclass(cls, Header)
    }


def test_every_header_class_has_a_handler_or_a_row_in_the_table_of_requests() -> None:
    used = {
        cls
        for request in REQUESTS.values()
        for cls in (request.header, request.response_header, request.refusal_header)
    }
    assert set(CLASSES.values()) <= used | headers_of_handlers()


def test_every_structured_body_belongs_to_a_request() -> None:
    # Timer metrics are slave traffic, and their request has no header.
    assert REQUEST_BODIES.keys() <= REQUESTS.keys()
    assert RESPONSE_BODIES.keys() - REQUESTS.keys() <= {RequestCode.GET_TIMER_METRICS}


@pytest.mark.parametrize("request_type", REQUESTS.values(), ids=lambda request: request.name)
def test_a_request_knows_its_code_name_and_headers(request_type: RequestType) -> None:
    assert REQUESTS[request_type.code] is request_type
    assert REQUEST_NAMES[request_type.code] == request_type.name
    success = request_type.header_of_response(ResponseCode.SUCCESS)
    assert success is request_type.response_header
    refused = request_type.header_of_response(ResponseCode.SYSTEM_ERROR)
    assert refused is request_type.refusal_header


@pytest.mark.parametrize("code", [310, 320, 325])
def test_short_names_are_used_by_the_second_version_of_sends(code: int) -> None:
    assert REQUESTS[code].header is send.SendMessageV2


@pytest.mark.parametrize("code", [10, 324])
def test_long_names_are_used_by_the_first_version_of_sends(code: int) -> None:
    assert REQUESTS[code].header is send.SendMessage


@pytest.mark.parametrize("code", [0, 19, 20, 21])
def test_all_four_pull_codes_come_with_offsets(code: int) -> None:
    header = REQUESTS[RequestCode.PULL_MESSAGE].header_of_response(code)
    assert header is pull.PullMessageResult


@pytest.mark.parametrize("code", [0, 10, 11, 12])
def test_a_stored_message_has_a_place_even_if_it_is_not_safe_yet(code: int) -> None:
    header = REQUESTS[RequestCode.SEND_MESSAGE_V2].header_of_response(code)
    assert header is send.SendMessageResult


def test_message_bytes_differ_from_structured_bodies() -> None:
    assert REQUESTS[RequestCode.SEND_BATCH_MESSAGE].body is RawBody.BATCH
    assert REQUESTS[RequestCode.PULL_MESSAGE].response_body is RawBody.RECORDS
    assert REQUESTS[RequestCode.HEART_BEAT].body is REQUEST_BODIES[RequestCode.HEART_BEAT]


def test_an_unused_code_is_not_in_the_table() -> None:
    assert 9999 not in REQUESTS
