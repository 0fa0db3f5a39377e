"""Request and response headers as dataclasses, by family, with one codec for all.

``registry`` says which request has which. A family is loaded when it is first used, also as
``headers.admin``.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING

from penstock.protocol.headers.codec import (
    HeaderCodec,
    HeaderField,
    Int32,
    Int64,
    decode_header,
    encode_header,
    header_codec,
    header_fields,
    wire,
)

if TYPE_CHECKING:
    from penstock.protocol.headers import (
        admin,
        auth,
        clients,
        nameserver,
        offsets,
        pop,
        pull,
        routes,
        send,
        transactions,
    )
    from penstock.protocol.headers.common import CommonFields
    from penstock.protocol.headers.send import SEND_V2, decode_send_v2, encode_send_v2

_HOMES = {
    "CommonFields": "common",
    "SEND_V2": "send",
    "decode_send_v2": "send",
    "encode_send_v2": "send",
}

__all__ = [
    "CommonFields",
    "HeaderCodec",
    "HeaderField",
    "Int32",
    "Int64",
    "SEND_V2",
    "decode_header",
    "decode_send_v2",
    "encode_header",
    "encode_send_v2",
    "header_codec",
    "header_fields",
    "wire",
    # the families
    "admin",
    "auth",
    "clients",
    "nameserver",
    "offsets",
    "pop",
    "pull",
    "routes",
    "send",
    "transactions",
]


def __getattr__(name: str) -> object:
    if name in _HOMES:
        value: object = getattr(importlib.import_module(f"{__name__}.{_HOMES[name]}"), name)
        globals()[name] = value
        return value
    # What else is public and not here yet is a family.
    if name in __all__:
        return importlib.import_module(f"{__name__}.{name}")
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
