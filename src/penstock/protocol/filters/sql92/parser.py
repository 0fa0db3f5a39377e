"""The grammar of a SQL92 filter (see the package), from tokens to a compiled filter."""

from __future__ import annotations

from collections.abc import Callable

from penstock.errors import SubscriptionIllegal
from penstock.protocol.filters.sql92 import expressions as build
from penstock.protocol.filters.sql92.expressions import Expression, Properties
from penstock.protocol.filters.sql92.token_stream import TokenStream
from penstock.protocol.filters.sql92.tokens import Kind, Token
from penstock.protocol.filters.sql92.values import (
    Incomparable,
    compare_ordered,
    number_from_literal,
)

MAX_DEPTH = 64
# The tokens that evaluation costs time for; the texts of an IN are one look-up and do not count.
_STEPS = (Kind.NAME, Kind.NUMBER, Kind.KEYWORD)


class CompiledFilter:
    """Whether a message with given properties passes; takes about ``steps`` steps."""

    __slots__ = ("_evaluate", "steps")

    def __init__(self, evaluate: Callable[[Properties], object], steps: int) -> None:
        self._evaluate = evaluate
        self.steps = steps

    def __call__(self, properties: Properties) -> bool:
        try:
            return self._evaluate(properties) is True
        except Incomparable:
            return False


def compile_expression(text: str) -> CompiledFilter:
    """The filter that ``text`` describes.

    A text that is no filter raises ``SubscriptionIllegal``, which names the place.
    """
    parser = _Parser(text)
    return CompiledFilter(parser.parse().evaluate, parser.steps)


