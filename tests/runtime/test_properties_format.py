"""Java's properties format."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock.errors import ConfigError
from penstock.runtime.properties_format import format_properties, parse_properties

BROKER_CONF = """
# A licence text
! also a comment
brokerClusterName = DefaultCluster
brokerName=broker-a
brokerId: 0
deleteWhen 04
fileReservedTime\t=\t48
namesrvAddr=10.0.0.1:9876;\\
            10.0.0.2:9876
storePathRootDir=/data/rocketmq/store
empty=
alone
"""


def values(text: str) -> dict[str, str]:
    return parse_properties(text).values


def test_a_broker_conf_is_read() -> None:
    assert values(BROKER_CONF) == {
        "brokerClusterName": "DefaultCluster",
        "brokerName": "broker-a",
        "brokerId": "0",
        "deleteWhen": "04",
        "fileReservedTime": "48",
        "namesrvAddr": "10.0.0.1:9876;10.0.0.2:9876",
        "storePathRootDir": "/data/rocketmq/store",
        "empty": "",
        "alone": "",
    }


@pytest.mark.parametrize(
    ("text", "key", "value"),
    [
        ("a=b", "a", "b"),
        ("a:b", "a", "b"),
        ("a b", "a", "b"),
        ("a  =  b", "a", "b"),
        ("a = b ", "a", "b "),
        ("  a=b", "a", "b"),
        ("a==b", "a", "=b"),
        ("a=:b", "a", ":b"),
        ("a = = b", "a", "= b"),
        ("a\\=b=c", "a=b", "c"),
        ("a\\:b c", "a:b", "c"),
        ("a\\ b=c", "a b", "c"),
        ("a=b#c", "a", "b#c"),
        ("a=\\#c", "a", "#c"),
        ("a=\\tb\\nc", "a", "\tb\nc"),
        ("a=\\u00e9\\u20AC", "a", "é€"),
        ("a=\\ud83d\\ude00", "a", "😀"),
        ("a=caf\u00e9", "a", "café"),
        ("a=C:\\\\temp", "a", "C:\\temp"),
        ("a=\\q", "a", "q"),
        ("=b", "", "b"),
        ("a=b\\", "a", "b"),
        ("a=b\\\\", "a", "b\\"),
        ("a=b\\\r\n  c", "a", "bc"),
        ("a=b\\\n# not a comment", "a", "b# not a comment"),
        ("\ufeffa=b", "a", "b"),
        ("a\\", "a", ""),
    ],
)
def test_lines_mean_what_java_says(text: str, key: str, value: str) -> None:
    assert values(text) == {key: value}


@pytest.mark.parametrize("text", ["", "\n\n", "# only\n! comments\n", "   ", "\\", "\\\n\\\n"])
def test_nothing_is_read_from_nothing(text: str) -> None:
    assert values(text) == {}


def test_a_comment_is_not_continued() -> None:
    assert values("# comment \\\na=b") == {"a": "b"}


@pytest.mark.parametrize("text", ["a=\\u12", "a=\\u12g4", "x=1\na=\\u"])
def test_a_broken_escape_is_an_error_with_its_line(text: str) -> None:
    with pytest.raises(ConfigError, match=r"broker\.conf line \d+: .*four hex digits"):
        parse_properties(text, source="broker.conf")


def test_duplicates_are_reported_once_and_the_last_one_counts() -> None:
    properties = parse_properties("a=1\nb=2\na=3\na=4\n")
    assert properties.values == {"a": "4", "b": "2"}
    assert properties.duplicates == ("a",)


@given(st.dictionaries(st.text(max_size=20), st.text(max_size=40), max_size=8))
def test_what_is_written_is_read_back(pairs: dict[str, str]) -> None:
    pairs = {key: value for key, value in pairs.items() if key.isprintable()}
    assert values(format_properties(pairs)) == pairs


@given(st.text())
def test_any_text_gives_pairs_or_a_config_error(text: str) -> None:
    try:
        parsed = parse_properties(text)
    except ConfigError:
        return
    assert all(isinstance(value, str) for value in parsed.values.values())
