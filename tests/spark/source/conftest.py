"""What the tests of the path source share."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from tests.spark.source.stores import Row, Writer, scan


@pytest.fixture
def read() -> Callable[..., list[Row]]:
    return scan


@pytest.fixture
def writer(tmp_path: Path) -> Iterator[Callable[[str], Writer]]:
    made: list[Writer] = []

    def make(name: str = "broker-a") -> Writer:
        made.append(Writer(tmp_path / "data" / name))
        return made[-1]

    yield make
    for one in made:
        one.store.abandon()
