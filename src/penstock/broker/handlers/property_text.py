"""Property text of sends, read without parsing it: for the fast paths of messages with a rule."""

from __future__ import annotations

import re
from typing import Final

from penstock.model.properties import END_MARK, VALUE_MARK

_TEXT: Final = f"[^{END_MARK}{VALUE_MARK}]+"
_keys: Final = re.compile(f"({_TEXT}){VALUE_MARK}{_TEXT}{END_MARK}").findall


def enclose(text: str) -> str:
    """The text with a separator before its first key and one behind its last value."""
    return f"{END_MARK}{text}" if text[-1:] == END_MARK else f"{END_MARK}{text}{END_MARK}"


def is_regular(enclosed: str) -> bool:
    """Whether each entry has one key and one value, and no key is given twice.

    The plain path changes such a text, or refuses it.
    """
    keys = _keys(enclosed)
    return len(keys) == enclosed.count(VALUE_MARK) == enclosed.count(END_MARK) - 1 and len(
        set(keys)
    ) == len(keys)


def value_behind(enclosed: str, mark: str) -> str:
    """The last value of a key, which ``mark`` has between separators; empty without one."""
    start = enclosed.rfind(mark)
    if start < 0:
        return ""
    start += len(mark)
    return enclosed[start : enclosed.index(END_MARK, start)]
