"""What earlier runs found, so that a run can be resumed.

A result counts as long as the entry of the list, the file it changes and its tests are the same.
It is one line of JSON, appended at once.
"""

from __future__ import annotations

import hashlib
import json
from dataclasses import asdict
from pathlib import Path

from tools.mutants.catalogue import ROOT, Mutant
from tools.mutants.trial import UNCLEAR, Verdict


class Results:
    """Verdicts by fingerprint, in a file."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._known: dict[str, Verdict] = {}
        if path.exists():
            for line in path.read_text().splitlines():
                entry = json.loads(line)
                key = entry.pop("fingerprint")
                self._known[key] = Verdict(**entry)

    def get(self, fingerprint: str) -> Verdict | None:
        """The verdict on this, if there is one that can be relied on."""
        verdict = self._known.get(fingerprint)
        return None if verdict is None or verdict.outcome == UNCLEAR else verdict

    def add(self, fingerprint: str, verdict: Verdict) -> None:
        """Keep a verdict."""
        self._known[fingerprint] = verdict
        self._path.parent.mkdir(parents=True, exist_ok=True)
        with self._path.open("a") as file:
            file.write(json.dumps({"fingerprint": fingerprint, **asdict(verdict)}) + "\n")

    def forget(self) -> None:
        """Begin anew."""
        self._known.clear()
        self._path.unlink(missing_ok=True)


def fingerprint(mutant: Mutant, root: Path = ROOT) -> str:
    """Changes with the mistake, with the file it is made in and with its tests."""
    entry = json.dumps([mutant.file, mutant.before, mutant.after, mutant.tests])
    digest = hashlib.sha256(entry.encode())
    for path in [mutant.path, *mutant.test_files()]:
        digest.update(_content(root / path))
    return digest.hexdigest()


def baseline_fingerprint(tests: tuple[str, ...], root: Path = ROOT) -> str:
    """For the same tests without a mistake."""
    digest = hashlib.sha256(json.dumps(["without a mistake", tests]).encode())
    for test in tests:
        digest.update(_content(root / test.partition("::")[0]))
    return digest.hexdigest()


def _content(path: Path) -> bytes:
    files = sorted(path.rglob("*.py")) if path.is_dir() else [path]
    return b"".join(file.read_bytes() for file in files)
