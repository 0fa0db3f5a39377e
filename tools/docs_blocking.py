"""Extension of griffe for the reference: blocking methods that are derived from coroutines.

``topics = blocking(admin.Admin.topics)`` is an attribute for a reader of the source. In the
reference it is a method with the signature and the docstring of the coroutine.
"""

from __future__ import annotations

import copy
from typing import Any

import griffe

BLOCKING = "admin.blocking.Admin"
COROUTINES = "admin.admin.Admin"


class BlockingMethods(griffe.Extension):
    """Replaces the attributes of the blocking class by the methods they stand for."""

    def on_package(self, *, pkg: griffe.Module, **kwargs: Any) -> None:
        """Called when a package and all its modules are loaded."""
        if pkg.path != "penstock":
            return
        blocking, coroutines = pkg[BLOCKING], pkg[COROUTINES].all_members
        for name, member in list(blocking.members.items()):
            if member.is_attribute and str(member.value).startswith("blocking("):
                source = coroutines[name]
                method = copy.copy(source.final_target if source.is_alias else source)
                method.labels = method.labels - {"async"}
                blocking.set_member(name, method)
