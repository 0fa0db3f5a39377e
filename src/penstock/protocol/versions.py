"""The names of RocketMQ's releases, which are numbers on the wire."""

from __future__ import annotations

_FIRST_4, _FIRST_5 = 213, 413
_PER_MINOR = 20
"""Ten releases of a minor version, each with the snapshot before it."""


def version_text(version: int) -> str:
    """RocketMQ's name of a release: 479 is ``V5_3_3``."""
    base = _FIRST_5 if version >= _FIRST_5 else _FIRST_4
    middle, last = divmod(version - base, _PER_MINOR)
    return f"V{5 if base == _FIRST_5 else 4}_{middle}_{last // 2}"


def readable_version(version: int) -> str | None:
    """The release as people write it, ``5.3.3``; None for a number before 4.0."""
    if version < _FIRST_4:
        return None
    return version_text(version).removeprefix("V").replace("_", ".")
