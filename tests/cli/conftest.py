"""A cluster that the commands speak to, and a home without contexts."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from penstock.testing.embedded import Embedded, embedded


@pytest.fixture(autouse=True)
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """No contexts and no variables, so a command depends on the test alone."""
    config = tmp_path / "config"
    monkeypatch.setenv("XDG_CONFIG_HOME", str(config))
    for name in ("NAMESRV_ADDR", "PENSTOCK_ACCESS_KEY", "PENSTOCK_SECRET_KEY", "PENSTOCK_TLS"):
        monkeypatch.delenv(name, raising=False)
    return config


@pytest.fixture(scope="module")
def running_cluster() -> Iterator[Embedded]:
    """One cluster for the tests of a module: each uses topics and groups of its own."""
    with embedded() as running:
        yield running


@pytest.fixture
def cluster(running_cluster: Embedded, monkeypatch: pytest.MonkeyPatch) -> Embedded:
    """A cluster that commands find by themselves."""
    monkeypatch.setenv("NAMESRV_ADDR", running_cluster.namesrv)
    return running_cluster
