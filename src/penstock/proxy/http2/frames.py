"""Frames of HTTP/2 as bytes, and the codes of its errors.

length:3 kind:1 flags:1 stream:4 | body      (the length counts the body)
"""

from __future__ import annotations

import struct
from enum import IntEnum
from typing import Final

PREFACE: Final = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"
HEAD: Final = struct.Struct(">IBI")
HEAD_BYTES: Final = 9
UINT32: Final = struct.Struct(">I")
SETTING: Final = struct.Struct(">HI")
MAX_FRAME: Final = 16_384
MAX_WINDOW: Final = (1 << 31) - 1

DATA, HEADERS, PRIORITY, RESET, SETTINGS = 0, 1, 2, 3, 4
PUSH_PROMISE, PING, GO_AWAY, WINDOW_UPDATE, CONTINUATION = 5, 6, 7, 8, 9
END_STREAM, ACK, END_HEADERS, PADDED, HAS_PRIORITY = 1, 1, 4, 8, 32
MAX_STREAMS, INITIAL_WINDOW, FRAME_SIZE, LIST_SIZE = 3, 4, 5, 6


class Fault(IntEnum):
    """Codes of errors of a connection, or of a stream."""

    NO_ERROR = 0
    PROTOCOL = 1
    INTERNAL = 2
    FLOW_CONTROL = 3
    STREAM_CLOSED = 5
    FRAME_SIZE = 6
    REFUSED_STREAM = 7
    CANCEL = 8
    COMPRESSION = 9
    ENHANCE_YOUR_CALM = 11


class Broken(Exception):
    """The connection cannot go on."""

    def __init__(self, fault: Fault, why: str) -> None:
        super().__init__(why)
        self.fault = fault


def frame(kind: int, flags: int, stream_id: int, body: bytes) -> bytes:
    """A whole frame."""
    return HEAD.pack(len(body) << 8 | kind, flags, stream_id) + body


def window_update(stream_id: int, more: int) -> bytes:
    """The peer may send so many bytes more."""
    return frame(WINDOW_UPDATE, 0, stream_id, UINT32.pack(more))


def reset(stream_id: int, fault: Fault) -> bytes:
    """A stream is over."""
    return frame(RESET, 0, stream_id, UINT32.pack(fault))


def go_away(last_id: int, fault: Fault, text: str) -> bytes:
    """The connection ends after the streams up to ``last_id``."""
    return frame(GO_AWAY, 0, 0, UINT32.pack(last_id) + UINT32.pack(fault) + text.encode())


def unpadded(flags: int, body: bytes) -> bytes:
    """The body of a frame without its padding; raises `Broken`."""
    if not flags & PADDED:
        return body
    if not body or body[0] >= len(body):
        raise Broken(Fault.PROTOCOL, "more padding than frame")
    return body[1 : len(body) - body[0]]
