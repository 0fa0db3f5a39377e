"""Request and response headers as dataclasses, by family, with one codec for all.

``registry`` says which request has which.
"""

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
from penstock.protocol.headers.common import CommonFields
from penstock.protocol.headers.send import SEND_V2, decode_send_v2, encode_send_v2

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
]
