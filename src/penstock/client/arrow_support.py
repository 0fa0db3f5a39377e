"""Loads what needs pyarrow, when it is first used: clients work without it."""

from __future__ import annotations

from collections.abc import Callable, Coroutine, Sequence
from typing import Any

from penstock.errors import MissingPackage
from penstock.model import StoredMessage


def arrow_sends() -> Callable[..., Coroutine[Any, Any, int]]:
    """The function that sends the rows of a table."""
    try:
        from penstock.client.producing.arrow_sends import send_table
    except ModuleNotFoundError as error:
        raise _missing(error) from error
    return send_table


def arrow_rows() -> Callable[[Sequence[StoredMessage]], Any]:
    """The function that makes a record batch of messages."""
    try:
        from penstock.columnar.message_rows import to_batch
    except ModuleNotFoundError as error:
        raise _missing(error) from error
    return to_batch


def _missing(error: ModuleNotFoundError) -> MissingPackage:
    return MissingPackage(
        f"Arrow tables need {error.name}, which is not installed",
        hint="pip install 'penstock[arrow]'",
    )
