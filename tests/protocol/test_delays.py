"""Delay levels: RocketMQ's list, and lists from a configuration."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock.errors import ConfigError, InvalidArgument
from penstock.protocol.delays import DEFAULT_DELAY_LEVELS, DELAY_LEVELS, DelayLevels, delay_ms

SECONDS = [1, 5, 10, 30, *(60 * m for m in (1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 20, 30)), 3600, 7200]


def test_the_eighteen_levels_wait_as_long_as_they_say() -> None:
    assert [delay_ms(level) // 1000 for level in range(1, 19)] == SECONDS
    assert DELAY_LEVELS.max_level == 18


def test_every_level_is_found_by_number_and_by_text() -> None:
    for level, text in enumerate(DEFAULT_DELAY_LEVELS.split(), start=1):
        assert DELAY_LEVELS.level_of(level) == level
        assert DELAY_LEVELS.level_of(text) == level
        assert DELAY_LEVELS.level_of(f" {text.upper()} ") == level
        assert DELAY_LEVELS.text_of(level) == text


@pytest.mark.parametrize("delay", [-1, 19, "7s", "", "10", "ten", True])
def test_anything_else_is_refused_with_the_list(delay: int | str) -> None:
    with pytest.raises(InvalidArgument) as caught:
        DELAY_LEVELS.level_of(delay)
    assert isinstance(caught.value, ValueError)
    assert "1s, 5s, 10s, 30s, 1m" in str(caught.value)
    assert "1 to 18" in str(caught.value)


def test_no_level_means_no_delay_and_levels_beyond_the_last_are_the_last() -> None:
    assert [delay_ms(level) for level in (-5, 0, 19, 1 << 40)] == [0, 0, 7200_000, 7200_000]
    assert [DELAY_LEVELS.clamp(level) for level in (-1, 0, 5, 99)] == [0, 0, 5, 18]
    assert DELAY_LEVELS.level_of(0) == 0
    assert DELAY_LEVELS.text_of(0) == "0s"


def test_a_list_from_a_configuration_is_read() -> None:
    levels = DelayLevels(" 1s  2m 3h\t1d 2m")
    assert [levels.delay_ms(level) for level in range(1, 6)] == [
        1000,
        120_000,
        10_800_000,
        86_400_000,
        120_000,
    ]
    assert levels.level_of("1d") == 4
    assert levels.level_of("2m") == 2
    assert levels.max_level == 5


@pytest.mark.parametrize(
    "text", ["", "  ", "1x", "s", "1s,2s", "-1s", "1.5s", "٣s", "1" * 20 + "s"]
)
def test_a_list_that_is_none_is_refused(text: str) -> None:
    with pytest.raises(ConfigError, match="messageDelayLevel"):
        DelayLevels(text)


@given(st.text(max_size=30))
def test_any_text_is_a_list_or_refused(text: str) -> None:
    try:
        levels = DelayLevels(text)
    except ConfigError:
        return
    assert levels.max_level == len(text.split())
