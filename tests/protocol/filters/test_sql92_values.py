"""How values of a SQL92 filter compare, checked against a second, plainer account of it."""

from __future__ import annotations

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock.protocol.filters.sql92.values import (
    Incomparable,
    Long,
    Value,
    compare,
    compare_ordered,
    number_from_literal,
)

integers = st.integers(-(1 << 31) + 1, (1 << 31) - 1)
longs = st.integers(-(1 << 63) + 1, (1 << 63) - 1).map(Long)
doubles = st.floats(allow_nan=True, allow_infinity=True)
numbers = st.one_of(integers, longs, doubles)
texts = st.one_of(
    st.text(max_size=6),
    integers.map(str),
    longs.map(str),
    doubles.map(repr),
    st.sampled_from(["true", "FALSE", "NaN", "Infinity", "-Infinity", "1e5", "0x1", "1_0"]),
)
values = st.one_of(numbers, texts, st.booleans())


def outcome(first: Value, second: Value) -> int | str:
    try:
        answer = compare(first, second)
    except Incomparable:
        return "none"
    return (answer > 0) - (answer < 0)


@given(numbers, numbers)
def test_numbers_of_all_types_are_ordered(first: Value, second: Value) -> None:
    there, back = outcome(first, second), outcome(second, first)
    assert isinstance(there, int)
    assert isinstance(back, int)
    assert there == -back
    if not isinstance(first, float) and not isinstance(second, float):
        assert there == (first > second) - (first < second)  # type: ignore[operator]


@given(values)
def test_a_value_equals_itself(value: Value) -> None:
    assert outcome(value, value) == 0


@given(values, values)
def test_any_two_values_compare_or_do_not_and_nothing_else(first: Value, second: Value) -> None:
    for function in (compare, compare_ordered):
        try:
            assert isinstance(function(first, second), int)
        except Incomparable:
            continue


@given(integers, integers)
def test_the_text_of_an_integer_compares_as_the_integer(first: int, second: int) -> None:
    expected = outcome(first, second)
    assert outcome(str(first), second) == expected
    assert outcome(first, str(second)) == expected
    assert outcome(str(first), Long(second)) == expected
    assert outcome(str(first), float(second)) == expected


@given(doubles, doubles)
def test_the_text_of_a_double_compares_as_the_double(first: float, second: float) -> None:
    # Java spells these two with a capital letter and in full.
    spelled = repr(first).replace("inf", "Infinity").replace("nan", "NaN")
    assert outcome(spelled, second) == outcome(first, second)


@given(integers)
def test_a_boolean_is_less_than_a_number_from_either_side(number: int) -> None:
    assert outcome(True, number) == outcome(number, True) == -1


@pytest.mark.parametrize(
    ("first", "second", "expected"),
    [
        ("true", True, 0),
        ("TRUE", True, 0),
        ("yes", False, 0),
        ("yes", True, -1),
        (True, False, 1),
        (True, "true", "none"),
        ("abc", "abd", -1),
        ("2147483647", 1, 1),
        ("2147483648", 1, "none"),
        ("2147483648", Long(1), 1),
        ("9223372036854775808", Long(1), "none"),
        ("9223372036854775808", 1.0, 1),
        ("", 1, "none"),
        ("+", 1, "none"),
        ("1.", 1.0, 0),
        (".", 1.0, "none"),
        (math.nan, math.inf, 1),
        (math.nan, math.nan, 0),
        (-0.0, 0.0, -1),
        (0, -0.0, 1),
    ],
)
def test_the_corners_are_those_of_java(first: Value, second: Value, expected: int | str) -> None:
    assert outcome(first, second) == expected


@pytest.mark.parametrize(
    ("first", "second", "expected"),
    [("10", "9", 1), ("1e1", "10", 0), (" 1", "1 ", 0), ("-1", "1", -1)],
)
def test_texts_are_ordered_as_numbers(first: str, second: str, expected: int) -> None:
    assert compare_ordered(first, second) == expected


@pytest.mark.parametrize(("first", "second"), [("a", "b"), ("1", ""), ("one", "1")])
def test_texts_that_are_no_numbers_have_no_order(first: str, second: str) -> None:
    with pytest.raises(Incomparable):
        compare_ordered(first, second)


@pytest.mark.parametrize(
    ("text", "expected", "kind"),
    [
        ("0", 0, int),
        ("5l", 5, int),
        ("2147483647", 2147483647, int),
        ("2147483648", 2147483648, Long),
        ("9223372036854775807L", 9223372036854775807, Long),
        ("5.", 5.0, float),
        (".5", 0.5, float),
        ("5E2", 500.0, float),
    ],
)
def test_literals_have_the_smallest_type_that_holds_them(
    text: str, expected: float, kind: type
) -> None:
    number = number_from_literal(text)
    assert number == expected
    assert type(number) is kind


@pytest.mark.parametrize("text", ["9223372036854775808", "1" * 100, "1e999"])
def test_literals_out_of_range_are_no_numbers(text: str) -> None:
    assert number_from_literal(text) is None
