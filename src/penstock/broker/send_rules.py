"""What properties mean on a send: one row for each property that has an effect.

A rule for a property is a row of `RULES`. Only a new kind of effect needs more: a field of
`Effects`, which `handlers.send` applies. Everything that looks for properties is derived from the
table:

* `find_ruled` tells whether any rule may apply to a property string. It is the gate of the fast
  path: without a match the string is stored as it is and never parsed.
* `effects_of` applies the rules to the parsed properties of a single message or of the envelope of
  a batch; `check_batch_item` applies those for a message inside a batch, and
  `batch_item_properties` drops what such a message must not have.
* `BATCH_MARKS` are what the store looks for in the properties of a whole batch before it takes the
  fast path for batches.
* `DROPPED` and `REPLACED` say what does not go into the record as it was sent.

Keys are always searched together with their separators, so a property whose name or value merely
contains one of these keys is a property like any other.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Final, Literal, NamedTuple, TypeAlias

from penstock.errors import IllegalMessage
from penstock.model.names import Property
from penstock.model.properties import END_MARK, VALUE_MARK, find_value
from penstock.protocol.extensions import REPEAT

_SHOWN_CHARACTERS: Final = 100
_DELAYS: Final = (
    Property.DELAY,
    Property.TIMER_DELAY_SECONDS,
    Property.TIMER_DELAY_MS,
    Property.TIMER_DELIVER_MS,
)
_MAX_LONG: Final = (1 << 63) - 1
_PRIORITY_DIGITS: Final = 9


@dataclass(slots=True)
class Effects:
    """What the properties of a send ask for besides storing it; rules write it."""

    now_ms: int = 0
    delay_level: int = 0
    """Above 0: deliver the message after the delay of this level."""
    deliver_ms: int | None = None
    """When a timer message is to be delivered."""
    priority: int | None = None
    """The queue, as far as the topic has so many, of a message without any other kind."""
    waits_for_disk: bool = True
    """Whether the answer waits for the disk where the broker flushes synchronously."""
    is_half: bool = False
    """Whether the message is one of a transaction, to be hidden until that is committed."""


Apply: TypeAlias = Callable[[Effects, str, str], None]
"""Called with the effects, the key and the value of a property; raises to refuse the send."""


class SendRule(NamedTuple):
    """The meaning of one property."""

    key: str
    single: Apply | None = None
    """For a single message, and for the envelope of a batch where ``batch`` says nothing."""
    batch: Apply | None = None
    """For the envelope of a batch and for each message in it."""
    value: str | None = None
    """The rule applies to this value only."""
    stored: Literal["as sent", "dropped", "replaced"] = "as sent"
    """Replaced: the broker stores a value of its own."""
    is_dropped_in_batches: bool = False
    """Whether it is also dropped of each message in a batch; the others have no meaning there."""

    @property
    def mark(self) -> str:
        """What the property string contains where the rule may apply."""
        value = "" if self.value is None else self.value + END_MARK
        return self.key + VALUE_MARK + value


# Rules


def _half(effects: Effects, key: str, value: str) -> None:
    effects.is_half = value.lower() == "true"


def check_half(properties: Mapping[str, str]) -> None:
    """Refuse a delay in a transaction.

    RocketMQ accepts one, and then loses the message or delivers it to the half topic for ever.
    """
    for key in _DELAYS:
        value = properties.get(key)
        if value is not None and (key != Property.DELAY or _number(key, value) > 0):
            raise IllegalMessage(
                f"a message of a transaction with the property {key}",
                expected="no delay in transactions",
            )


def _refuse_transaction_in_batch(effects: Effects, key: str, value: str) -> None:
    if value.lower() == "true":
        raise transaction_in_batch()


def transaction_in_batch() -> IllegalMessage:
    """The error for a batch that is flagged as prepared, or has a message that is."""
    return IllegalMessage(
        "a batch with a transactional message", expected="no transactions in batches"
    )


def _delay(effects: Effects, key: str, value: str) -> None:
    effects.delay_level = max(0, _number(key, value))


def _refuse_delay_in_batch(effects: Effects, key: str, value: str) -> None:
    # A batch is stored at once, so its messages would be delivered too early.
    if key != Property.DELAY or _number(key, value) > 0:
        raise IllegalMessage("a batch with a delayed message", expected="no delay in batches")


def _timer(effects: Effects, key: str, value: str) -> None:
    # A delay level takes precedence, then the first of the keys.
    number = _number(key, value)
    if key == Property.TIMER_DELAY_SECONDS:
        number *= 1000
    if key != Property.TIMER_DELIVER_MS:
        number += effects.now_ms
    if not -_MAX_LONG <= number <= _MAX_LONG:
        raise IllegalMessage(
            f"property {key} is {value[:_SHOWN_CHARACTERS]!r}",
            expected="a time that fits into 64 bits",
        )
    if not effects.delay_level and effects.deliver_ms is None:
        effects.deliver_ms = number


def _priority(effects: Effects, key: str, value: str) -> None:
    if value.isascii() and value.isdecimal() and len(value) <= _PRIORITY_DIGITS:
        effects.priority = int(value)


def _do_not_wait(effects: Effects, key: str, value: str) -> None:
    effects.waits_for_disk = False


RULES: Final = (
    SendRule(Property.TRANSACTION_PREPARED, _half, _refuse_transaction_in_batch),
    SendRule(Property.DELAY, _delay, _refuse_delay_in_batch),
    # After DELAY, which they yield to.
    SendRule(Property.TIMER_DELAY_SECONDS, _timer, _refuse_delay_in_batch),
    SendRule(Property.TIMER_DELAY_MS, _timer, _refuse_delay_in_batch),
    SendRule(Property.TIMER_DELIVER_MS, _timer, _refuse_delay_in_batch),
    SendRule(Property.PRIORITY, _priority),
    SendRule(Property.WAIT, _do_not_wait, value="false"),
    # The plain path looks for the message that is repeated.
    SendRule(REPEAT, stored="dropped"),
    # The receipt of an earlier delivery has no meaning for the new record.
    SendRule(Property.POP_RECEIPT, stored="dropped", is_dropped_in_batches=True),
    SendRule(Property.REGION, stored="replaced"),
    SendRule(Property.TRACE_ON, stored="replaced"),
    SendRule(Property.CLUSTER, stored="replaced"),
)
"""Applied in this order."""


# Derived

# A pattern that begins with a literal is searched with memchr: each property costs one comparison.
find_ruled: Final = re.compile(
    f"{END_MARK}(?:{'|'.join(re.escape(rule.mark) for rule in RULES)})"
).search
"""A match if a rule may apply to a property string that is enclosed in separators."""

BATCH_DROPPED: Final = tuple(rule.mark.encode() for rule in RULES if rule.is_dropped_in_batches)
BATCH_MARKS: Final = (
    *(rule.mark.encode() for rule in RULES if rule.batch is not None),
    *BATCH_DROPPED,
)
DROPPED: Final = tuple(rule.key for rule in RULES if rule.stored == "dropped")
REPLACED: Final = tuple(rule.key for rule in RULES if rule.stored == "replaced")


def effects_of(properties: Mapping[str, str], *, is_batch: bool, now_ms: int) -> Effects:
    """Apply the rules to a single message, or to the envelope of a batch."""
    effects = Effects(now_ms)
    for rule in RULES:
        apply = rule.batch or rule.single if is_batch else rule.single
        _apply(apply, rule, effects, properties)
    return effects


def check_batch_item(properties: Mapping[str, str]) -> None:
    """Refuse what a message inside a batch may not have."""
    effects = Effects()
    for rule in RULES:
        _apply(rule.batch, rule, effects, properties)


def batch_item_properties(properties: bytes) -> bytes:
    """The properties of a message inside a batch as they are stored."""
    for mark in BATCH_DROPPED:
        if mark in properties:
            properties = without_property(properties, mark)
    return properties


def without_property(properties: bytes, mark: bytes) -> bytes:
    """The text without a property; ``mark`` is its key and the separator behind it."""
    start, stop = find_value(properties, mark)
    while stop:
        properties = properties[: start - len(mark)] + properties[stop + 1 :]
        start, stop = find_value(properties, mark)
    return properties


def _apply(
    apply: Apply | None, rule: SendRule, effects: Effects, properties: Mapping[str, str]
) -> None:
    value = properties.get(rule.key)
    if apply is not None and value is not None and rule.value in (None, value):
        apply(effects, rule.key, value)


def _number(key: str, text: str) -> int:
    """A time that cannot be read is refused, as by RocketMQ: the message would go out at once."""
    try:
        return int(text)
    except ValueError:
        raise IllegalMessage(
            f"property {key} is {text[:_SHOWN_CHARACTERS]!r}", expected="a whole number"
        ) from None
