"""The documentation builds without warnings, and its reference shows every public name."""

from __future__ import annotations

import dataclasses
import functools
import inspect
import os
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType

import pytest

import penstock
import penstock.admin
import penstock.aio
import penstock.otel
import penstock.spark
from penstock import errors

ROOT = Path(__file__).parents[2]
# What only the client itself calls.
NOT_FOR_USERS = {"penstock.StoredMessage.append_properties"}
PUBLIC = {"admin", "arrow", "errors", "otel", "spark", "testing"}
INTERNAL = sorted({path.parent.name for path in ROOT.glob("src/penstock/*/__init__.py")} - PUBLIC)
SPARK_NAMES = [
    name
    for name in dir(penstock.spark)
    if getattr(getattr(penstock.spark, name), "__module__", "").startswith("penstock.spark.")
]


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    directory = tmp_path_factory.mktemp("site")
    done = subprocess.run(
        [sys.executable, "-m", "mkdocs", "build", "--quiet", "--site-dir", str(directory)],
        cwd=ROOT,
        env={**os.environ, "NO_MKDOCS_2_WARNING": "1"},
        capture_output=True,
        text=True,
        timeout=280,
        check=False,
    )
    # A missing page or a link that leads nowhere is a warning, and warnings are errors.
    assert (done.returncode, done.stderr) == (0, "")
    return directory


@pytest.fixture(scope="module")
def shown(site: Path) -> set[str]:
    """The dotted names that the reference has an entry for."""
    return {
        name
        for page in (site / "reference").glob("*.html")
        for name in re.findall(r'id="(penstock[\w.]*)"', page.read_text(encoding="utf-8"))
    }


@pytest.mark.timeout(300)
def test_the_command_line_is_in_the_reference(site: Path) -> None:
    commands = (site / "reference/cli.html").read_text(encoding="utf-8")
    for command in (
        "penstock up",
        "penstock topic create",
        "penstock dlq redrive",
        "penstock doctor",
    ):
        assert f">{command}<" in commands


def test_the_list_of_decisions_has_every_record(site: Path) -> None:
    listed = (site / "decisions.html").read_text(encoding="utf-8")
    for record in (ROOT / "docs/decisions").glob("*.md"):
        assert f'href="decisions/{record.stem}.html"' in listed


def names(module: ModuleType, public: list[str]) -> Iterator[str]:
    """The public names of a module and the public members of its classes."""
    for name in public:
        value = getattr(module, name)
        if isinstance(value, ModuleType | str):
            continue
        home = module.__name__
        if inspect.isclass(value) and value.__module__ == errors.__name__:
            home = errors.__name__
        elif value is getattr(penstock, name, None):
            home = "penstock"
        yield f"{home}.{name}"
        if inspect.isclass(value) and home != errors.__name__:
            for member in members(value):
                yield f"{home}.{name}.{member}"


def members(kind: type) -> Iterator[str]:
    """Public methods, properties and fields that our own classes define."""
    ours = [cls for cls in kind.__mro__ if cls.__module__.startswith("penstock")]
    if issubclass(kind, errors.PenstockError):
        ours = [cls for cls in ours if cls.__module__ != errors.__name__]
    for cls in ours:
        for member, value in vars(cls).items():
            described = callable(value) or isinstance(
                value, property | classmethod | functools.cached_property
            )
            if described and not member.startswith("_"):
                yield member
        if issubclass(cls, tuple):
            yield from getattr(cls, "_fields", ())
        elif dataclasses.is_dataclass(cls):
            yield from (field.name for field in dataclasses.fields(cls))


@pytest.mark.parametrize(
    ("module", "public"),
    [
        (penstock, penstock.__all__),
        (penstock.aio, penstock.aio.__all__),
        (penstock.admin, penstock.admin.__all__),
        (penstock.otel, penstock.otel.__all__),
        (penstock.spark, SPARK_NAMES),
    ],
    ids=["penstock", "aio", "admin", "otel", "spark"],
)
def test_every_public_name_is_in_the_reference(
    shown: set[str], module: ModuleType, public: list[str]
) -> None:
    assert sorted(set(names(module, public)) - shown - NOT_FOR_USERS) == []


def test_the_reference_shows_inherited_methods_fields_errors_and_fixtures(shown: set[str]) -> None:
    assert {
        "penstock.PushConsumer.on",
        "penstock.StoredMessage.body",
        "penstock.StoredMessage.reconsume_times",
        "penstock.RetryLater",
        "penstock.DeadLetter",
        "penstock.Receipt.queue_offset",
        "penstock.embedded",
        "penstock.errors.TopicNotFound",
        "penstock.testing.plugin.penstock",
    } <= shown


def test_blocking_methods_show_the_signatures_of_their_coroutines(site: Path) -> None:
    text = (site / "reference/admin.html").read_text(encoding="utf-8")
    entry = text.split('id="penstock.Admin.create_topic"')[1].split('id="penstock.Admin.')[0]
    assert "read_queues" in re.sub(r"<[^>]+>", "", entry)


def test_the_reference_names_no_internal_path(site: Path) -> None:
    for page in (site / "reference").glob("*.html"):
        text = re.sub(r"<[^>]+>", "", page.read_text(encoding="utf-8"))
        found = re.findall(rf"penstock\.(?:{'|'.join(INTERNAL)})\.\w[\w.]*|\b_[A-Z]\w+\[", text)
        assert found == [], page.name


def test_fields_of_a_message_have_their_type_and_meaning(site: Path) -> None:
    text = re.sub(r"<[^>]+>", "", (site / "reference/client.html").read_text(encoding="utf-8"))
    assert "reconsume_times: int" in text
    assert "How many attempts failed before this one" in text