class _Parser:
    def __init__(self, text: str) -> None:
        self._tokens = TokenStream(text)
        self._nesting = 0
        self.steps = sum(token.kind in _STEPS for token in self._tokens.tokens)

    def parse(self) -> Expression:
        expression = self._condition(self._or())
        if self._tokens.next.kind is not Kind.END:
            raise self._tokens.unexpected("AND, OR, a comparison or the end of the expression")
        return expression

    def _too_deep(self, token: Token) -> SubscriptionIllegal:
        return self._tokens.illegal(token, "nested too deeply", f"at most {MAX_DEPTH} levels")

    def _bounded(self, part: Expression) -> Expression:
        """The part, unless evaluating it would recurse too deeply: chains nest to the left."""
        if part.depth > MAX_DEPTH:
            raise self._too_deep(part.token)
        return part

    # Grammar

    def _or(self) -> Expression:
        parts = [self._and()]
        while self._tokens.take_if("OR"):
            parts.append(self._and())
        return self._joined(parts, deciding=True)

    def _and(self) -> Expression:
        parts = [self._equality()]
        while self._tokens.take_if("AND"):
            parts.append(self._equality())
        return self._joined(parts, deciding=False)

    def _joined(self, parts: list[Expression], *, deciding: bool) -> Expression:
        if len(parts) == 1:
            return parts[0]
        return build.junction([self._condition(part) for part in parts], deciding=deciding)

    def _equality(self) -> Expression:
        left = self._comparison()
        while True:
            if token := self._tokens.take_if("="):
                left = self._equal(left, self._comparison(), token)
            elif token := self._tokens.take_if("<>"):
                left = build.negation(self._equal(left, self._comparison(), token), token)
            elif token := self._tokens.take_if("IS", "NULL"):
                left = build.null_test(left, token)
            elif token := self._tokens.take_if("IS", "NOT", "NULL"):
                left = build.negation(build.null_test(left, token), token)
            elif self._tokens.take_if("IS"):
                raise self._tokens.unexpected("NULL or NOT NULL after IS")
            else:
                return left
            left = self._bounded(left)

    def _comparison(self) -> Expression:
        left = self._unary()
        while True:
            token = self._tokens.next
            negative = self._tokens.take_if("NOT") is not None
            word = self._tokens.next.word
            if word in build.ORDER_TESTS and not negative:
                self._tokens.take()
                left = self._ordered(left, self._unary(), token, word)
            elif word in build.TEXT_TESTS:
                self._tokens.take()
                wanted = self._tokens.need_string(f"after {word}")
                left = build.text_test(left, word, wanted, token, negative=negative)
            elif word == "BETWEEN":
                self._tokens.take()
                left = self._between(left, token, negative=negative)
            elif word == "IN":
                self._tokens.take()
                left = self._in(left, token, negative=negative)
            elif negative:
                raise self._tokens.unexpected(
                    "BETWEEN, IN, CONTAINS, STARTSWITH or ENDSWITH after NOT"
                )
            else:
                return left
            left = self._bounded(left)

    def _unary(self) -> Expression:
        token = self._tokens.next
        self._nesting += 1
        if self._nesting > MAX_DEPTH:
            raise self._too_deep(token)
        if self._tokens.take_if("+"):
            result = self._unary()
        elif self._tokens.take_if("-"):
            result = build.minus(self._unary(), token)
        elif self._tokens.take_if("NOT"):
            result = self._bounded(build.negation(self._condition(self._unary()), token))
        else:
            result = self._primary()
        self._nesting -= 1
        return result

    def _primary(self) -> Expression:
        token = self._tokens.next
        if self._tokens.take_if("("):
            inside = self._or()
            self._tokens.need(")", "to close the parenthesis")
            return inside
        if token.kind is Kind.NAME:
            return build.property_of(self._tokens.take())
        if token.kind is Kind.STRING:
            return build.constant(token.text, self._tokens.take())
        if token.kind is Kind.NUMBER:
            number = number_from_literal(token.text)
            if number is None:
                problem = f"number {token.text}"
                raise self._tokens.illegal(token, problem, "64 bits or a finite double")
            return build.constant(number, self._tokens.take())
        if token.word in ("TRUE", "FALSE"):
            return build.constant(token.word == "TRUE", self._tokens.take())
        if token.word == "NULL":
            return build.constant(None, self._tokens.take())
        raise self._tokens.unexpected("a property name, a literal or '('")

    # Which operands an operator takes

    def _condition(self, part: Expression) -> Expression:
        if part.is_boolean:
            return part
        if not part.is_property:
            raise self._tokens.illegal(
                part.token, "a value where a condition belongs", "such as name = 'value'"
            )
        return build.condition(part)

    def _equal(self, left: Expression, right: Expression, token: Token) -> Expression:
        for part in (left, right):
            if part.is_constant and part.value is None:
                raise self._tokens.illegal(
                    part.token, "NULL cannot be compared", "IS NULL or IS NOT NULL"
                )
        if (
            left.is_constant
            and right.is_constant
            and isinstance(left.value, bool)
            and not isinstance(right.value, bool)
        ):
            raise self._tokens.illegal(
                right.token, "a value compared with TRUE or FALSE", "a property"
            )
        return build.equality(left, right, token)

    def _ordered(self, left: Expression, right: Expression, token: Token, word: str) -> Expression:
        for part in (left, right):
            if part.is_boolean or isinstance(part.value, str):
                raise self._tokens.illegal(
                    part.token, f"{word} with a text or a condition", "a number or a property"
                )
        return build.order_test(left, right, token, word)

    def _between(self, left: Expression, token: Token, *, negative: bool) -> Expression:
        low = self._unary()
        self._tokens.need("AND", "between the two ends of BETWEEN")
        high = self._unary()
        if negative:
            below = self._ordered(left, low, token, "<")
            return build.junction([below, self._ordered(left, high, token, ">")], deciding=True)
        above = self._ordered(left, low, token, ">=")
        inside = [above, self._ordered(left, high, token, "<=")]
        # Constants are numbers here, anything else did not pass as an ordered operand.
        if (
            low.is_constant
            and high.is_constant
            and low.value is not None
            and high.value is not None
            and compare_ordered(high.value, low.value) < 0
        ):
            raise self._tokens.illegal(
                high.token, "BETWEEN ends before it starts", "the smaller end first"
            )
        return build.junction(inside, deciding=False)

    def _in(self, left: Expression, token: Token, *, negative: bool) -> Expression:
        if not left.is_property:
            raise self._tokens.illegal(
                left.token, "IN after something else", "a property name before IN"
            )
        self._tokens.need("(", "after IN")
        texts = {self._tokens.need_string("in the list of IN")}
        while self._tokens.take_if(","):
            texts.add(self._tokens.need_string("in the list of IN"))
        self._tokens.need(")", "to close the list of IN")
        return build.membership(left, frozenset(texts), token, negative=negative)
