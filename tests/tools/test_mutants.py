"""The tool for mutants: its list fits the sources, and it tells what tests notice."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from tools.mutants import __main__ as command
from tools.mutants.catalogue import ROOT, BadList, Mutant, load, problems
from tools.mutants.results import Results, fingerprint
from tools.mutants.trial import NOTICED, SURVIVED, TIME_UP, UNCLEAR, Verdict, run_tests, try_mutant

PACKAGES = {
    "admin", "arrow", "auth", "broker", "cli", "client", "columnar", "console", "doctor",
    "nameserver", "otel", "protocol", "proxy", "remoting", "runtime", "spark", "store", "testing",
}  # fmt: skip
MOST_EQUIVALENT = 0.05

WRONG = Mutant(
    "off-by-one",
    "counting.py",
    "return number + 1",
    "return number + 2",
    ("tests/test_counting.py",),
    "one is skipped",
)


@pytest.fixture
def project(tmp_path: Path) -> Path:
    """A project of one file and one test."""
    source, test = tmp_path / "src" / "penstock", tmp_path / "tests"
    source.mkdir(parents=True)
    test.mkdir()
    (source / "testing").mkdir()
    # pytest loads it, because the package is installed.
    for name in ("__init__.py", "testing/__init__.py", "testing/plugin.py"):
        (source / name).touch()
    (source / "counting.py").write_text(
        "def following(number: int) -> int:\n    return number + 1\n\n\n"
        "def previous(number: int) -> int:\n    return number - 1\n"
    )
    (test / "test_counting.py").write_text(
        "from penstock.counting import following\n\n\n"
        "def test_following() -> None:\n    assert following(1) == 2\n"
    )
    return tmp_path


def test_every_entry_of_the_list_can_be_applied() -> None:
    assert problems(load()) == []


def test_the_list_covers_every_package() -> None:
    mutants = load()
    assert {mutant.package for mutant in mutants} >= PACKAGES
    assert len([mutant for mutant in mutants if not mutant.equivalent]) >= 150
    assert sum(bool(mutant.equivalent) for mutant in mutants) <= MOST_EQUIVALENT * len(mutants)


def test_every_entry_is_a_program() -> None:
    for mutant in load():
        compile(mutant.applied((ROOT / mutant.path).read_text()), mutant.name, "exec")


def test_an_entry_that_does_not_fit_is_named(project: Path) -> None:
    gone = Mutant("gone", "counting.py", "nothing", "x", ("tests/test_gone.py",), "a note")
    assert problems([WRONG], project) == []
    assert problems([WRONG, WRONG], project) == ["off-by-one: there are two of this name"]
    assert problems([gone], project) == [
        "gone: counting.py has the text 0 times, expected once",
        "gone: there is no tests/test_gone.py",
    ]


def test_an_entry_without_its_fields_is_named(tmp_path: Path) -> None:
    (tmp_path / "a.toml").write_text('[[mutant]]\nname = "half"\ntests = []\n')
    with pytest.raises(BadList, match=r"a\.toml, half"):
        load(tmp_path)


def test_a_mistake_is_noticed_and_the_copy_is_right_again(project: Path) -> None:
    before = (project / WRONG.path).read_text()
    assert run_tests(project, WRONG.tests).outcome == SURVIVED
    assert try_mutant(project, WRONG).outcome == NOTICED
    assert (project / WRONG.path).read_text() == before
    assert run_tests(project, WRONG.tests).outcome == SURVIVED


def test_a_mistake_where_no_test_looks_survives(project: Path) -> None:
    unseen = Mutant("unseen", "counting.py", "number - 1", "number", WRONG.tests, "a note")
    assert try_mutant(project, unseen).outcome == SURVIVED


def test_tests_that_do_not_end_are_stopped(project: Path) -> None:
    endless = Mutant(
        "endless", "counting.py", "return number + 1", "while True: pass", WRONG.tests, "a note"
    )
    verdict = try_mutant(project, endless, limit_seconds=5)
    assert verdict.outcome == TIME_UP
    assert verdict.is_noticed


def test_a_mistake_that_cannot_be_imported_proves_nothing(project: Path) -> None:
    broken = Mutant("broken", "counting.py", "def following", "def followed", WRONG.tests, "a note")
    assert try_mutant(project, broken).outcome == UNCLEAR


def test_results_count_while_file_and_tests_are_the_same(project: Path, tmp_path: Path) -> None:
    path = tmp_path / "results.jsonl"
    first = fingerprint(WRONG, project)
    Results(path).add(first, Verdict(NOTICED, 1.5))
    again = Results(path)
    assert again.get(first) == Verdict(NOTICED, 1.5)
    (project / "tests" / "test_counting.py").write_text("")
    assert fingerprint(WRONG, project) != first
    again.forget()
    assert Results(path).get(first) is None


def test_a_run_prints_what_was_not_noticed(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    entry = load()[0]
    results = Results(tmp_path / "known.jsonl")
    results.add(fingerprint(entry), Verdict(SURVIVED, 1.0))
    arguments = ["--only", entry.name, "--results", str(tmp_path / "known.jsonl")]
    assert command.main(arguments) == 1
    printed = capsys.readouterr().out
    assert f"not noticed: {entry.name} in {entry.file}" in printed
    assert "0 of 1 mistakes noticed (0.0%)" in printed
    assert command.main([*arguments, "--json"]) == 1
    assert json.loads(capsys.readouterr().out)["mutants"][0]["outcome"] == SURVIVED
