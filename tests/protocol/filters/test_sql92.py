"""SQL92 filters: what they mean, what is refused, and that no text does harm."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock.errors import SubscriptionIllegal
from penstock.protocol.filters.sql92.parser import (
    MAX_DEPTH,
    compile_expression,
)
from penstock.protocol.filters.sql92.tokens import MAX_EXPRESSION_CHARACTERS


def matches(expression: str, **properties: str) -> bool:
    return compile_expression(expression)(properties)


@pytest.mark.parametrize(
    ("expression", "properties", "expected"),
    [
        # and, or, not
        ("a=3 and b<>4 And c>5 AND d<=4", {"a": "3", "b": "5", "c": "6", "d": "1"}, True),
        ("a=3 and b<>4 And c>5 AND d<=4", {"a": "4", "b": "5", "c": "6", "d": "1"}, False),
        ("a=3 or b<>4 Or c>5 OR d<=4", {"a": "3"}, True),
        ("a=3 or b<>4 Or c>5 OR d<=4", {"a": "4", "b": "4", "c": "6"}, True),
        ("a=3 or b<>4 Or c>5 OR d<=4", {"a": "4", "b": "4", "c": "3", "d": "10"}, False),
        ("a = 1 OR b = 2 AND c = 3", {"a": "1"}, True),
        ("(a = 1 OR b = 2) AND c = 3", {"a": "1"}, False),
        ("NOT (a = 1)", {"a": "2"}, True),
        ("NOT (a = 1)", {"a": "1"}, False),
        ("NOT NOT (a = 1)", {"a": "1"}, True),
        # in, between, null
        ("a in ('3', '4', '5')", {"a": "4"}, True),
        ("a in ('3', '4', '5')", {"a": "8"}, False),
        ("a not in ('3', '4', '5')", {"a": "8"}, True),
        ("a not in ('3', '4', '5')", {"a": "3"}, False),
        ("(a) in ('3')", {"a": "3"}, True),
        ("a between 2 and 10", {"a": "2"}, True),
        ("a between 2 and 10", {"a": "10"}, True),
        ("a between 2 and 10", {"a": "11"}, False),
        ("a not between 2 and 10", {"a": "11"}, True),
        ("a not between 2 and 10", {"a": "3"}, False),
        ("a between -5 and -1", {"a": "-3"}, True),
        ("a between low and high", {"a": "3", "low": "1", "high": "3.5"}, True),
        ("a is null", {"b": "2"}, True),
        ("a is null", {"a": "2"}, False),
        ("a is not null", {"a": "2"}, True),
        ("a is not null", {}, False),
        # equality
        ("a = b", {"a": "3.14", "b": "3.14"}, True),
        ("a <> b", {"a": "3.14", "b": "3.141"}, True),
        ("a = 'it''s'", {"a": "it's"}, True),
        ("TAGS is not null and TAGS='''''tag'''''", {"TAGS": "''tag''"}, True),
        ("a = ''", {"a": "x"}, False),
        ("a=TRUE OR b=FALSE", {"a": "true", "b": "false"}, True),
        ("a=TRUE OR b=FALSE", {"a": "false", "b": "true"}, False),
        ("a = TRUE", {"a": "TrUe"}, True),
        ("a = FALSE", {"a": "anything"}, True),
        ("colour = 'grün'", {"colour": "grün"}, True),
        # texts
        ("a contains 'ell'", {"a": "hello"}, True),
        ("a contains 'x'", {"a": "hello"}, False),
        ("a not contains 'x'", {"a": "hello"}, True),
        ("a startswith 'he'", {"a": "hello"}, True),
        ("a not startswith 'he'", {"a": "hello"}, False),
        ("a endswith 'lo'", {"a": "hello"}, True),
        ("a NOT ENDSWITH 'lo'", {"a": "hello"}, False),
        # constants
        ("TRUE", {}, True),
        ("FALSE", {}, False),
        ("NULL", {}, False),
        ("1 = 1", {}, True),
        ("'a' = 'b'", {}, False),
        ("1 IS NOT NULL", {}, True),
    ],
)
def test_an_expression_means_what_it_says(
    expression: str, properties: dict[str, str], expected: bool
) -> None:
    assert compile_expression(expression)(properties) is expected


@pytest.mark.parametrize(
    ("expression", "value", "expected"),
    [
        ("a > 3.14", "3.1415", True),
        ("a > 3.1E10", "31415000000.0", True),
        ("a >= .5", "0.5", True),
        ("a >= 5.", "5", True),
        ("a < 5e-1", "0.25", True),
        ("a = 10", "10", True),
        ("a = 10", "+10", True),
        ("a = 10", "010", True),
        ("a = 10L", "10", True),
        ("a = +10", "10", True),
        ("a = -10", "-10", True),
        ("a = - - 10", "10", True),
        ("10 < a", "11", True),
        ("a <> 10", "11", True),
        ("a >= -2147483648", "3000000000", True),
        ("a > 9223372036854775806", "9223372036854775807", True),
        ("a > 5.0", "6.5", True),
        ("a > 5.0", " 6.5 ", True),
        ("a > 5.0", "6.5f", True),
        ("a > 5.0", "Infinity", True),
        ("a > 5.0", "NaN", True),
        ("a < 5.0", "NaN", False),
        ("a < 0.0", "-0.0", True),
        # The literal's type decides how the text is read.
        ("a > 5", "6.5", False),
        ("a > 5", "3000000000", False),
        ("a > 5", " 6", False),
        ("a > 5", "6_0", False),
        ("a > 5", "٦", False),
        ("a > 3000000000", "9223372036854775808", False),
        ("a > 5.0", "six", False),
        ("a > 5.0", "", False),
        ("a > 5.0", "0x10", False),
        ("a > 5.0", "1__0", False),
    ],
)
def test_texts_become_the_type_of_the_number_they_meet(
    expression: str, value: str, expected: bool
) -> None:
    assert matches(expression, a=value) is expected


def test_endless_digits_are_no_number_and_take_no_time() -> None:
    assert not matches("a > 5", a="9" * 30_000)
    assert matches("a > 5.0", a="9" * 30_000)  # infinite, as in Java


def test_two_texts_are_ordered_as_numbers_or_not_at_all() -> None:
    assert not matches("a > b", a="10", b="20")
    assert matches("a > b", a="20", b="10")
    assert matches("a > b", a="9", b="1e0")
    assert not matches("a > b", a="x", b="w")
    assert not matches("a <= b", a="x", b="w")


@pytest.mark.parametrize(
    ("expression", "expected"),
    [
        ("a = 1", False),
        ("NOT (a = 1)", False),
        ("a <> 1", False),
        ("a > 1", False),
        ("1 > a", False),
        ("a in ('x')", False),
        ("a not in ('x')", False),
        ("a between 1 and 2", False),
        ("a not between 1 and 2", False),
        ("a contains 'x'", False),
        ("a not contains 'x'", False),
        ("a not startswith 'x'", False),
        ("a not endswith 'x'", False),
        ("NOT (a contains 'x')", True),
        ("a = b", True),
        ("1 = a", False),
        ("NOT (1 = a)", True),
        ("a", False),
        ("NOT a", False),
        ("a = 1 OR TRUE", True),
        ("a = 1 OR FALSE", False),
        ("NOT (a = 1 AND FALSE)", True),
        ("NOT (a = 1 AND TRUE)", False),
        ("NULL OR TRUE", True),
        ("-a = 1", False),
        ("-a IS NULL", True),
    ],
)
def test_absent_properties_are_unknown_in_three_valued_logic(
    expression: str, expected: bool
) -> None:
    assert matches(expression) is expected


def test_an_impossible_comparison_ends_the_evaluation_where_it_stands() -> None:
    assert not matches("a > 5 OR TRUE", a="text")
    assert matches("TRUE OR a > 5", a="text")
    assert not matches("NOT (a > 5)", a="text")
    assert not matches("(a IS NULL) = b", a="x", b="true")


def test_not_binds_tighter_than_a_comparison() -> None:
    # (NOT a) = 1: a text is a false condition, and TRUE is not 1.
    assert not matches("NOT a = 1", a="2")
    assert matches("NOT a", a="true")


def test_conditions_compare_with_truth_values() -> None:
    assert matches("(a = 1) = TRUE", a="1")
    assert matches("(a = 1) = (b = 2)", a="0", b="0")
    assert not matches("(a = 1) = 5", a="1")
    assert not matches("5 = TRUE")
    assert matches("a = b = TRUE", a="x", b="x")
    assert not matches("(a = 1) CONTAINS 'x'", a="1")


def test_an_empty_wanted_text_is_never_found() -> None:
    assert not matches("a contains ''", a="x")
    assert not matches("a not contains ''", a="x")


def test_names_keep_their_case_and_keywords_do_not() -> None:
    assert matches("Colour = 'red' aNd $x_1 iS NoT nUlL", Colour="red", **{"$x_1": "y"})
    assert not matches("colour = 'red'", Colour="red")
    assert matches("_contains Contains 'x'", _contains="x")


@pytest.mark.parametrize(
    "expression",
    [
        "a -- the first letter\n = 1",
        "a = 1 -- to the end",
        "-- before\r\na = 1",
        "/* one */ a /* two * / ** */ = /**/ 1",
        "a/* 'no string */=1",
        "\ta\f=\r\n1 ",
    ],
)
def test_comments_and_space_do_not_count(expression: str) -> None:
    assert matches(expression, a="1")


def test_comment_marks_in_a_text_are_text() -> None:
    assert matches("a = '--x/*y*/'", a="--x/*y*/")


@pytest.mark.parametrize(
    ("expression", "position", "problem"),
    [
        ("", 1, "unexpected the end"),
        ("   ", 4, "unexpected the end"),
        ("colour = = 1", 10, "unexpected ="),
        ("a = ", 5, "unexpected the end"),
        ("a = 1 AND", 10, "unexpected the end"),
        ("a = 1 LIKE 'x'", 7, "unexpected LIKE"),
        ("a = 1 b", 7, "unexpected b"),
        ("(a = 1", 7, "unexpected the end"),
        ("a = 1)", 6, "unexpected )"),
        ("a = 'x", 5, "closing quote"),
        ("a /* = 1", 3, "comment without its end"),
        ('a = "x"', 5, "unexpected '\"'"),
        ("a # 1", 3, "unexpected '#'"),
        ("a = 1;", 6, "unexpected ';'"),
        ("a = 007", 6, "unexpected 0"),
        ("a is 5", 6, "unexpected 5"),
        ("a is not 5", 6, "unexpected not"),
        ("a not 5", 7, "unexpected 5"),
        ("a between 1 or 2", 13, "unexpected or"),
        ("a between 5 and 1", 17, "ends before it starts"),
        ("a between null and 1", 11, "text or a condition"),
        ("a in ()", 7, "unexpected )"),
        ("a in (1)", 7, "unexpected 1"),
        ("a in 'x'", 6, "unexpected 'x'"),
        ("a in ('x' 'y')", 11, "unexpected 'y'"),
        ("'a' in ('x')", 1, "IN after something else"),
        ("a contains b", 12, "unexpected b"),
        ("a = null", 5, "NULL cannot be compared"),
        ("null <> a", 1, "NULL cannot be compared"),
        ("true = 5", 8, "compared with TRUE"),
        ("a > 'x'", 5, "> with a text or a condition"),
        ("a > TRUE", 5, "> with a text or a condition"),
        ("a > 1 > 0", 3, "> with a text or a condition"),
        ("'text'", 1, "a value where a condition belongs"),
        ("5", 1, "a value where a condition belongs"),
        ("-5", 1, "a value where a condition belongs"),
        ("NOT 5", 5, "a value where a condition belongs"),
        ("a = 1 AND 'x'", 11, "a value where a condition belongs"),
        ("a > 9223372036854775808", 5, "number 9223372036854775808"),
        ("a > 1e400", 5, "number 1e400"),
        ("a > " + "9" * 5000, 5, "number 999"),
    ],
)
def test_a_mistake_is_named_with_its_place(expression: str, position: int, problem: str) -> None:
    with pytest.raises(SubscriptionIllegal) as caught:
        compile_expression(expression)
    text = str(caught.value)
    assert f"character {position}: " in text
    assert problem in text
    assert ">>>" in text
    assert "; expected " in text
    assert "\n" not in text
    assert caught.value.code == 23


def test_the_place_of_a_mistake_in_a_long_text_is_shown_with_its_surroundings() -> None:
    long = " AND ".join(f"name{i} = {i}" for i in range(200)) + " AND AND x = 1 AND y = 2 AND z = 3"
    with pytest.raises(
        SubscriptionIllegal, match=r"in: \.\.\..* AND >>>AND x = 1.*\.\.\."
    ) as caught:
        compile_expression(long)
    assert len(str(caught.value)) < 300


@pytest.mark.parametrize(
    "expression",
    [
        "(" * 5000 + "a" + ")" * 5000,
        "NOT " * 5000 + "a",
        "- " * 5000 + "1 = 1",
        "a" + " = a" * 5000,
        "a" + " IS NULL" * 3000,
        "a" + " CONTAINS 'x'" * 2000,
        "(" * 50 + "a" + (" = b" * 50 + ")") * 50,
    ],
)
def test_deep_nesting_is_refused_instead_of_ending_the_stack(expression: str) -> None:
    with pytest.raises(SubscriptionIllegal, match=f"nested too deeply.*at most {MAX_DEPTH} levels"):
        compile_expression(expression)


def test_nesting_up_to_the_limit_works() -> None:
    depth = MAX_DEPTH - 1
    assert matches("(" * depth + "a = 1" + ")" * depth, a="1")


def test_long_chains_are_fine() -> None:
    ors = " OR ".join(f"a = {number}" for number in range(2000))
    assert matches(ors, a="1999")
    assert not matches(ors, a="2000")
    listed = ",".join(f"'{number}'" for number in range(4000))
    assert matches(f"a IN ({listed})", a="3999")


def test_a_filter_tells_how_much_work_it_is() -> None:
    one = compile_expression("a = 1").steps
    assert compile_expression(" OR ".join(["a = 1"] * 500)).steps >= 500 * one
    listed = ",".join(f"'{number}'" for number in range(4000))
    assert compile_expression(f"a IN ({listed})").steps <= one


def test_a_text_that_is_too_long_is_refused_before_it_is_read() -> None:
    with pytest.raises(SubscriptionIllegal, match=f"at most {MAX_EXPRESSION_CHARACTERS}"):
        compile_expression("a" * (MAX_EXPRESSION_CHARACTERS + 1))


words = st.sampled_from(
    ["a", "b", "1", "2.5", "'x'", "''", "TRUE", "NULL", "AND", "OR", "NOT", "IN", "IS", "BETWEEN"]
    * 2
    + ["CONTAINS", "STARTSWITH", "(", ")", ",", "=", "<>", "<", ">=", "-", "+", "--", "/*", "*/"]
)


@given(
    st.one_of(st.text(max_size=60), st.lists(words, max_size=14).map(" ".join)),
    st.dictionaries(st.sampled_from("ab"), st.text(max_size=5)),
)
def test_any_text_is_a_filter_or_refused(text: str, properties: dict[str, str]) -> None:
    try:
        compiled = compile_expression(text)
    except SubscriptionIllegal as error:
        assert "SQL92 filter" in error.what  # noqa: PT017
        return
    assert compiled(properties) in (True, False)


atoms = st.sampled_from(["TRUE", "FALSE", "NULL"])
trees = st.recursive(
    atoms,
    lambda inner: st.one_of(
        st.tuples(inner, st.sampled_from(["AND", "OR"]), inner).map(lambda t: f"({' '.join(t)})"),
        inner.map(lambda part: f"(NOT {part})"),
    ),
    max_leaves=12,
)


def kleene(expression: str) -> bool | None:
    """The truth of a fully parenthesised expression, by SQL's tables."""
    words = expression.replace("(", "( ").replace(")", " )").split()

    def value() -> bool | None:
        word = words.pop(0)
        if word != "(":
            return {"TRUE": True, "FALSE": False, "NULL": None}[word]
        if words[0] == "NOT":
            words.pop(0)
            inner = value()
            words.pop(0)
            return None if inner is None else not inner
        left, joint, right = value(), words.pop(0), value()
        words.pop(0)
        deciding = joint == "OR"
        if deciding in (left, right):
            return deciding
        return None if None in (left, right) else not deciding

    return value()


@given(trees)
def test_logic_follows_the_tables_of_three_values(expression: str) -> None:
    assert matches(expression) is (kleene(expression) is True)
    assert matches(f"{expression} IS NULL") is (kleene(expression) is None)
