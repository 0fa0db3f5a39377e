"""Every header class: round trips in both serialisations, and its place in the registry."""

from __future__ import annotations

import inspect
from dataclasses import is_dataclass
from typing import TYPE_CHECKING, Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from penstock.errors import HeaderFieldError
from penstock.protocol.bodies.registry import REQUEST_BODIES, RESPONSE_BODIES
from penstock.protocol.codes import REQUEST_NAMES, RequestCode, ResponseCode
from penstock.protocol.commands import Command, decode_command, encode_command
from penstock.protocol.frames import BINARY, JSON, FrameDecoder
from penstock.protocol.headers import (
    SEND_V2,
    HeaderCodec,
    HeaderField,
    admin,
    auth,
    clients,
    common,
    header_codec,
    nameserver,
    offsets,
    pop,
    pull,
    send,
    transactions,
)
from penstock.protocol.headers.registry import REQUESTS, RawBody, RequestType

if TYPE_CHECKING:
    from _typeshed import DataclassInstance

FAMILIES = (*(admin, auth, clients, common, nameserver, offsets, pop, pull, send, transactions),)


def header_classes() -> dict[str, type[DataclassInstance]]:
    return {
        cls.__name__: cls
        for family in FAMILIES
        for cls in vars(family).values()
        if inspect.isclass(cls) and is_dataclass(cls) and cls.__module__ == family.__name__
    }


CLASSES = header_classes()
CODECS: dict[str, HeaderCodec[Any]] = {
    **{name: header_codec(cls) for name, cls in CLASSES.items()},
    "SendMessage V2": SEND_V2,
}
# There are many classes and one codec: few examples of each are many of it.
A_FEW_EXAMPLES = settings(max_examples=20)
EVERY_HEADER = pytest.mark.parametrize("codec", CODECS.values(), ids=CODECS)

VALUES: dict[str, st.SearchStrategy[object]] = {
    "str": st.text(st.characters(codec="utf-8"), max_size=20),
    "bool": st.booleans(),
    "int32": st.integers(-(2**31), 2**31 - 1),
    "int64": st.integers(-(2**63), 2**63 - 1),
}


def values_of(field: HeaderField) -> st.SearchStrategy[object]:
    return VALUES[field.kind] | st.none() if field.is_nullable else VALUES[field.kind]


def headers_of(codec: HeaderCodec[Any]) -> st.SearchStrategy[Any]:
    return st.builds(codec.cls, **{field.name: values_of(field) for field in codec.fields})


@EVERY_HEADER
@A_FEW_EXAMPLES
@given(data=st.data())
def test_a_header_survives_the_wire_in_both_serialisations(
    codec: HeaderCodec[Any], data: st.DataObject
) -> None:
    header = data.draw(headers_of(codec))
    for serializer in (JSON, BINARY):
        command = Command(10, ext=codec.encode(header), serializer=serializer)
        (frame,) = FrameDecoder().feed(encode_command(command))
        received = decode_command(frame).ext or {}
        assert received == command.ext
        assert codec.decode(received) == header


@EVERY_HEADER
@A_FEW_EXAMPLES
@given(data=st.data())
def test_a_mutated_header_is_read_or_refused_by_name(
    codec: HeaderCodec[Any], data: st.DataObject
) -> None:
    ext = codec.encode(data.draw(headers_of(codec)))
    name = data.draw(st.sampled_from(sorted(codec.keys)))
    change = data.draw(st.none() | st.text(max_size=5))
    if change is None:
        ext.pop(name, None)
    else:
        ext[name] = change
    field = next(field for field in codec.fields if field.wire == name)
    try:
        header = codec.decode(ext)
    except HeaderFieldError as error:
        assert repr(name) in str(error)  # noqa: PT017 - most changes are harmless
        assert field.is_required or field.kind in ("int32", "int64")
    else:
        assert codec.decode(codec.encode(header)) == header


@EVERY_HEADER
def test_every_field_has_its_own_name_on_the_wire(codec: HeaderCodec[Any]) -> None:
    assert len(codec.keys) == len(codec.fields)
    assert all(field.wire.isascii() for field in codec.fields)


@EVERY_HEADER
def test_required_fields_come_first_and_are_refused_when_missing(codec: HeaderCodec[Any]) -> None:
    required = [field.wire for field in codec.fields if field.is_required]
    if required:
        with pytest.raises(HeaderFieldError, match=f"without field '{required[0]}'"):
            codec.decode({})
    else:
        assert codec.decode({}) == codec.cls()


# ------------------------------------------------------------------------------------- registry


def test_every_header_class_belongs_to_a_request() -> None:
    used = {
        cls
        for request in REQUESTS.values()
        for cls in (request.header, request.response_header, request.refusal_header)
    }
    assert set(CLASSES.values()) - used == {common.CommonFields}


def test_every_structured_body_belongs_to_a_request() -> None:
    # Timer metrics are slave traffic, and their request has no header.
    assert REQUEST_BODIES.keys() <= REQUESTS.keys()
    assert RESPONSE_BODIES.keys() - REQUESTS.keys() <= {RequestCode.GET_TIMER_METRICS}


@pytest.mark.parametrize("request_type", REQUESTS.values(), ids=lambda request: request.name)
def test_a_request_knows_its_code_name_and_codecs(request_type: RequestType) -> None:
    assert REQUESTS[request_type.code] is request_type
    assert REQUEST_NAMES[request_type.code] == request_type.name
    assert class_of(request_type.codec) is request_type.header
    success = request_type.response_codec(ResponseCode.SUCCESS)
    assert class_of(success) is request_type.response_header
    refused = request_type.response_codec(ResponseCode.SYSTEM_ERROR)
    assert class_of(refused) is request_type.refusal_header


def class_of(codec: HeaderCodec[Any] | None) -> type | None:
    return codec.cls if codec else None


@pytest.mark.parametrize("code", [310, 320, 325])
def test_short_names_are_used_by_the_second_version_of_sends(code: int) -> None:
    assert REQUESTS[code].codec is SEND_V2


@pytest.mark.parametrize("code", [10, 324])
def test_long_names_are_used_by_the_first_version_of_sends(code: int) -> None:
    assert REQUESTS[code].codec is header_codec(send.SendMessage)


@pytest.mark.parametrize("code", [0, 19, 20, 21])
def test_all_four_pull_codes_come_with_offsets(code: int) -> None:
    codec = REQUESTS[RequestCode.PULL_MESSAGE].response_codec(code)
    assert class_of(codec) is pull.PullMessageResult


@pytest.mark.parametrize("code", [0, 10, 11, 12])
def test_a_stored_message_has_a_place_even_if_it_is_not_safe_yet(code: int) -> None:
    codec = REQUESTS[RequestCode.SEND_MESSAGE_V2].response_codec(code)
    assert class_of(codec) is send.SendMessageResult


def test_message_bytes_are_told_apart_from_structured_bodies() -> None:
    assert REQUESTS[RequestCode.SEND_BATCH_MESSAGE].body is RawBody.BATCH
    assert REQUESTS[RequestCode.PULL_MESSAGE].response_body is RawBody.RECORDS
    assert REQUESTS[RequestCode.HEART_BEAT].body is REQUEST_BODIES[RequestCode.HEART_BEAT]


def test_a_code_nobody_uses_is_not_in_the_registry() -> None:
    assert 9999 not in REQUESTS
