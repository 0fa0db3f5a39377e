"""Virtual environments with penstock and only the packages it requires.

Nothing is downloaded: the packages a wheel requires are taken from the environment the tests run
in, each alone. So an import of something that is not declared fails here, as it would for a user.
"""

from __future__ import annotations

import os
import re
import subprocess
import sys
import venv
from collections.abc import Iterable
from importlib import metadata
from pathlib import Path

from packaging.requirements import Requirement

_NOT_IMPORTABLE = ("..", "__pycache__")


def closure(requirements: Iterable[str], extras: Iterable[str] = ()) -> dict[str, Requirement]:
    """The requirements and everything they need, by normalised name."""
    found: dict[str, Requirement] = {}
    waiting = [(text, frozenset(extras)) for text in requirements]
    while waiting:
        text, wanted = waiting.pop()
        requirement = Requirement(text)
        marker = requirement.marker
        if marker is not None and not any(
            marker.evaluate({"extra": extra}) for extra in (*wanted, "")
        ):
            continue
        name = re.sub(r"[-_.]+", "-", requirement.name).lower()
        if name not in found:
            found[name] = requirement
            needs = metadata.requires(requirement.name) or ()
            waiting += [(need, frozenset(requirement.extras)) for need in needs]
    return found


class Environment:
    """A virtual environment in a directory."""

    def __init__(self, directory: Path) -> None:
        # Uses the pip of the tests with another target: creating a second one is slow.
        venv.create(directory, with_pip=False)
        self.directory = directory
        self.python = directory / "bin" / "python"
        self.packages = next((directory / "lib").glob("python*")) / "site-packages"

    def lend(self, distributions: Iterable[str]) -> None:
        """Make packages of the tests' own environment importable, without copying them."""
        for name in distributions:
            distribution = metadata.distribution(name)
            for part in {file.parts[0] for file in distribution.files or ()}:
                if part not in _NOT_IMPORTABLE:
                    source = Path(str(distribution.locate_file(part)))
                    target = self.packages / part
                    if not target.exists():
                        target.symlink_to(source)

    def pip_install(self, *arguments: str | Path) -> None:
        """Install without a package index."""
        offline = ["--no-index", "--no-deps", "--no-compile", "--disable-pip-version-check", "-q"]
        pip = [sys.executable, "-m", "pip", "--python", str(self.python), "install"]
        self._run(*pip, *offline, *arguments)

    def run(self, *arguments: str | Path) -> str:
        """Run its Python and return the output."""
        return self._run(self.python, *arguments)

    def run_command(self, name: str, *arguments: str) -> str:
        """Run one of the installed commands."""
        return self._run(self.directory / "bin" / name, *arguments)

    def _run(self, *command: str | Path) -> str:
        # Hide this source tree and the user's own settings.
        clean = {"PATH": os.defpath, "HOME": str(self.directory), "LANG": "C.UTF-8"}
        done = subprocess.run(
            [str(part) for part in command],
            cwd=self.directory,
            env=clean,
            capture_output=True,
            text=True,
            timeout=100,
            check=False,
        )
        assert done.returncode == 0, done.stdout + done.stderr
        return done.stdout
