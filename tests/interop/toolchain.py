"""Java, Maven and Apache RocketMQ's jars: located, downloaded once, compiled against once.

No repository is named here: Maven uses its configured one (Maven Central by default). All output
goes to ``build/interop``, which git ignores.
"""

from __future__ import annotations

import hashlib
import shutil
import subprocess
from dataclasses import dataclass
from pathlib import Path

HERE = Path(__file__).resolve().parent
PROJECT = HERE.parent.parent
BUILD = PROJECT / "build" / "interop"
VERSIONS = ("5.5.0", "4.9.7")

# Netty and the store's mapped files use JDK internals, which Java 17 allows only with options.
JAVA_OPENS = (
    "--add-opens=java.base/java.lang=ALL-UNNAMED",
    "--add-opens=java.base/java.util=ALL-UNNAMED",
    "--add-opens=java.base/java.nio=ALL-UNNAMED",
    "--add-opens=java.base/sun.nio.ch=ALL-UNNAMED",
    "--add-opens=java.base/jdk.internal.ref=ALL-UNNAMED",
    "--add-exports=java.base/jdk.internal.ref=ALL-UNNAMED",
    "--add-exports=java.base/sun.nio.ch=ALL-UNNAMED",
)


# A scenario's JVM lives for a minute: it starts faster with the simple collector and compiler.
QUICK = ("-XX:+UseSerialGC", "-XX:TieredStopAtLevel=1")
FAST = ("-XX:+UseG1GC",)


class Unavailable(Exception):
    """A required tool is missing on this machine; the text says what is skipped and why."""


@dataclass(frozen=True, slots=True)
class Toolchain:
    """One RocketMQ version, ready to run: its jars, and our classes compiled against its client."""

    version: str
    java: str
    jars: str
    classes: Path

    def command(
        self, main: str, *arguments: str, heap: str, options: tuple[str, ...] = QUICK
    ) -> list[str]:
        """The command line that runs ``main`` from the jars or from our classes."""
        home = BUILD / self.version / "home"
        home.mkdir(parents=True, exist_ok=True)
        return [
            self.java,
            f"-Xmx{heap}",
            *JAVA_OPENS,
            f"-Duser.home={home}",
            *options,
            "-cp",
            f"{self.classes}:{self.jars}",
            main,
            *arguments,
        ]


def prepare(version: str, sources: Path = HERE / "java") -> Toolchain:
    """Download the jars of ``version`` and compile ``sources``, or raise `Unavailable`."""
    tools = {name: find_tool(name) for name in ("java", "javac", "mvn")}
    jars = _class_path(tools["mvn"], version)
    classes = _compile(tools["javac"], version, jars, sources)
    return Toolchain(version=version, java=tools["java"], jars=jars, classes=classes)


def prepare_proxy(version: str) -> Toolchain:
    """Download the jars of Apache's proxy, which hold its broker, or raise `Unavailable`."""
    java, maven = find_tool("java"), find_tool("mvn")
    jars = _class_path(maven, version, "proxy")
    classes = BUILD / version / "no-classes"
    classes.mkdir(exist_ok=True)
    return Toolchain(version=version, java=java, jars=jars, classes=classes)


def find_tool(name: str) -> str:
    """A program on the path, or `Unavailable`."""
    found = shutil.which(name)
    if found is None:
        raise Unavailable(f"{name} is not on PATH; a JDK (17 or newer) and Maven are needed")
    return found


def _class_path(maven: str, version: str, profile: str = "broker") -> str:
    """The jars of a profile of the pom."""
    cache = BUILD / version / f"classpath-{profile}.txt"
    if cache.is_file():
        jars = cache.read_text()
        if all(Path(jar).is_file() for jar in jars.split(":")):
            return jars
    cache.parent.mkdir(parents=True, exist_ok=True)
    run = subprocess.run(
        [
            maven,
            "-q",
            "-B",
            "-Dstyle.color=never",
            f"--file={HERE / 'pom.xml'}",
            f"-P{profile}",
            f"-Drocketmq={version}",
            "dependency:build-classpath",
            f"-Dmdep.outputFile={cache}",
        ],
        capture_output=True,
        text=True,
        check=False,
    )
    if run.returncode != 0:
        lines = [line for line in run.stdout.splitlines() if "ERROR" in line]
        reason = lines[0] if lines else f"mvn ended with {run.returncode}"
        raise Unavailable(
            f"Maven could not fetch Apache RocketMQ {version}"
            f" (is Maven Central reachable?): {reason}"
        )
    return cache.read_text()


def _compile(javac: str, version: str, jars: str, sources: Path) -> Path:
    files = sorted(sources.glob("*.java"))
    digest = hashlib.sha256(jars.encode())
    for file in files:
        digest.update(file.name.encode() + file.read_bytes())
    classes = BUILD / version / f"classes-{sources.parent.name}-{digest.hexdigest()[:12]}"
    done = classes / ".done"
    if done.exists():
        return classes
    classes.mkdir(parents=True, exist_ok=True)
    run = subprocess.run(
        [javac, "-nowarn", "-encoding", "UTF-8", "-d", str(classes), "-cp", jars, *map(str, files)],
        capture_output=True,
        text=True,
        check=False,
    )
    if run.returncode != 0:
        raise RuntimeError(f"javac against RocketMQ {version} failed:\n{run.stderr}")
    done.touch()
    return classes
