"""Texts that tools store at a name server, by namespace and key.

Only one namespace has a meaning to others: brokers turn the topics of ``ORDER_TOPIC_CONFIG`` into
order topics, and producers use the queues listed there (``broker-a:4;broker-b:4``).

The table lives in one file, ``{"configTable":{namespace:{key:value}}}``, as Apache's name server
keeps it. Nothing here touches the file: ``dump`` gives its content after a change, ``load`` takes
it at the start.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from penstock.errors import InvalidArgument
from penstock.protocol.bodies.codec import decode_body, encode_body
from penstock.protocol.bodies.common import KvTable

ORDER_TOPIC_NAMESPACE = "ORDER_TOPIC_CONFIG"

# Entries stay until they are deleted, so a remote client could exhaust memory with them.
MAX_ENTRIES = 100_000
MAX_CHARACTERS = 2 * 1024 * 1024
"""Of all keys and texts together, since every change writes all of them."""


@dataclass(frozen=True, slots=True)
class KvFile:
    """The file of the table."""

    config_table: dict[str, dict[str, str]] = field(default_factory=dict)


class KvConfig:
    """The table of texts."""

    def __init__(self) -> None:
        self._namespaces: dict[str, dict[str, str]] = {}
        self._count = 0
        self._characters = 0

    @classmethod
    def load(cls, data: bytes) -> KvConfig:
        """The table from its file; ``ProtocolError`` if the file is damaged."""
        config = cls()
        for namespace, entries in decode_body(KvFile, data).config_table.items():
            for key, value in entries.items():
                # What was kept is kept, however much it is.
                config._set(namespace, key, value)
        return config

    def dump(self) -> bytes:
        """The content of the file."""
        return encode_body(KvFile(self._namespaces))

    def put(self, namespace: str, key: str, value: str) -> bool:
        """Set a text; False if it was set like that already."""
        old = self.get(namespace, key)
        if old == value:
            return False
        if old is None and self._count >= MAX_ENTRIES:
            raise _no_room(namespace, key, f"at most {MAX_ENTRIES} keys at a name server")
        added = len(value) - len(old) if old is not None else _size(namespace, key, value)
        if added > 0 and self._characters + added > MAX_CHARACTERS:
            raise _no_room(namespace, key, f"at most {MAX_CHARACTERS} characters in all")
        self._set(namespace, key, value)
        return True

    def _set(self, namespace: str, key: str, value: str) -> None:
        old = self.get(namespace, key)
        if old is None:
            self._count += 1
            self._characters += _size(namespace, key, value)
        else:
            self._characters += len(value) - len(old)
        self._namespaces.setdefault(namespace, {})[key] = value

    def get(self, namespace: str, key: str) -> str | None:
        """A text, or None."""
        return self._namespaces.get(namespace, {}).get(key)

    def delete(self, namespace: str, key: str) -> bool:
        """Remove a text; False if it was not there."""
        entries = self._namespaces.get(namespace, {})
        value = entries.pop(key, None)
        if value is None:
            return False
        self._count -= 1
        self._characters -= _size(namespace, key, value)
        if not entries:
            del self._namespaces[namespace]
        return True

    def namespace(self, namespace: str) -> KvTable | None:
        """All texts of a namespace, or None if it has none."""
        entries = self._namespaces.get(namespace)
        return None if entries is None else KvTable(dict(entries))

    def order_conf(self, topic: str) -> str | None:
        """The queues an order topic is bound to."""
        return self.get(ORDER_TOPIC_NAMESPACE, topic)


def _size(namespace: str, key: str, value: str) -> int:
    return len(namespace) + len(key) + len(value)


def _no_room(namespace: str, key: str, expected: str) -> InvalidArgument:
    return InvalidArgument(
        f"no room for key {key[:255]!r} of namespace {namespace[:255]!r}",
        expected=expected,
        hint="delete keys that are not used any more",
    )
