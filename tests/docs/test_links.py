"""Pages link to pages that exist, and name files and commands that exist."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
PAGES = sorted(
    [
        *ROOT.glob("*.md"),
        *(ROOT / "docs").rglob("*.md"),
        ROOT / "benchmarks/NOTES.md",
        ROOT / "examples/README.md",
    ]
)
LINK = re.compile(r"\]\(([^)#:]+)(?:#[\w-]*)?\)")
# `tests/...` and `docs/...` as they are, `client/pulling.py` and the like below the package.
FILE = re.compile(r"`((?:tests|docs|tools|benchmarks)/[\w./-]+|[a-z_]+/[\w/]+\.py)`")
MADE = {"cli.md", "broker-settings.md"}
"""Pages of the reference that are made when the documentation is built."""
TARGET = re.compile(r"`make (\w+)")
TARGETS = set(re.findall(r"^(\w+):", (ROOT / "Makefile").read_text(encoding="utf-8"), re.MULTILINE))


def named(page: Path, pattern: re.Pattern[str]) -> list[str]:
    return pattern.findall(page.read_text(encoding="utf-8"))


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_what_a_page_points_to_exists(page: Path) -> None:
    missing = [
        link
        for link in named(page, LINK)
        if not (page.parent / link).exists() and Path(link).name not in MADE
    ]
    for file in named(page, FILE):
        if not (ROOT / file).exists() and not (ROOT / "src/penstock" / file).exists():
            missing.append(file)
    missing += [f"make {target}" for target in named(page, TARGET) if target not in TARGETS]
    assert missing == []


def test_the_map_of_the_code_has_every_package() -> None:
    text = (ROOT / "docs/architecture.md").read_text(encoding="utf-8")
    rows = set(re.findall(r"^\| `(\w+)` \|", text, re.MULTILINE))
    packages = {
        path.parent.name
        for path in (ROOT / "src/penstock").glob("*/__init__.py")
        if len(list(path.parent.glob("*.py"))) > 1
    }
    assert packages <= rows
    for package, files in re.findall(r"^\| `(\w+)` \|.*\| (`[^|]+`) \|$", text, re.MULTILINE):
        for file in re.findall(r"`([\w.]+)`", files):
            assert (ROOT / "src/penstock" / package / file).exists(), f"{package}/{file}"
