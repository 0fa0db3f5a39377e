"""The names a user imports, loaded when they are first used."""

from __future__ import annotations

import subprocess
import sys

import penstock


def test_every_public_name_is_there() -> None:
    for name in penstock.__all__:
        assert getattr(penstock, name) is not None, name
    assert set(penstock.__all__) <= set(dir(penstock))


def test_the_async_names_need_no_import_of_their_own() -> None:
    code = "import penstock; print(penstock.aio.Producer.__module__)"
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, timeout=60, check=True
    )
    assert done.stdout.strip() == "penstock.client.nonblocking"


def test_importing_penstock_loads_nothing_of_it() -> None:
    code = "import sys, penstock; print(*(n for n in sys.modules if n.startswith('penstock')))"
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, timeout=60, check=True
    )
    assert done.stdout.split() == ["penstock"]
