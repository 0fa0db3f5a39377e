"""Whether groups pull or pop: the table that is saved in ``config/messageRequestMode.json``."""

from __future__ import annotations

from collections.abc import Callable

from penstock.protocol.bodies.codec import decode_body, encode_state
from penstock.protocol.bodies.pop import RequestModes, SetRequestMode

REQUEST_MODES_FILE = "messageRequestMode.json"


class RequestModeTable:
    """The modes that were set, by topic and group."""

    def __init__(self, changed: Callable[[], None] = lambda: None) -> None:
        self._changed = changed
        self._table: dict[str, dict[str, SetRequestMode]] = {}

    def get(self, topic: str, group: str) -> SetRequestMode | None:
        """The mode that was set for a group in a topic."""
        return self._table.get(topic, {}).get(group)

    def put(self, mode: SetRequestMode) -> None:
        """Set a mode."""
        self._table.setdefault(mode.topic, {})[mode.consumer_group] = mode
        self._changed()

    def remove(self, *, topic: str | None = None, group: str | None = None) -> None:
        """Forget a deleted topic or group."""
        for name in list(self._table):
            if topic is not None and name != topic:
                continue
            groups = self._table[name]
            for owner in [one for one in groups if group in (None, one)]:
                del groups[owner]
                self._changed()
            if not groups:
                del self._table[name]

    def table(self) -> RequestModes:
        """The table for answers and for the file."""
        return RequestModes({topic: dict(groups) for topic, groups in self._table.items()})

    def dump(self) -> bytes:
        """The content of ``messageRequestMode.json``."""
        return encode_state(self.table())

    def load(self, data: bytes) -> None:
        """Load the content of a file that ``dump`` or Apache RocketMQ wrote."""
        modes = decode_body(RequestModes, data).message_request_mode_map
        self._table = {topic: dict(groups) for topic, groups in modes.items()}
