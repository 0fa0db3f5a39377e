"""SQL92 filters over message properties, with the meaning RocketMQ gives them.

    or         = and { OR and }
    and        = equality { AND equality }
    equality   = comparison { ("=" | "<>") comparison | IS [NOT] NULL }
    comparison = unary { (">" | ">=" | "<" | "<=") unary | [NOT] BETWEEN unary AND unary
                       | [NOT] IN "(" string { "," string } ")"
                       | [NOT] (CONTAINS | STARTSWITH | ENDSWITH) string }
    unary      = ("+" | "-" | NOT) unary | literal | name | "(" or ")"

Theory of operation. A recursive-descent parser turns the text into closures, each from a property
map to ``True``, ``False`` or ``None`` (unknown, SQL's third truth value); a name evaluates to its
property's text or ``None``. Only ``True`` lets a message through: unknown does not, and neither
does a comparison that cannot be made, which ends the whole evaluation.

Kept from RocketMQ, since the same filter must choose the same messages on every broker:

- NOT binds tighter than a comparison: ``NOT a = 1`` asks whether ``(NOT a)`` equals 1. Write
  ``NOT (a = 1)``.
- Text is converted to the type of the literal it meets: ``a > 5`` never holds for ``6.5``,
  because that is no integer, nor for a number beyond 32 bits; ``a > 5.0`` holds for both.
- Two texts compare with ``>`` or ``<`` as decimal numbers, or not at all.
- Two absent properties are equal, CONTAINS and its kin are false for an absent property whether
  negated or not, and ``a = NULL`` is refused: it is ``a IS NULL``.

Stricter than RocketMQ in one thing: its parser ignores whatever follows a complete expression,
so that ``a = 1 LIKE 'x'`` means ``a = 1``; here that is an error.
"""

from __future__ import annotations

from collections.abc import Callable

from penstock.errors import SubscriptionIllegal
from penstock.protocol.filters.sql92 import expressions as build
from penstock.protocol.filters.sql92.expressions import Expression, Properties
from penstock.protocol.filters.sql92.tokens import (
    MAX_EXPRESSION_CHARACTERS,
    Kind,
    Token,
    illegal,
    tokenize,
)
from penstock.protocol.filters.sql92.values import (
    Incomparable,
    compare_ordered,
    number_from_literal,
)

__all__ = [
    "MAX_DEPTH",
    "MAX_EXPRESSION_CHARACTERS",
    "CompiledFilter",
    "compile_expression",
]

MAX_DEPTH = 64
# What evaluating costs by; the texts of an IN are looked up together and do not count.
_STEPS = (Kind.NAME, Kind.NUMBER, Kind.KEYWORD)


