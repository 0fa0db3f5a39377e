"""The words of a SQL92 filter."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock.errors import SubscriptionIllegal
from penstock.protocol.filters.sql92.tokens import Kind, illegal, tokenize


def seen(expression: str) -> list[tuple[Kind, str]]:
    return [(token.kind, token.word or token.text) for token in tokenize(expression)[:-1]]


def test_every_kind_of_token_is_distinguished() -> None:
    assert seen("price>=1.5 And name = 'it''s' (,)") == [
        (Kind.NAME, "price"),
        (Kind.SYMBOL, ">="),
        (Kind.NUMBER, "1.5"),
        (Kind.KEYWORD, "AND"),
        (Kind.NAME, "name"),
        (Kind.SYMBOL, "="),
        (Kind.STRING, "it's"),
        (Kind.SYMBOL, "("),
        (Kind.SYMBOL, ","),
        (Kind.SYMBOL, ")"),
    ]


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("a<>b", ["a", "<>", "b"]),
        ("a<=b", ["a", "<=", "b"]),
        ("a< >b", ["a", "<", ">", "b"]),
        ("1e5", ["1e5"]),
        ("1e", ["1", "e"]),
        ("1.e5", ["1.e5"]),
        ("12L", ["12L"]),
        ("00", ["0", "0"]),
        ("0.5", ["0.5"]),
        ("1.2.3", ["1.2", ".3"]),
        ("a--b", ["a"]),
        ("a- -b", ["a", "-", "-", "b"]),
        ("notx", ["notx"]),
        ("$a_1", ["$a_1"]),
        ("''''", ["'"]),
        ("'a''b''c'", ["a'b'c"]),
    ],
)
def test_tokens_are_as_long_as_they_can_be(text: str, words: list[str]) -> None:
    assert [word for _, word in seen(text)] == words


@given(st.text("ab1.'<>=()-+,/* \n$_", max_size=40))
def test_tokens_cover_the_text_in_order_or_it_is_refused(text: str) -> None:
    try:
        tokens = tokenize(text)
    except SubscriptionIllegal:
        return
    assert tokens[-1].kind is Kind.END
    assert tokens[-1].position == len(text)
    end = 0
    for token in tokens[:-1]:
        assert token.position >= end
        assert text.startswith(token.source, token.position)
        end = token.position + len(token.source)


@given(st.text(max_size=200), st.integers(0, 200))
def test_the_report_of_a_mistake_is_one_short_line(text: str, position: int) -> None:
    report = str(illegal(text, min(position, len(text)), "a problem", "something else"))
    assert len(report.splitlines()) == 1
    assert len(report) < 250
    assert ">>>" in report
