"""Texts that are known are served as by a broker that sees them for the first time."""

from __future__ import annotations

import time

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.broker.handlers import test_fast_timers, test_fast_transactions

from penstock.broker import Broker
from penstock.broker.handlers import known_texts
from penstock.broker.handlers.fast_timers import FastTimers
from penstock.broker.handlers.fast_transactions import FastTransactions
from penstock.broker.handlers.known_texts import CutText, KnownTexts, cut_id

IDS = ["U", "7F0000013A2218B4AAC2000000000001", "", "\u00fc", "a\x01b", "a\x01b\x02c", "U\x02c\x01"]
PLACES = ["UNIQ_KEY\x01{id}\x02{text}", "{text}UNIQ_KEY\x01{id}\x02", "{text}UNIQ_KEY\x01{id}"]
LATER = f"{(int(time.time()) + 7200) * 1000}"


def texts(rows: list[str]) -> list[str]:
    """Each row with each id, in front and behind."""
    return [
        place.format(id=unique_id, text=row.replace("<later>", LATER).replace("<later+1>", LATER))
        for row in rows
        for place in PLACES
        for unique_id in IDS
    ]


async def test_halves_that_are_known_are_served_like_unknown_ones(broker: Broker) -> None:
    rows = [*test_fast_transactions.USUAL, *test_fast_transactions.UNUSUAL]
    known = FastTransactions(broker.state)
    for _ in range(2):
        for text in texts(rows):
            unknown = FastTransactions(broker.state)
            assert known.prepare(text, "T", 2) == unknown.prepare(text, "T", 2)


async def test_timers_that_are_known_are_served_like_unknown_ones(broker: Broker) -> None:
    rows = [*test_fast_timers.USUAL, *test_fast_timers.UNUSUAL, "TIMER_DELx\x013\x02", "x\x013\x02"]
    rows = [row for row in rows if "<32" not in row and "TIMER_DELAY" not in row]
    rows += [f"{row}TIMER_DELx\x01y\x02" for row in rows]
    known = FastTimers(broker.state)
    for _ in range(2):
        for text in texts(rows):
            unknown = FastTimers(broker.state)
            assert known.park(text, "T", 2) == unknown.park(text, "T", 2)


@given(st.text("UNIQ_KEY\x01\x02ab", max_size=40))
def test_a_text_is_cut_at_its_last_id(text: str) -> None:
    enclosed = f"\x02{text}\x02"
    cut = cut_id(enclosed)
    if cut is None:
        return
    assert "".join(cut) == enclosed
    assert cut.before.endswith("\x02UNIQ_KEY\x01")
    assert cut.behind.startswith("\x02")
    assert "\x02UNIQ_KEY\x01" not in cut.behind
    assert cut.unique_id
    assert not set(cut.unique_id) & {"\x01", "\x02"}


def test_texts_take_a_bounded_part_of_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(known_texts, "_MAX_TEXTS", 3)
    known: KnownTexts[int] = KnownTexts()
    kept = []
    for number in range(7):
        known.add(CutText("before", "id", f"behind{number}"), number)
        kept.append([one for one in range(7) if known.get(f"beforebehind{one}") is not None])
    assert kept == [[0], [0, 1], [0, 1, 2], [3], [3, 4], [3, 4, 5], [6]]
    known.add(CutText("x" * 1024, "id", "x"), 8)
    assert known.get("x" * 1025) is None
