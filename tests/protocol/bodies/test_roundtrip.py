"""Round trips of every body class, with values made from the codec's own idea of its types."""

from __future__ import annotations

import contextlib
import dataclasses
import types
from functools import cache
from typing import Annotated, Any, Union, cast, get_args, get_origin

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from tests.support.registrations import encode_registration
from tests.support.request_types import REQUEST_BODIES, RESPONSE_BODIES

import penstock.protocol.bodies as bodies
from penstock.errors import ProtocolError
from penstock.model import MessageQueue
from penstock.protocol.bodies.codec import (
    decode_body,
    encode_body,
    encode_state,
    from_json,
    shape_of,
)
from penstock.protocol.bodies.config_text import ConfigText
from penstock.protocol.bodies.registration import (
    RegisterBrokerBody,
    decode_registration,
)
from penstock.protocol.bodies.values import WireEnum
from penstock.protocol.fastjson.dialect import Json, dumps, loads

CLASSES: list[type] = sorted(
    {
        item
        for family in bodies.__all__
        for name, item in vars(getattr(bodies, family)).items()
        if dataclasses.is_dataclass(item)
        and isinstance(item, type)
        and item.__module__ == f"{bodies.__name__}.{family}"
        and not name.startswith("_")
        and item is not ConfigText
    },
    key=lambda cls: cls.__name__,
)

# Some seventy classes share few kinds of members: a few examples of each meet all of them.
few = settings(max_examples=12, deadline=None, suppress_health_check=[HealthCheck.too_slow])

int64 = st.integers(-(2**63), 2**63 - 1)
texts = st.text(st.characters(exclude_categories=["Cs"]), max_size=8)
queues = st.builds(MessageQueue, texts, texts, st.integers(-(2**31), 2**31 - 1))
SCALARS: dict[object, st.SearchStrategy[Any]] = {
    bool: st.booleans(),
    int: int64,
    float: st.floats(allow_nan=False, allow_infinity=False),
    str: texts,
    bytes: st.binary(max_size=9),
    object: st.none() | st.booleans() | int64 | texts | st.lists(int64, max_size=2),
    MessageQueue: queues,
}


@cache
def values_of(hint: Any) -> st.SearchStrategy[Any]:
    """Values that fit a type hint of a body."""
    if hint in SCALARS:
        return SCALARS[hint]
    origin, arguments = get_origin(hint), get_args(hint)
    if origin is Annotated:
        return st.integers(*arguments[1])
    if origin in (Union, types.UnionType):
        (inner,) = (argument for argument in arguments if argument is not type(None))
        return st.none() | values_of(inner)
    if origin is tuple:
        return st.lists(values_of(arguments[0]), max_size=3).map(tuple)
    if origin is dict:
        return st.dictionaries(values_of(arguments[0]), values_of(arguments[1]), max_size=3)
    if issubclass(hint, WireEnum):
        return st.sampled_from(list(hint))
    return bodies_of(hint)


@cache
def bodies_of(cls: type) -> st.SearchStrategy[Any]:
    """Bodies of a class, every field drawn."""
    return st.builds(cls, **{field.name: values_of(field.hint) for field in shape_of(cls).fields})


@pytest.mark.parametrize("cls", CLASSES)
@few
@given(data=st.data())
def test_a_body_reads_back_as_it_was_written(cls: type, data: st.DataObject) -> None:
    body = data.draw(bodies_of(cls))
    for text in (
        encode_body(body),
        encode_body(body, bare_integer_keys=True),
        encode_state(body),
    ):
        assert decode_body(cls, text) == body


@pytest.mark.parametrize("cls", CLASSES)
@few
@given(data=st.data())
def test_mutated_bodies_raise_nothing_but_protocol_errors(cls: type, data: st.DataObject) -> None:
    text = bytearray(encode_body(data.draw(bodies_of(cls))))
    for _ in range(data.draw(st.integers(1, 3))):
        at = data.draw(st.integers(0, len(text)))
        text[at : at + data.draw(st.integers(0, 2))] = data.draw(
            st.sampled_from([b"", b"null", b"{", b"}", b"[", b"]", b"1", b'"', b":", b",", b"-1e3"])
        )
    with contextlib.suppress(ProtocolError):
        body: object = decode_body(cls, bytes(text))
        # What was accepted can be written, and means the same when read again.
        assert decode_body(cls, encode_body(body)) == body


json_values = st.recursive(
    st.none() | st.booleans() | int64 | st.floats(allow_nan=False) | texts,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(texts, inner, max_size=3),
    max_leaves=8,
)


@pytest.mark.parametrize("cls", CLASSES)
@few
@given(data=st.data())
def test_members_of_the_wrong_type_raise_nothing_but_protocol_errors(
    cls: type, data: st.DataObject
) -> None:
    names = [field.wire_name for field in shape_of(cls).fields]
    value = data.draw(st.dictionaries(st.sampled_from(names), json_values) | json_values)
    with contextlib.suppress(ProtocolError):
        from_json(cls, cast("Json", value))


@pytest.mark.parametrize(
    "cls", sorted(set(REQUEST_BODIES.values()) | set(RESPONSE_BODIES.values()), key=repr)
)
@few
@given(data=st.binary(max_size=40))
def test_random_bytes_raise_nothing_but_protocol_errors(cls: type, data: bytes) -> None:
    with contextlib.suppress(ProtocolError):
        decode_body(cls, data)


names = st.text(st.characters(exclude_categories=["Cs"], exclude_characters=" "), min_size=1)


@few
@given(data=st.data(), version=st.sampled_from([407, 513]))
def test_a_compressed_registration_keeps_what_its_format_holds(
    data: st.DataObject, version: int
) -> None:
    body: RegisterBrokerBody = data.draw(bodies_of(RegisterBrokerBody))
    named = {
        name: dataclasses.replace(
            topic,
            topic_name=name,
            topic_sys_flag=0,
            order=False,
            mapping_detail=None,
            attributes=(topic.attributes or {}) if version >= 413 else None,
        )
        for name, topic in zip(
            data.draw(st.lists(names, max_size=4, unique=True)),
            body.topics.topic_config_table.values(),
            strict=False,
        )
    }
    mappings = {
        name: dataclasses.replace(mapping, topic=name)
        for name, mapping in (body.topics.topic_queue_mapping_info_map or {}).items()
    }
    table = dataclasses.replace(
        body.topics,
        topic_config_table=named,
        mapping_data_version=None,
        topic_queue_mapping_detail_map=None,
        topic_queue_mapping_info_map=mappings if version >= 413 else None,
    )
    body = dataclasses.replace(body, topic_config_serialize_wrapper=table)
    stream = encode_registration(body, compressed=True, version=version)
    assert decode_registration(stream, compressed=False, version=version) == body


@given(st.dictionaries(st.text("abcXYZ.%", min_size=1), st.text("xyz 0=#标")))
def test_settings_read_back_without_the_blanks_around_them(lines: dict[str, str]) -> None:
    text = ConfigText(lines).to_bytes()
    assert decode_body(ConfigText, text).settings == {k: v.strip() for k, v in lines.items()}


def test_every_exported_class_is_tried() -> None:
    assert len(CLASSES) > 60
    assert loads(dumps({"classes": len(CLASSES)})) == {"classes": len(CLASSES)}
