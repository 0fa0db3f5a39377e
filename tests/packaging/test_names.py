"""The names a user imports, loaded when they are first used."""

from __future__ import annotations

import ast
import subprocess
import sys
from pathlib import Path
from types import ModuleType

import pytest

import penstock
from penstock import aio


def imported_for_type_checkers(module: ModuleType) -> dict[str, tuple[str, str]]:
    """The imports below ``if TYPE_CHECKING``: by public name, the module and the name there."""
    tree = ast.parse(Path(str(module.__file__)).read_text(encoding="utf-8"))
    [block] = [node for node in tree.body if isinstance(node, ast.If)]
    return {
        name.asname or name.name: (str(line.module), name.name)
        for line in block.body
        if isinstance(line, ast.ImportFrom)
        for name in line.names
    }


@pytest.mark.parametrize("module", [penstock, aio], ids=["penstock", "aio"])
def test_type_checkers_see_the_names_that_there_are(module: ModuleType) -> None:
    seen = imported_for_type_checkers(module)
    assert sorted(seen) == sorted(set(module.__all__) - {"__version__"})
    # In alphabetical order, so that two changes do not add a name twice.
    names = [name for name in module.__all__ if name != "__version__"]
    assert names == sorted(names, key=lambda name: (name[0].islower(), name))
    for name, (home, original) in seen.items():
        value = getattr(module, name)
        if isinstance(value, ModuleType):
            assert value.__name__ == f"{home}.{original}"
        else:
            assert value is getattr(sys.modules[home], original), name


def test_both_faces_have_the_same_names() -> None:
    assert set(aio.__all__) == set(penstock.__all__) - {"aio", "__version__"}


def test_a_name_has_one_home() -> None:
    homes = [name for names in penstock._NAMES.values() for name in names]
    assert sorted(homes) == sorted(set(penstock.__all__) - {"aio", "__version__"})


def test_every_public_name_is_there() -> None:
    for name in penstock.__all__:
        assert getattr(penstock, name) is not None, name
    assert set(penstock.__all__) <= set(dir(penstock))


def test_the_async_names_need_no_import_of_their_own() -> None:
    code = "import penstock; print(penstock.aio.Producer.__module__)"
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, timeout=60, check=True
    )
    assert done.stdout.strip() == "penstock.client.nonblocking.producer"


def test_importing_penstock_loads_nothing_of_it() -> None:
    code = "import sys, penstock; print(*(n for n in sys.modules if n.startswith('penstock')))"
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, timeout=60, check=True
    )
    assert done.stdout.split() == ["penstock"]
