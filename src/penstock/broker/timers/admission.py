"""Which sends are timers, and how they are parked until they are due.

D = now + TIMER_DELAY_SEC, now + TIMER_DELAY_MS, or TIMER_DELIVER_MS
T = the last full tick of the precision before D: the slot; it is delivered from T + precision on
"""

from __future__ import annotations

from functools import lru_cache
from typing import Final

from penstock.broker.config import BrokerConfig
from penstock.errors import IllegalMessage, RequestRefused
from penstock.model.names import TIMER_TOPIC, Property
from penstock.model.properties import MAX_PROPERTIES_BYTES, encode_properties
from penstock.store import Draft

TIMER_KEYS: Final = (
    Property.TIMER_DELAY_SECONDS,
    Property.TIMER_DELAY_MS,
    Property.TIMER_DELIVER_MS,
)
MAX_SLOT_UNITS: Final = (1 << 31) - 1
"""The default of timerCongestNumEachSlot: no limit."""
_MAX_TEXTS: Final = 1024
_DELIVERY_BYTES: Final = 160
"""Room for the properties that a delivery or a roll adds."""


def slot_of(deliver_ms: int, precision_ms: int) -> int:
    """The slot of a message: it is delivered from one precision later on, so never early."""
    return deliver_ms - (deliver_ms % precision_ms or precision_ms)


def admitted_slot(
    properties: dict[str, str], deliver_ms: int, now_ms: int, config: BrokerConfig
) -> int | None:
    """The slot in which a send waits; None: it is due and stored at once."""
    if not config.timer_wheel_enable:
        raise RequestRefused(
            "accurate timer message is not enabled, timerWheelEnable is false",
            hint="use one of the delay levels",
        )
    is_due, max_ms = deliver_ms <= now_ms, config.timer_max_delay_sec * 1000
    if deliver_ms - now_ms > max_ms or (is_due and Property.TIMER_DELETE_KEY in properties):
        raise IllegalMessage(
            "timer message illegal, the delay time should not be bigger than the max delay "
            f"{max_ms}ms; or if set del msg, the delay time should be bigger than the current time"
        )
    return None if is_due else slot_of(deliver_ms, config.timer_precision)


def parked(draft: Draft, properties: dict[str, str], slot_ms: int) -> Draft:
    """The draft for the timer topic; ``properties`` are the draft's, parsed."""
    waiting = {
        **properties,
        Property.TIMER_OUT_MS: str(slot_ms),
        Property.REAL_TOPIC: draft.topic,
        Property.REAL_QUEUE_ID: str(draft.queue_id),
    }
    encoded = encode_properties(waiting)
    if not fits_parked(encoded):
        # Refused now: when it is due it could not be stored any more.
        raise IllegalMessage(
            f"message properties take {len(encoded)} bytes",
            expected=f"at most {MAX_PROPERTIES_BYTES - _DELIVERY_BYTES} of a timer message",
        )
    return draft._replace(topic=TIMER_TOPIC, queue_id=0, properties=encoded)


@lru_cache(_MAX_TEXTS)
def parked_text(topic: str, queue_id: int, slot_ms: int) -> str:
    """The properties that `parked` adds, for a message that has none of them."""
    return (
        f"{Property.TIMER_OUT_MS}\x01{slot_ms}\x02{Property.REAL_TOPIC}\x01{topic}\x02"
        f"{Property.REAL_QUEUE_ID}\x01{queue_id}\x02"
    )


def fits_parked(properties: str | bytes) -> bool:
    """Whether the properties of a timer message leave room for what its delivery adds."""
    return len(properties) + _DELIVERY_BYTES <= MAX_PROPERTIES_BYTES


def refuse_crowded(units: int, limit: int, chance: float) -> None:
    """Refuse a message for a slot that has too many; above the limit the more often, the fuller.

    ``chance`` is a random number from 0 to 1. A slot at the limit takes one more, one with twice
    as many takes none. (RocketMQ compares the other way round in between.)
    """
    if units > limit and chance < (units - limit) / limit:
        raise RequestRefused(
            f"timer message is under flow control, its second has {units} messages",
            expected=f"fewer than {2 * limit} (timerCongestNumEachSlot is {limit})",
            hint="choose another second, or send it later",
        )
