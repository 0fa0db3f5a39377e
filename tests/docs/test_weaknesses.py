"""The page about weaknesses of the original is complete, and the tests it names exist."""

from __future__ import annotations

import ast
import functools
import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
PAGE = ROOT / "docs/weaknesses.md"
SECTION = re.compile(r"^## (W\d+)\. .+?\n(.*?)(?=^## |\Z)", re.DOTALL | re.MULTILINE)
NAMED = re.compile(r"^- `(tests/[\w/]+\.py)::(test_\w+)`$", re.MULTILINE)
SECTIONS: dict[str, str] = dict(SECTION.findall(PAGE.read_text(encoding="utf-8")))
DECISION = re.compile(r"^\*\*Here: (avoided|reduced|kept)\.?\*\*", re.MULTILINE)


@functools.cache
def functions(path: Path) -> frozenset[str]:
    tree = ast.parse(path.read_text(encoding="utf-8"))
    return frozenset(
        node.name for node in tree.body if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)
    )


def test_every_weakness_has_its_section() -> None:
    assert list(SECTIONS) == [f"W{number}" for number in range(1, 30)]


@pytest.mark.parametrize("section", SECTIONS)
def test_a_section_says_what_was_decided_and_names_tests_that_exist(section: str) -> None:
    original, decision, shown_by = re.split(r"^\*\*Here|^Shown by:", SECTIONS[section], flags=re.M)
    assert original.strip().startswith("**In RocketMQ:**")
    assert DECISION.search("**Here" + decision)
    named = NAMED.findall(shown_by)
    assert len(named) == len(shown_by.strip().splitlines()) >= 1
    for path, test in named:
        assert test in functions(ROOT / path), f"{path} has no {test}"
