"""fastjson's ``{"$ref":"$.path"}``: an object that was written before, not written again.

A reference is replaced by the object it names, shared and not copied. What cannot be found becomes
null, and an entry whose key cannot be found is dropped, as fastjson itself loses them. A document
that refers to one of its own ancestors, or that would be far bigger with its references written
out (a "billion laughs"), is refused: a walk over the result visits a shared object once for every
reference.
"""

from __future__ import annotations

import re
from typing import cast

from penstock.errors import ProtocolError
from penstock.protocol.fastjson.reader import MAX_DEPTH, FrozenObject, Json, Key

REFERENCE = "$ref"

# With its references written out a document may be as big as the biggest frame could carry.
MAX_EXPANDED = 16 * 1024 * 1024

# Following a path is slow; a document full of references to nothing is all paths.
MAX_FOLLOWED = 500_000
_MAX_PATH = 4096
_SEGMENT = re.compile(r"\.((?:[^.\[\\]|\\.)+)|\[(\d{1,9})\]|\['([^']*)'\]|\[\"([^\"]*)\"\]")
_ESCAPED = re.compile(r"\\(.)")


def resolve_references(root: Json) -> Json:
    """``root`` with every reference replaced by what it names; containers are changed in place."""
    return _Resolver(root).resolve()


def _path_of(node: Json | FrozenObject) -> str | None:
    """The path if ``node`` is a reference."""
    if isinstance(node, dict) and len(node) == 1:
        path = node.get(REFERENCE)
        return path if isinstance(path, str) else None
    return None


class _Resolver:
    """Depth-first over the document; each container is settled once and remembered by identity."""

    def __init__(self, root: Json) -> None:
        self._root = root
        # (how big when written out, how many levels) of each settled container.
        # Identities are stable: everything hangs on the root.
        self._settled: dict[int, tuple[int, int]] = {}
        self._open: set[int] = set()
        self._followed = 0

    def resolve(self) -> Json:
        root = self._target(self._root)
        self._settle(root, 1)
        return root

    def _settle(self, node: Json, depth: int) -> tuple[int, int]:
        if isinstance(node, str):
            return len(node) + 1, 0
        if not isinstance(node, (dict, list)):
            return 1, 0
        identity = id(node)
        if identity in self._open:
            raise ProtocolError("a JSON reference to an object that contains it")
        known = self._settled.get(identity)
        if known is None:
            if depth > MAX_DEPTH:
                raise _too_deep()
            self._open.add(identity)
            known = self._settle_items(node, depth)
            self._open.discard(identity)
            self._settled[identity] = known
        if depth + known[1] - 1 > MAX_DEPTH:
            raise _too_deep()
        return known

    def _settle_items(self, node: dict[Key, Json] | list[Json], depth: int) -> tuple[int, int]:
        size, height = 1, 0
        if isinstance(node, dict):
            self._settle_keys(node)
            items: list[tuple[Key, Json]] = list(node.items())
        else:
            items = list(enumerate(node))
        for slot, item in items:
            child = self._target(item)
            if child is not item:
                # The slot exists, so this changes no dict's size.
                cast("dict[Key, Json]", node)[slot] = child
            child_size, child_height = self._settle(child, depth + 1)
            size += child_size + (len(slot) if isinstance(slot, (str, tuple)) else 0)
            height = max(height, child_height)
            if size > MAX_EXPANDED:
                raise ProtocolError(
                    "JSON references that multiply",
                    expected=f"at most {MAX_EXPANDED} characters when written out",
                )
        return size, height + 1

    def _settle_keys(self, node: dict[Key, Json]) -> None:
        """Replace references among the object keys, keeping the order of the entries."""
        if not any(isinstance(key, FrozenObject) for key in node):
            return
        entries = list(node.items())
        node.clear()
        for key, value in entries:
            if isinstance(key, FrozenObject):
                target = self._target(key.members())
                if isinstance(target, FrozenObject):
                    key = target
                elif isinstance(target, dict):
                    key = FrozenObject.freeze(target)
                else:
                    continue
            node[key] = value

    def _target(self, node: Json) -> Json:
        """What ``node`` stands for: itself, or the end of its chain of references."""
        for _ in range(MAX_DEPTH):
            path = _path_of(node)
            if path is None:
                return node
            node = self._find(path)
        raise ProtocolError("a chain of JSON references without an end")

    def _find(self, path: str) -> Json:
        if path in ("@", ".."):
            # "myself" and "my parent": both contain the reference.
            raise ProtocolError(f"a JSON reference {path!r} to an object that contains it")
        if not path.startswith("$") or len(path) > _MAX_PATH:
            return None
        node: Json = self._root
        at = 1
        while at < len(path):
            match = _SEGMENT.match(path, at)
            if match is None:
                return None
            at = match.end()
            self._followed += 1
            if self._followed > MAX_FOLLOWED:
                raise ProtocolError(
                    "JSON references with endless paths", expected=f"at most {MAX_FOLLOWED} steps"
                )
            node = _step(node, match)
            if node is None or (at < len(path) and _path_of(node) is not None):
                return None
        return node if isinstance(node, (dict, list, FrozenObject)) else None


def _step(node: Json, match: re.Match[str]) -> Json:
    """One step along a path; None where it leads nowhere."""
    dotted, index, single, double = match.groups()
    if index is not None:
        if isinstance(node, list):
            position = int(index)
            return node[position] if position < len(node) else None
        name = index
    else:
        name = _ESCAPED.sub(r"\1", dotted) if dotted is not None else single or double or ""
    if not isinstance(node, dict):
        return None
    if name == "null" and name not in node:
        # fastjson names every object key of a map "null"; only a sole one is certain.
        keys = [key for key in node if isinstance(key, FrozenObject)]
        return keys[0] if len(keys) == 1 and REFERENCE not in keys[0].members() else None
    return node.get(name)


def _too_deep() -> ProtocolError:
    return ProtocolError("JSON nested too deeply", expected=f"at most {MAX_DEPTH} levels")
