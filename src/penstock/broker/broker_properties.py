"""What the broker writes into the properties of a message that is sent to it.

Most messages need nothing but three constant properties at the end, so their text is never taken
apart: a few substring searches tell whether one of the keys is there that ask for more.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

from penstock.model.names import Property
from penstock.model.properties import format_properties, parse_properties

_VALUE_MARK = "\x01"
_END_MARK = "\x02"

_SPECIAL_KEYS = (
    Property.DELAY,
    Property.TIMER_DELIVER_MS,
    Property.TIMER_DELAY_SECONDS,
    Property.TIMER_DELAY_MS,
    Property.TRANSACTION_PREPARED,
    Property.POP_RECEIPT,
    Property.REGION,
    Property.TRACE_ON,
    Property.CLUSTER,
)
_SPECIAL_MARKS = tuple(key + _VALUE_MARK for key in _SPECIAL_KEYS)
_UNIQUE_KEY_MARK = Property.UNIQUE_KEY + _VALUE_MARK
_new_tuple = tuple.__new__


class StampedProperties(NamedTuple):
    """The properties to store, and the unique id among them.

    ``special`` holds them parsed when one of them asks for more than storing.
    """

    text: str
    unique_id: str
    special: dict[str, str] | None


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
        self._suffix = "".join(
            f"{key}{_VALUE_MARK}{value}{_END_MARK}" for key, value in self._added.items()
        )
        self._new_unique_id = new_unique_id

    def stamp(self, text: str) -> StampedProperties:
        """The properties of a message as they are stored."""
        if text and text[-1] != _END_MARK:
            # Clients 4.9.1 to 5.1.4 leave out the last separator.
            text += _END_MARK
        start = text.find(_UNIQUE_KEY_MARK)
        if start > 0 and text[start - 1] != _END_MARK:
            # The end of some longer key; rare enough to be settled by parsing.
            return self._stamp_parsed(parse_properties(text), self._new_unique_id())
        if start < 0:
            unique_id = self._new_unique_id()
            text += f"{_UNIQUE_KEY_MARK}{unique_id}{_END_MARK}"
        else:
            start += len(_UNIQUE_KEY_MARK)
            unique_id = text[start : text.index(_END_MARK, start)]
        # Six searches instead of nine: each of the special keys has one of these in it.
        if (
            "DELAY" in text
            or "TIMER_" in text
            or "TRA" in text
            or "POP_CK" in text
            or "MSG_REGION" in text
            or "CLUSTER" in text
        ) and any(mark in text for mark in _SPECIAL_MARKS):
            return self._stamp_parsed(parse_properties(text), unique_id)
        # NamedTuple's own constructor costs twice as much as the tuple it makes.
        return _new_tuple(StampedProperties, (text + self._suffix, unique_id, None))

    def _stamp_parsed(self, properties: dict[str, str], unique_id: str) -> StampedProperties:
        # A receipt of an earlier delivery means nothing for the new record.
        properties.pop(Property.POP_RECEIPT, None)
        properties.update(self._added)
        unique_id = properties.setdefault(Property.UNIQUE_KEY, unique_id)
        return StampedProperties(format_properties(properties), unique_id, properties)
