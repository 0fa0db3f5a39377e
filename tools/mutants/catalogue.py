"""The list of mistakes: one file of `lists` for each package, read and checked.

[[mutant]]
name = "commit-forgets-the-lock"    what it is called, once in all lists
file = "broker/tables/offsets.py"   below src/penstock
before = '''...'''                  the text to replace; it occurs exactly once in the file
after = '''...'''                   the mistake
tests = ["tests/broker/..."]        the files or tests that should notice
note = "..."                        what a user would suffer
equivalent = "..."                  only if no test can notice: why the change makes no difference
"""

from __future__ import annotations

import tomllib
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Final

ROOT: Final = Path(__file__).parents[2]
LISTS: Final = Path(__file__).parent / "lists"
SOURCES: Final = Path("src", "penstock")


class BadList(Exception):
    """An entry that cannot be applied."""


@dataclass(frozen=True, slots=True)
class Mutant:
    """One mistake."""

    name: str
    file: str
    before: str
    after: str
    tests: tuple[str, ...]
    note: str
    equivalent: str = ""

    @property
    def package(self) -> str:
        """The first directory of the file."""
        return self.file.partition("/")[0]

    @property
    def path(self) -> Path:
        """The file, below the root of the project."""
        return SOURCES / self.file

    def test_files(self) -> list[Path]:
        """The files or directories of the tests, below the root of the project."""
        return [Path(test.partition("::")[0]) for test in self.tests]

    def applied(self, text: str) -> str:
        """``text``, the content of the file, with the mistake in it."""
        return text.replace(self.before, self.after, 1)

    def as_dict(self) -> dict[str, object]:
        """For JSON."""
        return asdict(self)


def load(directory: Path = LISTS) -> list[Mutant]:
    """All entries of all lists, in order of their files."""
    mutants: list[Mutant] = []
    for path in sorted(directory.glob("*.toml")):
        for entry in tomllib.loads(path.read_text())["mutant"]:
            try:
                mutants.append(Mutant(**{**entry, "tests": tuple(entry["tests"])}))
            except (KeyError, TypeError) as error:
                raise BadList(f"{path.name}, {entry.get('name')}: {error}") from error
    return mutants


def problems(mutants: list[Mutant], root: Path = ROOT) -> list[str]:
    """What keeps entries from being applied; empty if all is well."""
    found: list[str] = []
    seen: set[str] = set()
    for mutant in mutants:
        if mutant.name in seen:
            found.append(f"{mutant.name}: there are two of this name")
        seen.add(mutant.name)
        path = root / mutant.path
        count = path.read_text().count(mutant.before) if path.is_file() else 0
        if not mutant.before or count != 1:
            found.append(f"{mutant.name}: {mutant.file} has the text {count} times, expected once")
        if mutant.before == mutant.after:
            found.append(f"{mutant.name}: it changes nothing")
        if not mutant.tests or not mutant.note:
            found.append(f"{mutant.name}: it needs tests and a note")
        found += [
            f"{mutant.name}: there is no {test}"
            for test in mutant.test_files()
            if not (root / test).exists()
        ]
    return found
