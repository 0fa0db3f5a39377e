"""``--repair FILE:FUNCTION``: a user's function, found and made fit to travel to executors."""

from __future__ import annotations

import importlib
import importlib.util
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

from penstock.errors import InvalidArgument

if TYPE_CHECKING:
    from collections.abc import Callable

    from penstock.spark.pipelines.redrive_task import Repair

_REPAIRS = "penstock_repairs"


def load_repair(name: str) -> Repair:
    """The function a user named, from a file or from a module that can be imported."""
    home, colon, attribute = name.rpartition(":")
    if not colon or not home or not attribute:
        raise InvalidArgument(f"--repair {name!r}", expected="FILE.py:FUNCTION or MODULE:FUNCTION")
    try:
        if home.endswith(".py"):
            # Its own module name: a user's json.py must not hide Python's.
            spec = importlib.util.spec_from_file_location(_REPAIRS, Path(home).resolve())
            if spec is None or spec.loader is None:
                raise ImportError(f"{home} is not a Python file")
            module = importlib.util.module_from_spec(spec)
            sys.modules[_REPAIRS] = module
            spec.loader.exec_module(module)
            _ship(module)
        else:
            sys.path.insert(0, "")
            module = importlib.import_module(home)
    except Exception as error:
        raise InvalidArgument(
            f"--repair {name!r} cannot be loaded: {type(error).__name__}: {error}",
            expected="FILE.py:FUNCTION or MODULE:FUNCTION",
        ) from error
    function: Callable[..., Any] | None = getattr(module, attribute, None)
    if not callable(function):
        raise InvalidArgument(
            f"--repair {name!r}: {home} has no function {attribute!r}",
            expected="a function of one dead letter",
        )
    return function


def _ship(module: Any) -> None:
    """Have functions of a file travel by value: executors cannot import it."""
    from pyspark import cloudpickle

    untyped: Any = cloudpickle
    untyped.register_pickle_by_value(module)
