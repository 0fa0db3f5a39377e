"""Shows the blocking methods of `Admin` in the reference as what they are: functions.

In the source each is one line, ``topics = blocking(admin.Admin.topics)``, which griffe reads as an
attribute. Here it gets the parameters, the result and the docstring of the coroutine.
"""

from __future__ import annotations

from typing import Any

import griffe


class BlockingMethods(griffe.Extension):
    """Replaces attributes made with ``blocking(...)`` by the function they stand for."""

    def on_package(self, *, pkg: griffe.Module, **kwargs: Any) -> None:
        if pkg.name != "penstock":
            return
        blocking = pkg["admin.blocking.Admin"]
        coroutines = pkg["admin.admin.Admin"].all_members
        for name, member in list(blocking.members.items()):
            if not str(getattr(member, "value", "")).startswith("blocking("):
                continue
            source = coroutines[name]
            function = griffe.Function(
                name,
                parameters=source.parameters,
                returns=source.returns,
                docstring=source.docstring,
                lineno=member.lineno,
                endlineno=member.endlineno,
            )
            blocking.set_member(name, function)
