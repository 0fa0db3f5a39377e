"""The properties that the broker writes into a message that is sent to it.

Most messages need nothing but three constant properties at the end, so their property string is
not parsed: one search tells whether a rule of `send_rules` may apply.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeAlias

from penstock.broker.send_rules import DROPPED, REPLACED, find_ruled
from penstock.model.names import Property
from penstock.model.properties import END_MARK, VALUE_MARK, format_properties, parse_properties

_UNIQUE_KEY_MARK = END_MARK + Property.UNIQUE_KEY + VALUE_MARK
_MARK_LENGTH = len(_UNIQUE_KEY_MARK)

StampedProperties: TypeAlias = tuple[str, str, dict[str, str] | None]
"""The property string to store, the unique id in it and, when a rule may apply, it all parsed."""


class BrokerProperties:
    """Adds region, trace switch and cluster; gives messages without a unique id one."""

    def __init__(
        self, *, region: str, trace_on: bool, cluster: str, new_unique_id: Callable[[], str]
    ) -> None:
        self._added = {
            Property.REGION: region,
            Property.TRACE_ON: "true" if trace_on else "false",
            Property.CLUSTER: cluster,
        }
        assert self._added.keys() == set(REPLACED), "a row of send_rules for each of them"
        self.added = format_properties(self._added)
        """What is added to every message, as text."""
        self._new_unique_id = new_unique_id

    def stamp(self, text: str) -> StampedProperties:
        """The properties of a message as they are stored."""
        stamped = self.stamp_unruled(text)
        return self._stamp_parsed(text) if stamped is None else (*stamped, None)

    def stamp_unruled(self, text: str) -> tuple[str, str] | None:
        """Properties and unique id of a message; None if a rule may apply to it."""
        if text and text[-1] != END_MARK:
            # Clients 4.9.1 to 5.1.4 leave out the last separator.
            text += END_MARK
        # With a separator before the first key, every key is found by its separators.
        enclosed = END_MARK + text
        if find_ruled(enclosed):
            return None
        start = enclosed.rfind(_UNIQUE_KEY_MARK)
        if start < 0:
            unique_id = self._new_unique_id()
            text += f"{Property.UNIQUE_KEY}{VALUE_MARK}{unique_id}{END_MARK}"
        else:
            start += _MARK_LENGTH
            unique_id = enclosed[start : enclosed.index(END_MARK, start)]
            if not unique_id:
                return None
        return text + self.added, unique_id

    def _stamp_parsed(self, text: str) -> StampedProperties:
        properties = parse_properties(text)
        for key in DROPPED:
            properties.pop(key, None)
        unique_id = properties.get(Property.UNIQUE_KEY) or self._new_unique_id()
        properties.update({Property.UNIQUE_KEY: unique_id, **self._added})
        return format_properties(properties), unique_id, properties
