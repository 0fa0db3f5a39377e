"""Long lists: filtered, sorted and cut into pages by parameters of the address."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Generic, TypeVar

from penstock.console.shapes import PageOfRows
from penstock.console.visit import Visit

_T = TypeVar("_T")
_Json = TypeVar("_Json")

ROWS = 50
MAX_ROWS = 200


@dataclass(frozen=True, slots=True)
class Listing(Generic[_T]):
    """A page of a list, and what is needed to show the others."""

    rows: Sequence[_T]
    total: int
    matching: int
    page: int
    pages: int
    sort: str
    filter: str

    @property
    def first(self) -> int:
        return (self.page - 1) * (len(self.rows) or 1) + 1

    def as_json(self, row: Callable[[_T], _Json]) -> PageOfRows[_Json]:
        """The same for the API."""
        return {
            "rows": [row(one) for one in self.rows],
            "total": self.total,
            "matching": self.matching,
            "page": self.page,
            "pages": self.pages,
        }


def listed(
    visit: Visit,
    rows: Sequence[_T],
    *,
    name: Callable[[_T], str],
    sorts: Mapping[str, Callable[[_T], Any]],
    default: str,
) -> Listing[_T]:
    """The rows that the address asks for; ``-lag`` sorts by lag, largest first."""
    text = visit.query("q").lower()
    found = [row for row in rows if text in name(row).lower()] if text else list(rows)
    sort = visit.query("sort", default)
    key = sorts.get(sort.removeprefix("-"))
    if key is None:
        sort = default
        key = sorts[default.removeprefix("-")]
    found.sort(key=name)
    found.sort(key=key, reverse=sort.startswith("-"))
    size = visit.count("n", ROWS, most=MAX_ROWS)
    pages = max(1, -(-len(found) // size))
    page = min(visit.count("page", 1, most=1_000_000), pages)
    return Listing(
        found[(page - 1) * size : page * size], len(rows), len(found), page, pages, sort, text
    )
