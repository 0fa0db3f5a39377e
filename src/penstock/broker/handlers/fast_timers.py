"""The fast path of timer sends: property text in, text to park out.

A producer of timer messages sends the same few properties again and again, so they are not parsed:
the time is cut out of the text, and what parking adds is put behind it. The plain path
(`send._park`) is the specification: a second property with a rule, a time that is refused or has
come, an unusual spelling, all of these are left to it.
"""

from __future__ import annotations

import re
from typing import Final, NamedTuple

from penstock.broker.handlers.known_texts import KnownTexts, cut_id
from penstock.broker.handlers.property_text import enclose, is_regular
from penstock.broker.send_rules import RULES
from penstock.broker.state import BrokerState
from penstock.broker.timers.admission import (
    MAX_SLOT_UNITS,
    TIMER_KEYS,
    admitted_slot,
    fits_parked,
    parked_text,
)
from penstock.errors import PenstockError
from penstock.model.names import Property
from penstock.model.properties import END_MARK, VALUE_MARK
from penstock.protocol.recall_handles import encode_handle

_PARKING_KEYS: Final = (
    Property.TIMER_OUT_MS,
    Property.REAL_TOPIC,
    Property.REAL_QUEUE_ID,
    Property.TIMER_DELETE_KEY,
)
_MARKS: Final = (*(rule.mark for rule in RULES), *(key + VALUE_MARK for key in _PARKING_KEYS))
_find_marks: Final = re.compile(f"{END_MARK}({'|'.join(map(re.escape, _MARKS))})").findall
_TIME_MARK: Final = END_MARK + "TIMER_DEL"
"""All of `TIMER_KEYS` begin like this."""
_MAX_DIGITS: Final = 15
_new_tuple: Final = tuple.__new__


class TimerSend(NamedTuple):
    """A timer message as it is stored until it is due."""

    properties: str
    unique_id: str
    recall_handle: str


class FastTimers:
    """Parks usual timer messages of one broker."""

    def __init__(self, broker: BrokerState) -> None:
        self._broker = broker
        self._added = broker.broker_properties.added
        self._broker_name = broker.config.broker_name
        self._texts: KnownTexts[bool] = KnownTexts()
        """Which texts are usual, with nothing in place of their time."""
        self.parked = broker.timers.parked

    def park(self, text: str, topic: str, queue_id: int) -> TimerSend | None:
        """What to store for the properties of a send; None leaves it to the plain path."""
        enclosed = enclose(text)
        entry = enclosed.rfind(_TIME_MARK)
        start = enclosed.find(VALUE_MARK, entry) + 1
        end = enclosed.find(END_MARK, entry + 1)
        value = enclosed[start:end]
        if entry < 0 or not value.isascii() or not value.isdecimal() or len(value) > _MAX_DIGITS:
            return None
        cut = cut_id(enclosed[:start] + enclosed[end:])
        if cut is None:
            return None
        before, unique_id, behind = cut
        key = enclosed[entry + 1 : start - 1]
        if not self._texts.get(before + behind):
            marks = _find_marks(enclosed)
            if marks != [key + VALUE_MARK] or key not in TIMER_KEYS or not is_regular(enclosed):
                return None
            self._texts.add(cut, found=True)
        slot_ms = self._slot(key, int(value))
        if slot_ms is None:
            return None
        properties = f"{enclosed[1:]}{self._added}{parked_text(topic, queue_id, slot_ms)}"
        # Of ASCII text the length is that of its bytes.
        if not properties.isascii() or not fits_parked(properties):
            return None
        handle = encode_handle(topic, self._broker_name, slot_ms + 1, unique_id)
        return _new_tuple(TimerSend, (properties, unique_id, handle))

    def _slot(self, key: str, number: int) -> int | None:
        config, now_ms = self._broker.config, self._broker.clock.time_ms()
        if config.timer_congest_num_each_slot < MAX_SLOT_UNITS:
            return None
        if key == Property.TIMER_DELAY_SECONDS:
            number *= 1000
        deliver_ms = number if key == Property.TIMER_DELIVER_MS else now_ms + number
        try:
            return admitted_slot({}, deliver_ms, now_ms, config)
        except PenstockError:
            return None
