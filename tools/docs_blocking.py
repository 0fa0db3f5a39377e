"""Extension of griffe for the reference: shows members as users see them.

``topics = blocking(admin.Admin.topics)`` is an attribute for a reader of the source. In the
reference it is a method with the signature and the docstring of the coroutine. A field of a stored
message, ``flag: _OfHead[int]``, is read as an ``int``.
"""

from __future__ import annotations

import copy
from typing import Any

import griffe

BLOCKING = "admin.blocking.Admin"
COROUTINES = "admin.admin.Admin"
MESSAGE = "model.message.StoredMessage"
LAZY = "_OfHead"


class BlockingMethods(griffe.Extension):
    """Replaces the attributes of the blocking class by the methods they stand for."""

    def on_package(self, *, pkg: griffe.Module, **kwargs: Any) -> None:
        """Called when a package and all its modules are loaded."""
        if pkg.path != "penstock":
            return
        for member in pkg[MESSAGE].members.values():
            annotation = getattr(member, "annotation", None)
            if isinstance(annotation, griffe.ExprSubscript) and str(annotation.left) == LAZY:
                member.annotation = annotation.slice
        blocking, coroutines = pkg[BLOCKING], pkg[COROUTINES].all_members
        for name, member in list(blocking.members.items()):
            if member.is_attribute and str(member.value).startswith("blocking("):
                source = coroutines[name]
                method = copy.copy(source.final_target if source.is_alias else source)
                method.labels = method.labels - {"async"}
                blocking.set_member(name, method)
