"""Pages link to pages that exist, and name files and make targets that exist."""

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
# `tests/...` and `docs/...` are below the root, `client/blocking.py` and so on below the package.
FILE = re.compile(r"`((?:tests|docs|tools|benchmarks)/[\w./-]+|[a-z_]+/[\w/]+\.py)`")
MADE = {
    "broker-settings.md",
    "cli.md",
    "client-options.md",
    "decisions.md",
    "spark-options.md",
}
"""Pages that are generated when the documentation is built."""
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


ARCHITECTURE = (ROOT / "docs/architecture.md").read_text(encoding="utf-8")
PACKAGE = ROOT / "src/penstock"


def section(title: str) -> str:
    return ARCHITECTURE.split(f"\n## {title}\n")[1].split("\n## ")[0]


def test_the_map_of_the_code_has_every_package_and_names_files_that_exist() -> None:
    rows = dict(re.findall(r"^\| `([\w/]+)` \|.*\| (`[^|]+`) \|$", section("Packages"), re.M))
    packages = {
        path.parent.relative_to(PACKAGE).as_posix() for path in PACKAGE.glob("*/**/__init__.py")
    }
    assert set(rows) == packages
    for package, files in rows.items():
        for file in re.findall(r"`([\w.]+)`", files):
            assert (PACKAGE / package / file).is_file(), f"{package}/{file}"


def test_each_typical_change_names_a_place_that_exists() -> None:
    rows = re.findall(r"^\| (an? .+?) \| (.+?) \| (.+?) \|$", section("Typical changes"), re.M)
    assert len(rows) == 13
    for change, place, also in rows:
        named = re.findall(r"`([\w./-]+(?:/|\.py|\.md|\.yml))`", f"{place} {also}")
        assert named, change
        for path in named:
            assert (ROOT / path).exists() or (PACKAGE / path).exists(), f"{change}: {path}"


def test_the_glossary_defines_each_term_once() -> None:
    terms = re.findall(r"^\| ([^|]+) \| [^|]+ \|$", section("Glossary"), re.M)[1:]
    words = [word.strip() for term in terms for word in term.split(",")]
    assert len(words) == len(set(words)) > 50


def test_every_decision_has_a_number_of_its_own() -> None:
    for record in sorted((ROOT / "docs/decisions").glob("*.md")):
        number = int(record.name[:4])
        assert record.read_text(encoding="utf-8").startswith(f"# {number}. "), record.name
    numbers = [int(record.name[:4]) for record in (ROOT / "docs/decisions").glob("*.md")]
    assert sorted(numbers) == list(range(1, len(numbers) + 1))
