"""A cursor over the tokens of a SQL92 filter, and the errors that name a place in it."""

from __future__ import annotations

from penstock.errors import SubscriptionIllegal
from penstock.protocol.filters.sql92.tokens import Kind, Token, illegal, tokenize


class TokenStream:
    """The tokens of one filter, taken from left to right."""

    def __init__(self, text: str) -> None:
        self._text = text
        self.tokens = tokenize(text)
        self._index = 0

    @property
    def next(self) -> Token:
        """The token that is taken next."""
        return self.tokens[self._index]

    def take(self) -> Token:
        """Step over the next token and return it."""
        token = self.tokens[self._index]
        self._index += 1
        return token

    def take_if(self, *words: str) -> Token | None:
        """Take the next tokens if they are exactly these words or symbols; return the first."""
        ahead = self.tokens[self._index : self._index + len(words)]
        if tuple(token.word for token in ahead) != words:
            return None
        self._index += len(words)
        return ahead[0]

    def need(self, word: str, why: str) -> None:
        """Take this word or symbol; anything else is an error."""
        if self.take_if(word) is None:
            raise self.unexpected(f"{word} {why}")

    def need_string(self, why: str) -> str:
        """Take a text in quotes; anything else is an error."""
        if self.next.kind is not Kind.STRING:
            raise self.unexpected(f"a text in single quotes {why}")
        return self.take().text

    def unexpected(self, expected: str) -> SubscriptionIllegal:
        """The error for a next token that does not fit the grammar."""
        found = "the end" if self.next.kind is Kind.END else self.next.source
        return self.illegal(self.next, f"unexpected {found}", expected)

    def illegal(self, token: Token, problem: str, expected: str) -> SubscriptionIllegal:
        """The error for a mistake at ``token``."""
        return illegal(self._text, token.position, problem, expected)
