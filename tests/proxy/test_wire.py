"""The messages of the API."""

from __future__ import annotations

import subprocess
import sys

from tools.proxy_stubs import STUB, stub

from penstock.proxy.wire import messages as wire
from penstock.proxy.wire.codes import Code
from penstock.proxy.wire.definitions import PACKAGE


def test_the_types_are_those_of_the_definitions() -> None:
    assert STUB.read_text() == stub(), "python -m tools.proxy_stubs"


def test_fields_have_their_numbers_on_the_wire() -> None:
    message = wire.Message(
        topic=wire.Resource(name="t"),
        user_properties={"k": "v"},
        system_properties=wire.SystemProperties(message_id="i", queue_offset=0, priority=1),
        body=b"b",
    )
    data = message.SerializeToString()
    # topic 1 {name 2}, user_properties 2 {1, 2}, system_properties 3 {3, 14, 22}, body 4
    assert data == (
        b"\x0a\x03\x12\x01t\x12\x06\x0a\x01k\x12\x01v\x1a\x08\x1a\x01i\x70\x00\xb0\x01\x01\x22\x01b"
    )
    assert wire.Message.FromString(data) == message
    assert wire.Status(code=Code.OK).SerializeToString() == b"\x08\xa0\x9c\x01"


def test_enums_have_a_zero() -> None:
    pool = wire.POOL
    zero = {
        name: pool.FindEnumTypeByName(f"{PACKAGE}.{name}").values_by_number[0].name
        for name in ("Code", "MessageType", "AddressScheme", "TransactionSource", "Language")
    }
    assert zero == {
        "Code": "CODE_UNSPECIFIED",
        "MessageType": "MESSAGE_TYPE_UNSPECIFIED",
        "AddressScheme": "ADDRESS_SCHEME_UNSPECIFIED",
        "TransactionSource": "SOURCE_UNSPECIFIED",
        "Language": "LANGUAGE_UNSPECIFIED",
    }


def test_handlers_load_without_grpc() -> None:
    program = "import penstock.proxy.endpoint, sys; sys.exit('grpc' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", program], check=False).returncode == 0
