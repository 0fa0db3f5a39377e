"""Apache's clients of the 5.x series, which speak gRPC: Python and Java.

Both run the same scenarios, each in topics of its own. The Python client is installed into an
environment of its own by pip, the Java client is fetched by Maven.
"""

from __future__ import annotations

import hashlib
import shutil
import subprocess
import sys
import time
import venv
from collections.abc import Iterator, Sequence

from tests.interop.programs import not_run, run_program
from tests.interop.results import Cell
from tests.interop.servers import Cluster, penstock_command
from tests.interop.toolchain import BUILD, HERE, PROJECT, Unavailable

SECTION = "gRPC clients of 5.x"
SOURCES = HERE / "grpc"
INSTALL_SECONDS = 600
PYTHON_VERSION = "5.1.2"
JAVA_VERSION = "5.2.0"
JAVA_MAIN = "GrpcScenarios"
TYPES = {"PUSH": "NORMAL", "RETRY": "NORMAL"}
KINDS = ("NORMAL", "PUSH", "RETRY", "FIFO", "DELAY", "TRANSACTION")
SCENARIOS = (
    "grpc_send_and_simple_consumer",
    "grpc_push",
    "grpc_push_retries",
    "grpc_fifo",
    "grpc_delay_and_recall",
    "grpc_transaction",
)


def prepare_python() -> list[str]:
    """Install the Python client; the command that runs scenarios, or `Unavailable`."""
    lock = PROJECT / "requirements" / "peers.lock"
    digest = hashlib.sha256(lock.read_bytes() + sys.version.encode()).hexdigest()[:12]
    place = BUILD / f"grpc-python-{digest}"
    python = place / "bin" / "python"
    if not (place / ".done").exists():
        venv.create(place, with_pip=True, clear=True)
        _run([str(python), "-m", "pip", "install", "--quiet", "--disable-pip-version-check",
              "--require-hashes", "--no-deps", "-r", str(lock)], "pip")  # fmt: skip
        (place / ".done").touch()
    return [str(python), str(SOURCES / "scenarios.py")]


def prepare_java() -> list[str]:
    """Fetch the Java client and compile the scenarios; the command, or `Unavailable`."""
    tools: dict[str, str] = {}
    for name in ("java", "javac", "mvn"):
        found = shutil.which(name)
        if found is None:
            raise Unavailable(f"{name} is not on PATH; a JDK and Maven are needed")
        tools[name] = found
    source = SOURCES / "java" / f"{JAVA_MAIN}.java"
    pom = SOURCES / "java" / "pom.xml"
    digest = hashlib.sha256(source.read_bytes() + pom.read_bytes()).hexdigest()[:12]
    place = BUILD / f"grpc-java-{digest}"
    place.mkdir(parents=True, exist_ok=True)
    jars = place / "classpath.txt"
    if not (place / ".done").exists():
        _run([tools["mvn"], "-q", "-B", f"--file={pom}", "dependency:build-classpath",
              f"-Dmdep.outputFile={jars}"], "Maven")  # fmt: skip
        _run([tools["javac"], "-nowarn", "-encoding", "UTF-8", "-d", str(place), "-cp",
              jars.read_text(), str(source)], "javac")  # fmt: skip
        (place / ".done").touch()
    # The client keeps its logs in the home of the user.
    home = f"-Duser.home={place / 'home'}"
    return [tools["java"], home, "-cp", f"{jars.read_text()}:{place}", JAVA_MAIN]


def _run(command: Sequence[str], what: str) -> None:
    run = subprocess.run(
        list(command), capture_output=True, text=True, check=False, timeout=INSTALL_SECONDS
    )
    if run.returncode != 0:
        reason = " ".join((run.stderr or run.stdout).split())[:300]
        raise Unavailable(f"{what} failed: {reason}")


def _prepare_cluster(cluster: Cluster, suffix: str) -> None:
    """Create what clients of the API cannot create."""
    where = ["--namesrv", cluster.namesrv]
    for kind in KINDS:
        type_ = TYPES.get(kind, kind)
        _penstock("topic", "create", f"{kind}_{suffix}", "--type", type_, *where)
    _penstock("group", "create", f"fifo_{suffix}", "--orderly", *where)
    _penstock("broker", "config", "set", "recallMessageEnable=true", "--yes", *where)


def _penstock(*arguments: str) -> None:
    subprocess.run([penstock_command(), *arguments], check=True, capture_output=True, timeout=60)


def run_grpc(cluster: Cluster, names: Sequence[str]) -> Iterator[Cell]:
    """Run ``names`` with each client; yield a cell as each ends, or for each a skip."""
    clients = (
        (f"python {PYTHON_VERSION}", "python", prepare_python),
        (f"java {JAVA_VERSION}", "java", prepare_java),
    )
    for column, language, prepare in clients:
        if cluster.grpc is None:
            yield from not_run(names, SECTION, column, "the broker serves no gRPC")
            continue
        try:
            program = prepare()
        except Unavailable as missing:
            yield from not_run(names, SECTION, column, missing)
            continue
        suffix = f"{language}-{int(time.time()):x}"
        _prepare_cluster(cluster, suffix)
        command = [*program, cluster.grpc, suffix, *names]
        yield from run_program(command, names, SECTION, column, env={"PYTHONPATH": ""})
