"""The tokens of a SQL92 filter, and the error for a mistake in it."""

from __future__ import annotations

import enum
import re
from typing import NamedTuple

from penstock.errors import SubscriptionIllegal

MAX_EXPRESSION_CHARACTERS = 32768
_SHOWN_BEFORE = 40
_SHOWN_AFTER = 20

_TRUTH = {"NOT", "AND", "OR", "TRUE", "FALSE", "NULL", "IS"}
_TESTS = {"BETWEEN", "IN", "CONTAINS", "STARTSWITH", "ENDSWITH"}
_KEYWORDS = _TRUTH | _TESTS

# Spaces and comments first: "--" is no pair of signs. A line comment may also end the text.
_TOKEN = re.compile(
    r"""
    (?P<space>   [ \t\n\r\f]+ | --[^\n\r]* | /\*.*?\*/ )
  | (?P<number>  (?: [0-9]+\.[0-9]* | \.[0-9]+ ) (?: [eE][+-]?[0-9]+ )?
               | [0-9]+[eE][+-]?[0-9]+
               | (?: 0 | [1-9][0-9]*[lL]? ) )
  | (?P<name>    [A-Za-z_$][A-Za-z0-9_$]* )
  | (?P<string>  '(?:[^']|'')*' )
  | (?P<symbol>  <> | <= | >= | [=<>()+,-] )
    """,
    re.VERBOSE | re.DOTALL,
)


class Kind(enum.Enum):
    """What a token is."""

    NAME = enum.auto()
    KEYWORD = enum.auto()
    STRING = enum.auto()
    NUMBER = enum.auto()
    SYMBOL = enum.auto()
    END = enum.auto()


class Token(NamedTuple):
    """One token: ``word`` is the keyword in capitals or the symbol, ``text`` the decoded value."""

    kind: Kind
    word: str
    text: str
    source: str
    position: int


def tokenize(expression: str) -> list[Token]:
    """The tokens of a filter, with one of kind END after the last."""
    if len(expression) > MAX_EXPRESSION_CHARACTERS:
        raise SubscriptionIllegal(
            f"SQL92 filter of {len(expression)} characters",
            expected=f"at most {MAX_EXPRESSION_CHARACTERS}",
        )
    tokens: list[Token] = []
    position = 0
    while position < len(expression):
        match = _TOKEN.match(expression, position)
        if match is None:
            raise _unreadable(expression, position)
        source = match[0]
        if match.lastgroup != "space":
            tokens.append(_token(str(match.lastgroup), source, position))
        position = match.end()
    tokens.append(Token(Kind.END, "", "", "", position))
    return tokens


def _token(group: str, source: str, position: int) -> Token:
    if group == "name":
        word = source.upper()
        if word in _KEYWORDS:
            return Token(Kind.KEYWORD, word, source, source, position)
        return Token(Kind.NAME, "", source, source, position)
    if group == "string":
        return Token(Kind.STRING, "", source[1:-1].replace("''", "'"), source, position)
    if group == "number":
        return Token(Kind.NUMBER, "", source, source, position)
    return Token(Kind.SYMBOL, source, source, source, position)


def _unreadable(expression: str, position: int) -> SubscriptionIllegal:
    if expression[position] == "'":
        return illegal(expression, position, "a text without its closing quote", "'...'")
    if expression.startswith("/*", position):
        return illegal(expression, position, "a comment without its end", "*/")
    return illegal(
        expression,
        position,
        f"unexpected {expression[position]!r}",
        "names, numbers, 'texts', = <> > >= < <= ( ) and keywords",
    )


def illegal(expression: str, position: int, problem: str, expected: str) -> SubscriptionIllegal:
    """The error for a mistake at ``position``, on one line, since it is sent as a remark."""
    before = expression[max(0, position - _SHOWN_BEFORE) : position]
    after = expression[position : position + _SHOWN_AFTER]
    if position > _SHOWN_BEFORE:
        before = "..." + before
    if len(expression) > position + _SHOWN_AFTER:
        after += "..."
    shown = " ".join(f"{before}>>>{after}".split())
    return SubscriptionIllegal(
        f"SQL92 filter, character {position + 1}: {problem} in: {shown}", expected=expected
    )
