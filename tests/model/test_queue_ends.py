"""The words for the two ends of a queue."""

from __future__ import annotations

import pytest

from penstock.client.arguments import start_from
from penstock.client.settings import StartFrom
from penstock.model.queue_ends import queue_end


@pytest.mark.parametrize("word", ["first", "earliest", "Earliest", " FIRST "])
def test_the_first_message_has_two_words(word: str) -> None:
    assert queue_end(word) == "first"
    assert start_from(word) == StartFrom("first")


@pytest.mark.parametrize("word", ["last", "latest", "LATEST"])
def test_the_end_has_two_words(word: str) -> None:
    assert queue_end(word) == "last"
    assert start_from(word) == StartFrom("last")


@pytest.mark.parametrize("word", ["", "group", "2026-11-16", 5, None])
def test_anything_else_is_no_end(word: object) -> None:
    assert queue_end(word) is None
