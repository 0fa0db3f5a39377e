"""When each secret was last used, so that an old one can be given up without guessing.

Servers keep it beside the user file, and write it about once a minute: it is no proof, and a
request must not wait for it. Several servers add to one file; the newest time of a secret counts.
"""

from __future__ import annotations

import json
import logging
from pathlib import Path
from typing import Final

from penstock.auth.user_file import UserFile
from penstock.errors import PenstockError, StoreDamaged
from penstock.runtime.state_file import StateFile

log = logging.getLogger(__name__)

FILE_NAME: Final = "auth-uses.json"
PRECISION_MS: Final = 60_000

Uses = dict[str, dict[str, int]]
"""By user and id of a secret: milliseconds since 1970."""


class SecretUses:
    """The last uses that one server has seen."""

    def __init__(self, users: UserFile) -> None:
        self._users = users
        self._file = StateFile(users.path.with_name(FILE_NAME))
        self._seen: dict[tuple[str, str], int] = {}
        self._saved: dict[tuple[str, str], int] = {}
        self._is_writable = True

    def note(self, user: str, secret_id: str, now_ms: int) -> None:
        """A request was signed with the secret."""
        self._seen[user, secret_id] = now_ms

    @property
    def are_due(self) -> bool:
        """Whether there is enough news for the file."""
        return any(
            abs(seen - self._saved.get(secret, 0)) >= PRECISION_MS
            for secret, seen in self._seen.items()
        )

    def save(self) -> None:
        """Add the uses to the file; waits for the disk."""
        seen = dict(self._seen)
        if not self._users.exists():
            # The directory was removed under the server; it must not come back with this alone.
            return
        try:
            with self._users.locked():
                self._add(seen)
        except (PenstockError, OSError) as error:
            if self._is_writable:
                log.warning("last uses of secrets not saved error=%s", error)
            self._is_writable = False
        else:
            self._is_writable = True
        self._saved = seen

    def _add(self, seen: dict[tuple[str, str], int]) -> None:
        uses = load_uses(self._file.path.parent)
        for (user, secret_id), at in seen.items():
            known = uses.setdefault(user, {})
            known[secret_id] = max(at, known.get(secret_id, 0))
        self._file.save(json.dumps(uses, indent=1, sort_keys=True).encode() + b"\n")


def load_uses(directory: Path) -> Uses:
    """What the file beside the users says; empty without one."""
    data = StateFile(directory / FILE_NAME).load(_parse)
    return {} if data is None else _parse(data)


def _parse(data: bytes) -> Uses:
    try:
        document = json.loads(data)
        return {
            user: {secret_id: int(at) for secret_id, at in uses.items()}
            for user, uses in document.items()
        }
    except (ValueError, TypeError, AttributeError) as error:
        raise StoreDamaged(f"{FILE_NAME} cannot be understood: {type(error).__name__}") from error
