"""The results: one cell per row and column, shown as a matrix and saved as JSON."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

PASS, FAIL, SKIP, NOT_APPLICABLE, LIMIT = "pass", "fail", "skip", "n/a", "limit"


@dataclass(frozen=True, slots=True)
class Cell:
    """One real run, or the reason why there was none."""

    section: str
    row: str
    column: str
    status: str
    evidence: str
    ms: int = 0


def matrix(cells: Sequence[Cell]) -> str:
    """A table of cells per section, then the evidence of every cell that did not pass."""
    lines: list[str] = []
    for section in dict.fromkeys(cell.section for cell in cells):
        mine = [cell for cell in cells if cell.section == section]
        rows = list(dict.fromkeys(cell.row for cell in mine))
        columns = list(dict.fromkeys(cell.column for cell in mine))
        table = {(cell.row, cell.column): cell for cell in mine}
        first = max(len(section), *(len(row) for row in rows))
        widths = [max(len(column), 14) for column in columns]
        lines.append("")
        lines.append(_line(section, columns, first, widths))
        lines.append(_line("-" * first, ["-" * width for width in widths], first, widths))
        lines += [
            _line(row, [_text(table.get((row, column))) for column in columns], first, widths)
            for row in rows
        ]
    shown = [cell for cell in cells if cell.status != PASS]
    if shown:
        lines.append("")
    lines += [
        f"{cell.status}: {cell.row} [{cell.column}]: {shorten(cell.evidence)}" for cell in shown
    ]
    return "\n".join(lines)


def summary(cells: Sequence[Cell]) -> str:
    """The number of cells with each status, on one line."""
    counts = {
        status: sum(cell.status == status for cell in cells)
        for status in (PASS, FAIL, LIMIT, NOT_APPLICABLE, SKIP)
    }
    return ", ".join(f"{count} {status}" for status, count in counts.items() if count)


def save(path: Path, target: str, cells: Sequence[Cell]) -> None:
    """Save the cells for the compatibility page and for comparisons."""
    path.parent.mkdir(parents=True, exist_ok=True)
    content = {"target": target, "cells": [asdict(cell) for cell in cells]}
    path.write_text(json.dumps(content, indent=1) + "\n")


def shorten(text: str, limit: int = 400) -> str:
    """One line of at most ``limit`` characters."""
    flat = " ".join(text.split())
    return flat if len(flat) <= limit else flat[:limit] + " ..."


def _text(cell: Cell | None) -> str:
    if cell is None:
        return "-"
    return f"{cell.status} {cell.ms / 1000:.1f}s" if cell.ms else cell.status


def _line(first: str, rest: Sequence[str], width: int, widths: Sequence[int]) -> str:
    return "  ".join(
        [first.ljust(width), *(text.ljust(w) for text, w in zip(rest, widths, strict=True))]
    ).rstrip()