class CompiledFilter:
    """Tells whether a message with given properties passes, in about ``steps`` steps."""

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
        self._text = text
        self._tokens = tokenize(text)
        self._index = 0
        self._nesting = 0
        self.steps = sum(token.kind in _STEPS for token in self._tokens)

    def parse(self) -> Expression:
        expression = self._condition(self._or())
        if self._next.kind is not Kind.END:
            raise self._unexpected("AND, OR, a comparison or the end of the expression")
        return expression

    # Tokens

    @property
    def _next(self) -> Token:
        return self._tokens[self._index]

    def _take(self) -> Token:
        token = self._tokens[self._index]
        self._index += 1
        return token

    def _take_if(self, *words: str) -> Token | None:
        """Take the next tokens when they are exactly these words or symbols; gives the first."""
        ahead = self._tokens[self._index : self._index + len(words)]
        if tuple(token.word for token in ahead) != words:
            return None
        self._index += len(words)
        return ahead[0]

    def _need(self, word: str, why: str) -> None:
        if self._take_if(word) is None:
            raise self._unexpected(f"{word} {why}")

    def _need_string(self, why: str) -> str:
        if self._next.kind is not Kind.STRING:
            raise self._unexpected(f"a text in single quotes {why}")
        return self._take().text

    # Mistakes

    def _unexpected(self, expected: str) -> SubscriptionIllegal:
        token = self._next
        found = "the end" if token.kind is Kind.END else token.source
        return illegal(self._text, token.position, f"unexpected {found}", expected)

    def _refuse(self, part: Expression, problem: str, expected: str) -> SubscriptionIllegal:
        return illegal(self._text, part.token.position, problem, expected)

    def _too_deep(self, token: Token) -> SubscriptionIllegal:
        return illegal(
            self._text, token.position, "nested too deeply", f"at most {MAX_DEPTH} levels"
        )

    def _bounded(self, part: Expression) -> Expression:
        """The part, unless evaluating it would recurse too deeply: chains nest to the left."""
        if part.depth > MAX_DEPTH:
            raise self._too_deep(part.token)
        return part

    # Grammar

    def _or(self) -> Expression:
        parts = [self._and()]
        while self._take_if("OR"):
            parts.append(self._and())
        return self._joined(parts, deciding=True)

    def _and(self) -> Expression:
        parts = [self._equality()]
        while self._take_if("AND"):
            parts.append(self._equality())
        return self._joined(parts, deciding=False)

    def _joined(self, parts: list[Expression], *, deciding: bool) -> Expression:
        if len(parts) == 1:
            return parts[0]
        return build.junction([self._condition(part) for part in parts], deciding=deciding)

    def _equality(self) -> Expression:
        left = self._comparison()
        while True:
            if token := self._take_if("="):
                left = self._equal(left, self._comparison(), token)
            elif token := self._take_if("<>"):
                left = build.negation(self._equal(left, self._comparison(), token), token)
            elif token := self._take_if("IS", "NULL"):
                left = build.null_test(left, token)
            elif token := self._take_if("IS", "NOT", "NULL"):
                left = build.negation(build.null_test(left, token), token)
            elif self._take_if("IS"):
                raise self._unexpected("NULL or NOT NULL after IS")
            else:
                return left
            left = self._bounded(left)

    def _comparison(self) -> Expression:
        left = self._unary()
        while True:
            token = self._next
            negative = self._take_if("NOT") is not None
            word = self._next.word
            if word in build.ORDER_TESTS and not negative:
                self._take()
                left = self._ordered(left, self._unary(), token, word)
            elif word in build.TEXT_TESTS:
                self._take()
                wanted = self._need_string(f"after {word}")
                left = build.text_test(left, word, wanted, token, negative=negative)
            elif word == "BETWEEN":
                self._take()
                left = self._between(left, token, negative=negative)
            elif word == "IN":
                self._take()
                left = self._in(left, token, negative=negative)
            elif negative:
                raise self._unexpected("BETWEEN, IN, CONTAINS, STARTSWITH or ENDSWITH after NOT")
            else:
                return left
            left = self._bounded(left)

    def _unary(self) -> Expression:
        token = self._next
        self._nesting += 1
        if self._nesting > MAX_DEPTH:
            raise self._too_deep(token)
        if self._take_if("+"):
            result = self._unary()
        elif self._take_if("-"):
            result = build.minus(self._unary(), token)
        elif self._take_if("NOT"):
            result = self._bounded(build.negation(self._condition(self._unary()), token))
        else:
            result = self._primary()
        self._nesting -= 1
        return result

    def _primary(self) -> Expression:
        token = self._next
        if self._take_if("("):
            inside = self._or()
            self._need(")", "to close the parenthesis")
            return inside
        if token.kind is Kind.NAME:
            return build.property_of(self._take())
        if token.kind is Kind.STRING:
            return build.constant(token.text, self._take())
        if token.kind is Kind.NUMBER:
            number = number_from_literal(token.text)
            if number is None:
                problem = f"number {token.text}"
                raise illegal(self._text, token.position, problem, "64 bits or a finite double")
            return build.constant(number, self._take())
        if token.word in ("TRUE", "FALSE"):
            return build.constant(token.word == "TRUE", self._take())
        if token.word == "NULL":
            return build.constant(None, self._take())
        raise self._unexpected("a property name, a literal or '('")

    # What may be combined with what

    def _condition(self, part: Expression) -> Expression:
        if part.is_boolean:
            return part
        if not part.is_property:
            raise self._refuse(part, "a value where a condition belongs", "such as name = 'value'")
        return build.condition(part)

    def _equal(self, left: Expression, right: Expression, token: Token) -> Expression:
        for part in (left, right):
            if part.is_constant and part.value is None:
                raise self._refuse(part, "NULL cannot be compared", "IS NULL or IS NOT NULL")
        if (
            left.is_constant
            and right.is_constant
            and isinstance(left.value, bool)
            and not isinstance(right.value, bool)
        ):
            raise self._refuse(right, "a value compared with TRUE or FALSE", "a property")
        return build.equality(left, right, token)

    def _ordered(self, left: Expression, right: Expression, token: Token, word: str) -> Expression:
        for part in (left, right):
            if part.is_boolean or isinstance(part.value, str):
                raise self._refuse(
                    part, f"{word} with a text or a condition", "a number or a property"
                )
        return build.order_test(left, right, token, word)

    def _between(self, left: Expression, token: Token, *, negative: bool) -> Expression:
        low = self._unary()
        self._need("AND", "between the two ends of BETWEEN")
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
            raise self._refuse(high, "BETWEEN ends before it starts", "the smaller end first")
        return build.junction(inside, deciding=False)

    def _in(self, left: Expression, token: Token, *, negative: bool) -> Expression:
        if not left.is_property:
            raise self._refuse(left, "IN after something else", "a property name before IN")
        self._need("(", "after IN")
        texts = {self._need_string("in the list of IN")}
        while self._take_if(","):
            texts.add(self._need_string("in the list of IN"))
        self._need(")", "to close the list of IN")
        return build.membership(left, frozenset(texts), token, negative=negative)
