"""The content of ``topics.json``, joined from the cached text of each topic.

A broker with ten thousand topics writes the whole file for every new one. Encoding all of them
took longer than everything else a send costs.
"""

from __future__ import annotations

from penstock.protocol.bodies.codec import encode_state
from penstock.protocol.bodies.topics import TopicConfig, TopicConfigTable

_EMPTY_END = b"}\n}"
_END = b"\n\t}\n}"
_BEFORE_FIRST = len(encode_state(TopicConfigTable())) - len(_EMPTY_END)


class TopicsFileCache:
    """Caches the text of every topic of the last table."""

    def __init__(self) -> None:
        self._known: dict[str, tuple[TopicConfig, bytes]] = {}

    def text(self, table: TopicConfigTable) -> bytes:
        """The result of `encode_state` for a table that has only topics and a version."""
        topics = table.topic_config_table
        head = encode_state(TopicConfigTable({}, table.data_version))
        if not topics:
            return head
        known = self._known
        texts: list[bytes] = []
        for name, config in topics.items():
            entry = known.get(name)
            # Topics are immutable: the same object has the same text.
            if entry is None or entry[0] is not config:
                entry = known[name] = config, _text_of(name, config)
            texts.append(entry[1])
        if len(known) > len(topics):
            self._known = {name: known[name] for name in topics}
        return b"".join((head.removesuffix(_EMPTY_END), b",".join(texts), _END))


def _text_of(name: str, config: TopicConfig) -> bytes:
    """The lines of one topic in the file."""
    return encode_state(TopicConfigTable({name: config}))[_BEFORE_FIRST:].removesuffix(_END)
