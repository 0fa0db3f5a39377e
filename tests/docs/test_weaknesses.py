"""The page about known weaknesses is complete, and the tests it names exist."""

from __future__ import annotations

import ast
import functools
import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
PAGE = ROOT / "docs/weaknesses.md"
ROW = re.compile(r"^\| (W\d+) \| (.+?) \| (.+?) \| (.+?) \|$", re.MULTILINE)
NAMED = re.compile(r"`(tests/[\w/]+\.py)::(test_\w+)`")
ROWS = {row[0]: row[1:] for row in ROW.findall(PAGE.read_text(encoding="utf-8"))}
WORDS = ("**avoided**", "**reduced**", "**kept**", "**absent**")


@functools.cache
def functions(path: Path) -> frozenset[str]:
    tree = ast.parse(path.read_text(encoding="utf-8"))
    return frozenset(
        node.name for node in tree.body if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)
    )


def test_every_weakness_has_its_row() -> None:
    assert list(ROWS) == [f"W{number}" for number in range(1, 30)]


@pytest.mark.parametrize("row", ROWS)
def test_a_row_says_what_was_decided_and_names_tests_that_exist(row: str) -> None:
    _, here, shown_by = ROWS[row]
    assert here.startswith(WORDS)
    named = NAMED.findall(shown_by)
    assert len(named) == shown_by.count("`") // 2 >= 1
    for path, test in named:
        assert test in functions(ROOT / path), f"{path} has no {test}"
