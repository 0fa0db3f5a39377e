"""The parts of a compiled SQL92 filter: closures from a property map to a value.

Each function builds one part from others; the parser decides which parts may be combined. ``None``
is SQL's unknown, and the value of an absent property.
"""

from __future__ import annotations

import operator
from collections.abc import Callable, Mapping
from dataclasses import dataclass

from penstock.protocol.filters.sql92.tokens import Token
from penstock.protocol.filters.sql92.values import Long, Value, compare, compare_ordered

Properties = Mapping[str, str]

ORDER_TESTS: dict[str, Callable[[int, int], bool]] = {
    ">": operator.gt,
    ">=": operator.ge,
    "<": operator.lt,
    "<=": operator.le,
}
TEXT_TESTS: dict[str, Callable[[str, str], bool]] = {
    "CONTAINS": operator.contains,
    "STARTSWITH": str.startswith,
    "ENDSWITH": str.endswith,
}


@dataclass(frozen=True, slots=True)
class Expression:
    """A part of a filter: how to evaluate it, and what the parser needs to know of it.

    ``depth`` is the number of nested calls that its evaluation takes.
    """

    evaluate: Callable[[Properties], Value | None]
    token: Token
    depth: int = 1
    is_boolean: bool = False
    is_property: bool = False
    is_constant: bool = False
    value: Value | None = None


def property_of(token: Token) -> Expression:
    """The property a name stands for."""
    name = token.text

    def look_up(properties: Properties) -> str | None:
        return properties.get(name)

    return Expression(look_up, token, is_property=True)


def constant(value: Value | None, token: Token) -> Expression:
    """A literal. TRUE, FALSE and NULL are conditions by themselves."""
    is_boolean = value is None or isinstance(value, bool)

    def evaluate(properties: Properties) -> Value | None:
        return value

    return Expression(evaluate, token, is_boolean=is_boolean, is_constant=True, value=value)


def minus(operand: Expression, token: Token) -> Expression:
    """A negative number; the negative of anything else is unknown, as in RocketMQ."""
    value = operand.value
    negative: Value | None
    if isinstance(value, bool) or not isinstance(value, int | float):
        negative = None
    else:
        negative = Long(-value) if isinstance(value, Long) else -value

    def evaluate(properties: Properties) -> Value | None:
        return negative

    return Expression(evaluate, token, value=negative)


def condition(operand: Expression) -> Expression:
    """A bare property as a condition. Properties are texts, never booleans, so none is true."""
    look_up = operand.evaluate

    def evaluate(properties: Properties) -> bool | None:
        return None if look_up(properties) is None else False

    return Expression(evaluate, operand.token, operand.depth + 1, is_boolean=True)


def negation(operand: Expression, token: Token) -> Expression:
    """NOT; the negation of unknown is unknown."""
    inner = operand.evaluate

    def evaluate(properties: Properties) -> bool | None:
        value = inner(properties)
        return None if value is None else not value

    return Expression(evaluate, token, operand.depth + 1, is_boolean=True)


def junction(parts: list[Expression], *, deciding: bool) -> Expression:
    """Conditions joined by OR (a true one decides) or by AND (a false one decides).

    One closure for any number of parts: a chain of a thousand ORs must not recurse.
    """
    conditions = [part.evaluate for part in parts]

    def evaluate(properties: Properties) -> bool | None:
        unknown = False
        for condition in conditions:
            value = condition(properties)
            if value is deciding:
                return deciding
            if value is None:
                unknown = True
        return None if unknown else not deciding

    depth = 1 + max(part.depth for part in parts)
    return Expression(evaluate, parts[0].token, depth, is_boolean=True)


def null_test(operand: Expression, token: Token) -> Expression:
    """IS NULL."""
    inner = operand.evaluate

    def evaluate(properties: Properties) -> bool:
        return inner(properties) is None

    return Expression(evaluate, token, operand.depth + 1, is_boolean=True)


def equality(left: Expression, right: Expression, token: Token) -> Expression:
    """The = of two values."""
    evaluate_left, evaluate_right = left.evaluate, right.evaluate

    def evaluate(properties: Properties) -> bool | None:
        first, second = evaluate_left(properties), evaluate_right(properties)
        if first is None:
            # Two absent values are equal; an absent and a present one compare as unknown.
            return True if second is None else None
        return second is not None and compare(first, second) == 0

    return Expression(evaluate, token, 1 + max(left.depth, right.depth), is_boolean=True)


def order_test(left: Expression, right: Expression, token: Token, word: str) -> Expression:
    """One of > >= < <=; with an absent property the answer is unknown."""
    evaluate_left, evaluate_right, test = left.evaluate, right.evaluate, ORDER_TESTS[word]

    def evaluate(properties: Properties) -> bool | None:
        first = evaluate_left(properties)
        if first is None:
            return None
        second = evaluate_right(properties)
        if second is None:
            return None
        return test(compare_ordered(first, second), 0)

    return Expression(evaluate, token, 1 + max(left.depth, right.depth), is_boolean=True)


def membership(
    operand: Expression, texts: frozenset[str], token: Token, *, negative: bool
) -> Expression:
    """IN and NOT IN; unknown for an absent property."""
    look_up = operand.evaluate
    members: frozenset[Value] = frozenset(texts)

    def evaluate(properties: Properties) -> bool | None:
        value = look_up(properties)
        return None if value is None else (value in members) is not negative

    return Expression(evaluate, token, operand.depth + 1, is_boolean=True)


def text_test(
    operand: Expression, word: str, wanted: str, token: Token, *, negative: bool
) -> Expression:
    """CONTAINS, STARTSWITH, ENDSWITH; false, negated or not, without a text on either side."""
    inner, test = operand.evaluate, TEXT_TESTS[word]

    def evaluate(properties: Properties) -> bool:
        value = inner(properties)
        if not wanted or not isinstance(value, str):
            return False
        return test(value, wanted) is not negative

    return Expression(evaluate, token, operand.depth + 1, is_boolean=True)
