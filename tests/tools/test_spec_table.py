"""The table of the behaviour checklist."""

from __future__ import annotations

import importlib.util
import sys
from pathlib import Path
from types import ModuleType

import pytest

TOOL = Path(__file__).parents[2] / "tools/spec_table.py"


@pytest.fixture(scope="module")
def tool() -> ModuleType:
    spec = importlib.util.spec_from_file_location("spec_table", TOOL)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules["spec_table"] = module
    spec.loader.exec_module(module)
    return module


def test_each_checklist_is_complete_and_has_names(tool: ModuleType) -> None:
    rows = tool.read_rows(tool.ROWS_FILE.read_text())
    for letter, count in (("S", 150), ("X", 44), ("Y", 41), ("O", 15)):
        numbers = [row for row in rows if row[0] == letter]
        assert numbers == [f"{letter}{number}" for number in range(1, count + 1)]
    assert len(set(rows.values())) == len(rows)


@pytest.mark.parametrize("text", ["S1", "S1 a\nS1 b"])
def test_a_row_needs_a_name_and_comes_once(tool: ModuleType, text: str) -> None:
    with pytest.raises(ValueError, match="not a new row"):
        tool.read_rows(text)


def test_a_row_is_as_good_as_its_worst_test(tool: ModuleType) -> None:
    outcomes = tool.Outcomes(
        tests={"S1": {"a", "b"}, "S2": {"b", "c"}, "S3": {"d"}, "S9": {"a"}},
        passed={"a", "b", "c"},
        failed={"c"},
    )
    assert [outcomes.verdict(f"S{n}") for n in (1, 2, 3, 4)] == [
        "pass",
        "FAIL",
        "not run",
        "no test",
    ]
    lines = list(tool.table({"S1": "one", "S2": "two", "S4": "four"}, outcomes))
    assert lines[0].split() == ["S1", "pass", "one", "2", "a", "(+1)"]
    assert "2 of 3 rows have tests" in lines
    assert "without one: S4" in lines
    assert "no such rows: S3 S9" in lines
