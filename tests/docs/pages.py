"""Extracts programs, commands and their expected output from the documentation."""

from __future__ import annotations

import re
from pathlib import Path
from typing import NamedTuple

ROOT = Path(__file__).parents[2]
_FENCE = re.compile(r"^```(\w+)([^\n]*)\n(.*?)^```$", re.DOTALL | re.MULTILINE)
_TITLE = re.compile(r'title="([^"]+)"')
_OF_EXTRAS = re.compile(r" (?:grpc|console)=\S+")
"""The ready line shows what the installed extras serve; README and tutorial have none."""
_VARIABLE = re.compile(r"[0-9A-F]{16,}|\d[\d.,:T-]*|(?<=data=)\S+")


class Program(NamedTuple):
    """A block of Python and its expected output, if the page shows one."""

    page: str
    number: int
    code: str
    printed: str | None


class Command(NamedTuple):
    """A line after a dollar sign and its expected output."""

    line: str
    printed: str


def pages() -> list[Path]:
    """The README in each language, and all pages except the decision records."""
    found = [*sorted(ROOT.glob("README*.md")), *sorted((ROOT / "docs").rglob("*.md"))]
    return [page for page in found if "decisions" not in page.parts]


def programs(page: Path) -> list[Program]:
    """The Python blocks of a page; each is a complete program.

    Blocks with a file name are run by the commands of the page instead.
    """
    found: list[Program] = []
    blocks = _FENCE.findall(page.read_text(encoding="utf-8"))
    for at, (language, more, content) in enumerate(blocks):
        if language == "python" and not _TITLE.search(more):
            following = blocks[at + 1] if at + 1 < len(blocks) else ("", "", "")
            printed = following[2] if following[0] == "text" else None
            found.append(Program(name_of(page), len(found) + 1, content, printed))
    return found


def plain_programs() -> list[Program]:
    """Programs that need only the package itself."""
    return [program for program in _all_programs() if "penstock.spark" not in program.code]


def spark_programs() -> list[Program]:
    """Programs that start Spark."""
    return [program for program in _all_programs() if "penstock.spark" in program.code]


def _all_programs() -> list[Program]:
    return [program for page in pages() for program in programs(page)]


def commands(page: Path) -> list[Command]:
    """The commands of a page, in order."""
    found: list[Command] = []
    for language, _, content in _FENCE.findall(page.read_text(encoding="utf-8")):
        if language != "console":
            continue
        for part in re.split(r"^\$ ", content, flags=re.MULTILINE)[1:]:
            line, _, printed = part.partition("\n")
            while line.endswith("\\"):
                rest, _, printed = printed.partition("\n")
                line = line[:-1] + rest.strip()
            found.append(Command(line.split("  #")[0].strip(), printed.rstrip("\n")))
    return found


def files(page: Path) -> dict[str, str]:
    """The blocks that the reader saves as files, by file name."""
    return {
        title[1]: content
        for _, more, content in _FENCE.findall(page.read_text(encoding="utf-8"))
        if (title := _TITLE.search(more))
    }


def name_of(page: Path) -> str:
    """A page's path within the project."""
    return page.relative_to(ROOT).as_posix()


def comparable(text: str) -> list[str]:
    """Lines without numbers, ids, times, directories and spacing, which differ between runs."""
    text = _OF_EXTRAS.sub("", text)
    lines = [" ".join(_VARIABLE.sub("N", line).split()) for line in text.splitlines()]
    return [line for line in lines if line.strip("─━ ┃│┡┩╇└┘┴├┤┼")]
