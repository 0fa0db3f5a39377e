"""`penstock.Admin` and `penstock.aio.Admin` have the same actions with the same signatures."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from typing import Any

import pytest

from penstock import Admin as BlockingAdmin
from penstock.admin.admin import Admin as AwaitingAdmin
from penstock.admin.cluster_requests import ClusterRequests


def actions(kind: type) -> dict[str, Callable[..., Any]]:
    """The public methods of an administrator that ask a cluster for something."""
    return {
        name: method
        for name, method in inspect.getmembers(kind, inspect.isfunction)
        if not name.startswith("_") and not hasattr(ClusterRequests, name)
    }


def test_both_faces_have_the_same_actions() -> None:
    assert actions(BlockingAdmin).keys() == actions(AwaitingAdmin).keys()
    assert len(actions(BlockingAdmin)) > 30


@pytest.mark.parametrize("name", actions(BlockingAdmin))
def test_both_faces_have_the_same_signature_and_documentation(name: str) -> None:
    blocking, awaiting = actions(BlockingAdmin)[name], actions(AwaitingAdmin)[name]
    assert inspect.signature(blocking) == inspect.signature(awaiting)
    assert inspect.getdoc(blocking)
    if name != "close":
        assert inspect.getdoc(blocking) == inspect.getdoc(awaiting)
    assert inspect.iscoroutinefunction(awaiting)
    assert not inspect.iscoroutinefunction(blocking)
