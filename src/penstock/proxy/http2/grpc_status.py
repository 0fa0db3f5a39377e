"""How a call of gRPC ends."""

from __future__ import annotations

from enum import IntEnum


class GrpcStatus(IntEnum):
    """The codes of gRPC that the server itself uses."""

    OK = 0
    UNKNOWN = 2
    INVALID_ARGUMENT = 3
    DEADLINE_EXCEEDED = 4
    RESOURCE_EXHAUSTED = 8
    UNIMPLEMENTED = 12
    INTERNAL = 13


class CallFailed(Exception):
    """A call that ends with another status than OK."""

    def __init__(self, status: GrpcStatus, text: str) -> None:
        super().__init__(text)
        self.status = status
        self.text = text
