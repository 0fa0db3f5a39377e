"""The layout of a stored record, declared once; readers and writers derive their structs from it.

    size:4 | magic:4 | body_crc:4 | queue_id:4 | flag:4 | queue_offset:8 | log_position:8
    | sys_flag:4 | born_timestamp:8 | born_host:8 or 20 | store_timestamp:8 | store_host:8 or 20
    | reconsume_times:4 | prepared_transaction_offset:8
    | body_length:4 | body | topic_length:1 (v1) or 2 (v2) | topic
    | properties_length:2 | properties                       (big-endian; size counts everything)

The fields up to and including ``body_length`` are the head. Two bits of ``sys_flag`` say which of
the hosts has 20 bytes (IPv6). A topic longer than 127 bytes makes a record v2. A commit-log file
ends with a blank record: size and magic, then undefined bytes. ``body_crc`` covers the body as
stored, compressed or not, without its top bit.

A batch item is one message in the body of a batch send, or of an inner-batch record:

    size:4 | magic:4 | body_crc:4 | flag:4 | body_length:4 | body | properties_length:2 | properties
"""

from __future__ import annotations

from struct import Struct, calcsize
from typing import Final

from penstock.model.hosts import IPV4_HOST_BYTES, IPV6_HOST_BYTES

MAGIC_V1: Final = 0xDAA320A7
MAGIC_V2: Final = 0xDAA320AB
BLANK_MAGIC: Final = 0xCBD43194
CRC_MASK: Final = 0x7FFF_FFFF
MAX_V1_TOPIC_BYTES: Final = 127
MAX_TOPIC_BYTES: Final = 32767

# The bits of sys_flag for IPv6 hosts; shifted down they index the results of `head_structs`.
BORN_HOST_V6: Final = 0x10
STORE_HOST_V6: Final = 0x20
HOST_BITS: Final = BORN_HOST_V6 | STORE_HOST_V6
HOST_SHIFT: Final = 4

HEAD_FIELDS: Final = {
    "size": "i",
    "magic": "I",
    "body_crc": "I",
    "queue_id": "i",
    "flag": "i",
    "queue_offset": "q",
    "log_position": "q",
    "sys_flag": "i",
    "born_timestamp": "q",
    "born_host": f"{IPV4_HOST_BYTES}s",
    "store_timestamp": "q",
    "store_host": f"{IPV4_HOST_BYTES}s",
    "reconsume_times": "i",
    "prepared_transaction_offset": "q",
    "body_length": "i",
}
"""The fields of the head in order, with their codes in ``struct``; hosts as IPv4."""
_NAMES: Final = tuple(HEAD_FIELDS)


def _codes(sys_flag: int) -> dict[str, str]:
    codes = dict(HEAD_FIELDS)
    if sys_flag & BORN_HOST_V6:
        codes["born_host"] = f"{IPV6_HOST_BYTES}s"
    if sys_flag & STORE_HOST_V6:
        codes["store_host"] = f"{IPV6_HOST_BYTES}s"
    return codes


def head_codes(*names: str, sys_flag: int = 0, first: str = "size") -> str:
    """The codes, from the field ``first`` to the end of the head, that read ``names`` only."""
    codes = _codes(sys_flag)
    return "".join(
        codes[name] if name in names else f"{calcsize('>' + codes[name])}x"
        for name in _NAMES[_NAMES.index(first) :]
    )


def head_struct(*names: str, sys_flag: int = 0) -> Struct:
    """A struct of the whole head that reads the fields ``names`` and skips the others."""
    return Struct(">" + head_codes(*names, sys_flag=sys_flag))


def head_structs(*names: str) -> tuple[Struct, ...]:
    """`head_struct` for each combination of hosts, indexed by the host bits of the sys_flag."""
    return tuple(head_struct(*names, sys_flag=bits << HOST_SHIFT) for bits in range(4))


def head_part(first: str, last: str) -> Struct:
    """A struct of the fields from ``first`` to ``last``, both included, with IPv4 hosts."""
    chosen = _NAMES[_NAMES.index(first) : _NAMES.index(last) + 1]
    return Struct(">" + "".join(HEAD_FIELDS[name] for name in chosen))


def head_offset(name: str, sys_flag: int = 0) -> int:
    """The position of a field within a record."""
    codes = _codes(sys_flag)
    return calcsize(">" + "".join(codes[before] for before in _NAMES[: _NAMES.index(name)]))


def head_span(name: str) -> range:
    """The positions of the bytes of a field, with IPv4 hosts."""
    start = head_offset(name)
    return range(start, start + calcsize(">" + HEAD_FIELDS[name]))


PREFIX: Final = head_part("size", "magic")
"""How records and blanks begin."""
BLANK_HEAD_BYTES: Final = PREFIX.size
TOPIC_LENGTH_V2: Final = Struct(">h")
PROPERTIES_LENGTH: Final = Struct(">h")
HEADS: Final = head_structs(*_NAMES)
BODY_POSITION: Final = HEADS[0].size
"""The position of the body in a record with two IPv4 hosts."""
MIN_RECORD_BYTES: Final = BODY_POSITION + 1 + PROPERTIES_LENGTH.size

ITEM_FIELDS: Final = ("size", "magic", "body_crc", "flag", "body_length")
ITEM_HEAD: Final = Struct(">" + "".join(HEAD_FIELDS[name] for name in ITEM_FIELDS))
MIN_ITEM_BYTES: Final = ITEM_HEAD.size + PROPERTIES_LENGTH.size
