"""Answers to sends, encoded with a template.

All but five values of these most frequent answers are constant. Formatting them takes a third of
the time of encoding a `Command`, and gives the same bytes.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import lru_cache
from struct import Struct
from typing import Final

import orjson

from penstock.model.names import Property
from penstock.protocol.commands import VERSION
from penstock.protocol.frames import JSON

_pack_lengths: Final = Struct(">iI").pack
_quote: Final = orjson.dumps
_POSITION_BYTES: Final = 8
_MAX_COUNTS: Final = 64


class SendAnswers:
    """Successful answers of one broker, with JSON headers."""

    __slots__ = (
        "_header",
        "_header_of_batch",
        "_header_of_known",
        "_header_of_timer",
        "id_prefix",
        "region",
        "trace_on",
    )

    def __init__(self, *, id_prefix: str, region: str, trace_on: bool) -> None:
        self.id_prefix = id_prefix
        """The first part of every message id of the broker: its packed address in hex."""
        self.region = region
        self.trace_on = "true" if trace_on else "false"
        constants = {Property.REGION: region, Property.TRACE_ON: self.trace_on}
        fields = b"".join(
            (
                b'","queueId":"%d","queueOffset":"%d","transactionId":%b,',
                _quote(constants)[1:-1].replace(b"%", b"%%"),
            )
        )
        end = b"".join(
            (
                b'},"flag":1,"language":"PYTHON","opaque":%d,',
                b'"serializeTypeCurrentRPC":"JSON","version":',
                b"%d}" % VERSION,
            )
        )
        rest = fields + end
        single = b'{"code":0,"extFields":{"msgId":"%b%%016X' % id_prefix.encode()
        self._header = single + rest
        known = rest.replace(b"%b,", b'"%b",', 1).replace(b'"opaque":%d', b'"opaque":%b')
        self._header_of_known = single + known
        self._header_of_timer = single + fields + b',"recallHandle":"%b"' + end
        self._header_of_batch = b'{"code":0,"extFields":{"msgId":"%b' + rest

    def ext(
        self, msg_id: str, queue_id: object, queue_offset: int, unique_id: str
    ) -> dict[str, str]:
        """The ext fields of a `Command`."""
        return {
            "msgId": msg_id,
            "queueId": str(queue_id),
            "queueOffset": str(queue_offset),
            "transactionId": unique_id,
            Property.REGION: self.region,
            Property.TRACE_ON: self.trace_on,
        }

    def frame(
        self, request_id: int, log_position: int, queue_id: int, queue_offset: int, unique_id: str
    ) -> bytes:
        """The encoded answer to a send of one message."""
        header = self._header % (
            log_position,
            queue_id,
            queue_offset,
            _quote(unique_id),
            request_id,
        )
        size = len(header)
        return _pack_lengths(size + 4, JSON << 24 | size) + header

    def frame_of_known(
        self,
        request_id: bytes,
        log_position: int,
        queue_id: int,
        queue_offset: int,
        unique_id: bytes,
    ) -> bytes:
        """`frame` for a request id in digits and a unique id of letters and digits."""
        header = self._header_of_known % (
            log_position,
            queue_id,
            queue_offset,
            unique_id,
            request_id,
        )
        size = len(header)
        return _pack_lengths(size + 4, size) + header

    def frame_of_timer(
        self,
        request_id: int,
        log_position: int,
        queue_id: int,
        queue_offset: int,
        unique_id: str,
        recall_handle: str,
    ) -> bytes:
        """The encoded answer to a send of one timer message."""
        header = self._header_of_timer % (
            log_position,
            queue_id,
            queue_offset,
            _quote(unique_id),
            recall_handle.encode(),
            request_id,
        )
        size = len(header)
        return _pack_lengths(size + 4, JSON << 24 | size) + header

    def ids(self, log_positions: Sequence[int]) -> str:
        """The ids of the messages at these positions, joined as in the answer to a batch."""
        packed = _packer(len(log_positions))(*log_positions)
        ends = packed.hex(",", _POSITION_BYTES).upper()
        return self.id_prefix + ends.replace(",", f",{self.id_prefix}")

    def frame_of_batch(
        self,
        request_id: int,
        log_positions: Sequence[int],
        queue_id: int,
        queue_offset: int,
        unique_id: str,
    ) -> bytes:
        """The encoded answer to a batch."""
        header = self._header_of_batch % (
            self.ids(log_positions).encode(),
            queue_id,
            queue_offset,
            _quote(unique_id),
            request_id,
        )
        size = len(header)
        return _pack_lengths(size + 4, JSON << 24 | size) + header


@lru_cache(_MAX_COUNTS)
def _packer(count: int) -> Callable[..., bytes]:
    return Struct(f">{count}q").pack
