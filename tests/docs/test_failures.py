"""The failure catalogue quotes messages that are in the code, and has every class of error."""

from __future__ import annotations

import ast
import functools
import re
import shlex
from pathlib import Path
from typing import Any

import pytest

from penstock import errors
from penstock.cli.main import app
from penstock.doctor import TITLES

ROOT = Path(__file__).parents[2]
PAGE = (ROOT / "docs/failures.md").read_text(encoding="utf-8")
ROW = re.compile(r"^\| `(?P<first>[^`]+)` \| (?P<second>.*?) \| (?P<third>.*) \|$", re.MULTILINE)
COMMAND = re.compile(r"`(penstock [^`]+)`")
VALUE = "..."


def rows(section: str) -> list[re.Match[str]]:
    """The rows of the tables below a heading of the second level."""
    text = PAGE.split(f"\n## {section}\n")[1].split("\n## ")[0]
    return list(ROW.finditer(text))


@functools.cache
def sentences() -> frozenset[str]:
    """Every text in the code, with `...` for what is filled in."""
    found: set[str] = set()
    for path in (ROOT / "src/penstock").rglob("*.py"):
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if isinstance(node, ast.Constant) and isinstance(node.value, str):
                found.add(node.value)
            elif isinstance(node, ast.JoinedStr):
                parts = [p.value if isinstance(p, ast.Constant) else VALUE for p in node.values]
                found.add("".join(map(str, parts)))
    return frozenset(found)


@pytest.mark.parametrize("row", rows("Errors"), ids=lambda row: row["first"][:60])
def test_what_the_catalogue_quotes_is_what_the_code_says(row: re.Match[str]) -> None:
    assert row["first"].replace("\\|", "|") in sentences()
    assert row["second"].strip()
    assert row["third"].strip()


def test_every_row_is_looked_at() -> None:
    cells = re.findall(r"^\| `", PAGE, re.MULTILINE)
    assert len(cells) == len(rows("Errors")) + len(rows("Nothing arrives")) > 120


def test_every_cause_the_doctor_knows_is_in_the_catalogue() -> None:
    listed = {row["first"]: row["second"] for row in rows("Nothing arrives")}
    assert listed == TITLES


def test_every_kind_of_error_is_in_the_catalogue() -> None:
    def below(kind: type[errors.PenstockError]) -> set[str]:
        return {kind.__name__} | {name for sub in kind.__subclasses__() for name in below(sub)}

    ours = {
        name
        for name in below(errors.PenstockError)
        if getattr(errors, name, None) is not None and name != "PenstockError"
    }
    headings = re.findall(r"^### (.*)$", PAGE, re.MULTILINE)
    named = {name for heading in headings for name in re.findall(r"`(\w+)`", heading)}
    assert named == ours


@pytest.mark.parametrize("text", sorted(set(COMMAND.findall(PAGE))))
def test_commands_in_the_catalogue_can_be_typed(text: str) -> None:
    command: Any = app
    _, *words = shlex.split(text)
    with command.make_context("penstock", list(words)) as context:
        while hasattr(command, "get_command") and words:
            command = command.get_command(context, words.pop(0))
            assert command is not None, text
        command.make_context(text, words, parent=context)
