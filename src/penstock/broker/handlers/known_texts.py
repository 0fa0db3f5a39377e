"""Property texts that were read before, recognised by what is around their unique id.

The messages of one producer mostly differ in the id alone, so what was found out about the text of
one holds for the others, too: that it is regular, which properties it has, and what is stored
behind it. A text that is not recognised is read by the caller, which adds what it found.
"""

from __future__ import annotations

from typing import Final, Generic, NamedTuple, TypeVar

from penstock.model.names import Property
from penstock.model.properties import END_MARK, VALUE_MARK

_UNIQUE_MARK: Final = END_MARK + Property.UNIQUE_KEY + VALUE_MARK
_MARK_LENGTH: Final = len(_UNIQUE_MARK)
_new_tuple: Final = tuple.__new__
_MAX_TEXTS: Final = 512
"""Bounds memory: values may differ from message to message."""
_MAX_LENGTH: Final = 1024
"""A longer text is not kept."""

_Found = TypeVar("_Found")


class CutText(NamedTuple):
    """A text without the id."""

    before: str
    unique_id: str
    behind: str


def cut_id(enclosed: str) -> CutText | None:
    """Cut a text that is enclosed in separators at its last id; None without one.

    An id that is empty or not ASCII, or holds a separator, is none.
    """
    start = enclosed.rfind(_UNIQUE_MARK)
    if start < 0:
        return None
    start += _MARK_LENGTH
    end = enclosed.index(END_MARK, start)
    unique_id = enclosed[start:end]
    if not unique_id or VALUE_MARK in unique_id or not unique_id.isascii():
        return None
    return _new_tuple(CutText, (enclosed[:start], unique_id, enclosed[end:]))


class KnownTexts(Generic[_Found]):
    """What is known of texts, by what is around their id."""

    __slots__ = ("_found", "get")

    def __init__(self) -> None:
        self._found: dict[str, _Found] = {}
        self.get = self._found.get
        """What was added for a text, by what is before and behind its id; None: nothing."""

    def add(self, text: CutText, found: _Found) -> None:
        """Keep what was found out about a regular text, in which no key is given twice.

        So the id has one place only, and both sides of it together tell the text.
        """
        if len(self._found) >= _MAX_TEXTS:
            self._found.clear()
        around = text.before + text.behind
        if len(around) <= _MAX_LENGTH:
            self._found[around] = found
