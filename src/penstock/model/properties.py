"""The text form of message properties, as records, batches and send headers carry it.

    key 0x01 value 0x02 key 0x01 value 0x02 ...        UTF-8, at most 32,767 bytes

Releases differ in whether the last pair is ended by 0x02; readers take both, we write it, as
RocketMQ does since 5.2. Keys and values can hold neither separator, and an empty key or value
does not survive a reader, so writing one is refused instead of losing it silently.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from penstock.errors import IllegalMessage

MAX_PROPERTIES_BYTES: Final = 32767
VALUE_MARK: Final = "\x01"
END_MARK: Final = "\x02"
_END: Final = 2

# The keys that a store looks for in every record, with the separator behind them.
TAGS: Final = b"TAGS\x01"
KEYS: Final = b"KEYS\x01"
UNIQUE_KEY: Final = b"UNIQ_KEY\x01"
DELAY: Final = b"DELAY\x01"


def parse_properties(text: str | bytes | bytearray | memoryview) -> dict[str, str]:
    """The pairs of a property string; of a key given twice the last value counts.

    Nothing is ever refused: entries without a key, a separator or a value are skipped and bytes
    that are not UTF-8 become U+FFFD, as in RocketMQ's MessageDecoder.string2messageProperties.
    (Its rule that an entry has three characters follows from both sides being non-empty.)
    """
    if not isinstance(text, str):
        text = str(text, "utf-8", "replace")
    entries = [entry.partition(VALUE_MARK) for entry in text.split(END_MARK)]
    return {key: value for key, _, value in entries if key and value}


def format_properties(properties: Mapping[str, str]) -> str:
    """The property string of ``properties``, in their order, each pair ended by 0x02."""
    return _format(properties)[0]


def encode_properties(properties: Mapping[str, str]) -> bytes:
    """The property string of ``properties`` as the UTF-8 bytes a record carries."""
    return _format(properties)[1]


def encode_stored(properties: Mapping[str, str]) -> bytes:
    """`encode_properties` for a message that is stored again.

    A value that was read may hold 0x01, since some client has sent it so. It is written as it was:
    refused, the message could be neither retried nor delivered.
    """
    return _bounded(_joined(properties).encode())


def _joined(properties: Mapping[str, str]) -> str:
    return "".join([f"{key}\x01{value}\x02" for key, value in properties.items()])


def _format(properties: Mapping[str, str]) -> tuple[str, bytes]:
    text = _joined(properties)
    # Counting the separators of the whole text is cheaper than searching every key and value.
    count = len(properties)
    if (
        text.count(VALUE_MARK) != count
        or text.count(END_MARK) != count
        or "" in properties
        or "" in properties.values()
    ):
        raise _unwritable_pair(properties)
    try:
        data = text.encode()
    except UnicodeEncodeError as error:
        raise IllegalMessage(
            f"message properties hold {text[error.start]!r}, half of a surrogate pair",
            expected="text that UTF-8 can express",
        ) from error
    return text, _bounded(data)


def _bounded(data: bytes) -> bytes:
    if len(data) > MAX_PROPERTIES_BYTES:
        raise IllegalMessage(
            f"message properties take {len(data)} bytes",
            expected=f"at most {MAX_PROPERTIES_BYTES}, all keys and values together",
            hint="move large values into the body",
        )
    return data


def _unwritable_pair(properties: Mapping[str, str]) -> IllegalMessage:
    for key, value in properties.items():
        pair = key + value
        if VALUE_MARK in pair or END_MARK in pair:
            return IllegalMessage(
                f"message property {key!r} = {value!r} contains 0x01 or 0x02",
                expected="keys and values without the characters that separate properties",
            )
        if not key or not value:
            return IllegalMessage(
                f"message property {key!r} = {value!r} has an empty side",
                expected="a key and a value: readers drop a property without either",
                hint="leave the property out",
            )
    raise AssertionError("a property was refused, yet every pair is fine")


# Reading single values of raw property strings, without decoding the others.


def find_value(properties: bytes, key: bytes) -> tuple[int, int]:
    """Start and end of the last non-empty value of ``key``; (0, 0) without one.

    ``key`` includes the separator behind it: ``b"TAGS\\x01"``.
    """
    at = properties.rfind(key)
    while at >= 0:
        if at == 0 or properties[at - 1] == _END:
            start = at + len(key)
            stop = properties.find(b"\x02", start)
            if stop < 0:
                stop = len(properties)
            if stop > start:
                return start, stop
        at = properties.rfind(key, 0, at + len(key) - 1)
    return 0, 0


def value_of(properties: bytes, key: bytes) -> bytes:
    """The last non-empty value of ``key``, as `find_value` finds it; empty without one."""
    at = properties.rfind(key)
    if at < 0:
        return b""
    # The usual case without a second call: this runs for every stored message.
    if at == 0 or properties[at - 1] == _END:
        start = at + len(key)
        stop = properties.find(b"\x02", start)
        if stop > start:
            return properties[start:stop]
    start, stop = find_value(properties, key)
    return properties[start:stop]


def indexed_values(properties: bytes, unique_id: bytes = b"") -> tuple[bytes, bytes, bytes]:
    """The values of UNIQ_KEY, KEYS and TAGS, each as `value_of` finds it.

    A fast path for the three values that are read of every stored message. A caller that knows the
    unique id already passes it, so that it is not searched for again.
    """
    # With a separator on both sides, every key has one before it and every value one behind it.
    enclosed = b"\x02%b\x02" % properties
    keys = tag = b""
    if not unique_id:
        at = enclosed.rfind(b"\x02UNIQ_KEY\x01")
        if at >= 0:
            unique_id = enclosed[at + 10 : enclosed.find(b"\x02", at + 10)]
            if not unique_id:
                unique_id = value_of(properties, UNIQUE_KEY)
    at = enclosed.rfind(b"\x02KEYS\x01")
    if at >= 0:
        keys = enclosed[at + 6 : enclosed.find(b"\x02", at + 6)]
        if not keys:
            keys = value_of(properties, KEYS)
    at = enclosed.rfind(b"\x02TAGS\x01")
    if at >= 0:
        tag = enclosed[at + 6 : enclosed.find(b"\x02", at + 6)]
        if not tag:
            tag = value_of(properties, TAGS)
    return unique_id, keys, tag


def get_property(properties: bytes, key: bytes) -> bytes | None:
    """The value that ``parse_properties`` would give for one key, in UTF-8."""
    start, stop = find_value(properties, key + b"\x01")
    return properties[start:stop] or None
