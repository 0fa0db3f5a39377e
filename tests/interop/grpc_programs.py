"""Apache's clients of the 5.x series, fetched from their registries and built with our scenarios.

Each language has a program ``ENDPOINT SUFFIX NAME...`` that prints a JSON line for each scenario.
``INTEROP_ACCESS_KEY``, ``INTEROP_SECRET_KEY`` and ``INTEROP_TLS=1`` change how it connects.
"""

from __future__ import annotations

import hashlib
import shutil
import subprocess
import sys
import venv
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Final

from tests.interop.toolchain import BUILD, HERE, PROJECT, Unavailable

SOURCES: Final = HERE / "grpc"
INSTALL_SECONDS: Final = 900
NO_PUSH: Final = "this version of the client has no push consumer"


@dataclass(frozen=True, slots=True)
class GrpcClient:
    """A client of one language."""

    language: str
    version: str
    prepare: Callable[[], list[str]]
    """The command that runs scenarios, or `Unavailable`."""
    lacks: Mapping[str, str] = field(default_factory=dict)
    """Scenarios that the client cannot run, and why."""

    @property
    def column(self) -> str:
        return f"{self.language} {self.version}"


def python_program(script: Path) -> list[str]:
    """The command that runs a script with the Python client, or `Unavailable`."""
    lock = PROJECT / "requirements" / "peers.lock"
    digest = hashlib.sha256(lock.read_bytes() + sys.version.encode()).hexdigest()[:12]
    place = BUILD / f"grpc-python-{digest}"
    python = place / "bin" / "python"
    if not (place / ".done").exists():
        venv.create(place, with_pip=True, clear=True)
        _run([str(python), "-m", "pip", "install", "--quiet", "--disable-pip-version-check",
              "--require-hashes", "--no-deps", "-r", str(lock)], "pip")  # fmt: skip
        (place / ".done").touch()
    return [str(python), str(script)]


def java_program(source: Path, *options: str) -> list[str]:
    """The command that runs a class with the Java client, or `Unavailable`."""
    java, javac, maven = (_find(name, "a JDK and Maven") for name in ("java", "javac", "mvn"))
    pom = SOURCES / "java" / "pom.xml"
    place = _place("java", (source, pom))
    jars = place / "classpath.txt"
    if not (place / ".done").exists():
        _run([maven, "-q", "-B", f"--file={pom}", "dependency:build-classpath",
              f"-Dmdep.outputFile={jars}"], "Maven")  # fmt: skip
        _run([javac, "-nowarn", "-encoding", "UTF-8", "-d", str(place), "-cp",
              jars.read_text(), str(source)], "javac")  # fmt: skip
        (place / ".done").touch()
    # The client keeps its logs in the home of the user.
    home = f"-Duser.home={place / 'home'}"
    return [java, home, *options, "-cp", f"{jars.read_text()}:{place}", source.stem]


def _prepare_node() -> list[str]:
    node, npm = (_find(name, "Node 18 or newer with npm") for name in ("node", "npm"))
    files = sorted((SOURCES / "node").glob("*.js*"))
    place = _place("node", files)
    if not (place / ".done").exists():
        for file in files:
            shutil.copy(file, place)
        _run([npm, "install", "--no-audit", "--no-fund", "--ignore-scripts", "--no-package-lock"],
             "npm", place)  # fmt: skip
        (place / ".done").touch()
    return [node, str(place / "scenarios.js")]


def _prepare_go() -> list[str]:
    go = _find("go", "Go 1.25 or newer")
    source = SOURCES / "go"
    place = _place("go", [source / name for name in ("main.go", "go.mod", "go.sum")])
    program = place / "scenarios"
    if not program.exists():
        _run([go, "build", "-buildvcs=false", "-o", str(program), "."], "go build", source)
    return [str(program)]


def _prepare_rust() -> list[str]:
    cargo = _find("cargo", "a Rust toolchain")
    source = SOURCES / "rust"
    place = _place("rust", [source / name for name in ("src/main.rs", "Cargo.toml", "Cargo.lock")])
    program = place / "penstock-interop-grpc"
    if not program.exists():
        # The target directory is kept, so that a changed scenario builds in seconds.
        target = BUILD / "grpc-rust-target"
        manifest = f"--manifest-path={source / 'Cargo.toml'}"
        _run([cargo, "build", "--quiet", "--locked", manifest, f"--target-dir={target}"], "cargo")
        shutil.copy(target / "debug" / program.name, program)
    return [str(program)]


CLIENTS: Final = (
    GrpcClient("python", "5.1.2", partial(python_program, SOURCES / "scenarios.py")),
    GrpcClient("java", "5.2.0", partial(java_program, SOURCES / "java" / "GrpcScenarios.java")),
    GrpcClient("node", "1.0.8", _prepare_node),
    GrpcClient("go", "5.1.4", _prepare_go),
    GrpcClient(
        "rust",
        "5.0.0",
        _prepare_rust,
        {
            "grpc_push": NO_PUSH,
            "grpc_push_retries": NO_PUSH,
            "grpc_signed_over_tls": "this version of the client does not use TLS",
        },
    ),
)


def _find(name: str, needed: str) -> str:
    found = shutil.which(name)
    if found is None:
        raise Unavailable(f"{name} is not on PATH; {needed} is needed")
    return found


def _place(language: str, files: Sequence[Path]) -> Path:
    """The directory of what is built from these files."""
    digest = hashlib.sha256(b"".join(file.name.encode() + file.read_bytes() for file in files))
    place = BUILD / f"grpc-{language}-{digest.hexdigest()[:12]}"
    place.mkdir(parents=True, exist_ok=True)
    return place


def _run(command: Sequence[str], what: str, cwd: Path | None = None) -> None:
    run = subprocess.run(
        list(command), cwd=cwd, capture_output=True, text=True, check=False, timeout=INSTALL_SECONDS
    )
    if run.returncode != 0:
        reason = " ".join((run.stderr or run.stdout).split())[:300]
        raise Unavailable(f"{what} failed: {reason}")
