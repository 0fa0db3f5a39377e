"""The users in force, with prepared verifiers, reloaded when their file changes."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Collection, Mapping
from pathlib import Path
from typing import Final, NamedTuple
from weakref import WeakSet

from penstock.auth.model import User
from penstock.auth.secret_uses import SecretUses
from penstock.auth.user_file import UserFile, resolve_secret
from penstock.auth.users import Users
from penstock.errors import PenstockError
from penstock.protocol.acl import Verifier
from penstock.remoting.file_stamps import FileStamp
from penstock.runtime.clock import Clock
from penstock.runtime.service import Service
from penstock.runtime.threads import run_to_end

log = logging.getLogger(__name__)

LOOK_SECONDS: Final = 1.0
# Takes as long as that of a real user.
_NO_USER: Final = (Verifier("no user has this secret"),)


class _Valid(NamedTuple):
    secret_id: str
    expires_ms: int | None
    verifier: Verifier


class _Loaded(NamedTuple):
    """The users, with what their secrets stand for, and the stamp of the file they are from."""

    users: Users
    stamp: FileStamp | None
    verifiers: Mapping[str, tuple[_Valid, ...]]


_NOTHING: Final = object()
"""Unlike every stamp, and unlike None, the stamp of a missing file."""

_running: Final[WeakSet[UserSource]] = WeakSet()


class UserSource(Service):
    """Follows the user file.

    Servers of one process that have the same file take each other's changes at once: a right that
    was granted at the broker is in force at the name server, too, when the answer comes. Servers
    of other processes need up to `LOOK_SECONDS`.
    """

    def __init__(self, file: UserFile, clock: Clock) -> None:
        self._file = file
        self._clock = clock
        self._stamp: object = _NOTHING
        """Of the file whose users are in force."""
        self._refused: object = _NOTHING
        """Of the last file that cannot be used: it is not tried again until it changes."""
        self._has_trouble = False
        self._busy = asyncio.Lock()
        """Held while the file is read or changed, so that an older state never comes last."""
        self._listeners: list[Callable[[], None]] = []
        self._verifiers: Mapping[str, tuple[_Valid, ...]] = {}
        self._uses = SecretUses(file)
        self._loop: asyncio.AbstractEventLoop | None = None
        self.users = Users()

    @property
    def path(self) -> Path:
        return self._file.path

    def on_change(self, listener: Callable[[], None]) -> None:
        """Call ``listener`` after each change of the users."""
        self._listeners.append(listener)

    def verifiers(self, user: User | None, now_ms: int) -> Collection[Verifier]:
        """One for each valid secret of the user; for an unknown user, one that never fits."""
        if user is None:
            return _NO_USER
        return [
            one.verifier
            for one in self._verifiers.get(user.name, ())
            if one.expires_ms is None or now_ms < one.expires_ms
        ] or _NO_USER

    def note_use(self, user: User, verifier: Verifier, now_ms: int) -> None:
        """A request was signed with the secret of this verifier."""
        for one in self._verifiers.get(user.name, ()):
            if one.verifier is verifier:
                self._uses.note(user.name, one.secret_id, now_ms)

    def lasting_verifiers(self, user: User) -> tuple[Verifier, ...]:
        """Those of the secrets that do not expire."""
        known = self._verifiers.get(user.name, ())
        return tuple(one.verifier for one in known if one.expires_ms is None)

    async def change(self, change: Callable[[Users], Users]) -> Users:
        """Change the file and what is in force."""
        async with self._busy:
            loaded = await run_to_end(None, lambda: _resolved(*self._file.change_stamped(change)))
            self._take(loaded)
        # After the lock: another source may change the file and look here at the same moment.
        for other in list(_running):
            if other is not self and other.path == self.path and other._loop is self._loop:
                await other.look()
        return loaded.users

    async def load(self) -> None:
        """Read the file; raises if it cannot be used."""
        async with self._busy:
            self._take(await self._read())

    async def _read(self) -> _Loaded:
        return await run_to_end(None, lambda: _resolved(*self._file.load_stamped()))

    async def _run(self, ready: Callable[[], None]) -> None:
        await self.load()
        self._loop = asyncio.get_running_loop()
        _running.add(self)
        ready()
        try:
            while True:
                await self._clock.sleep(LOOK_SECONDS)
                await self.look()
                if self._uses.are_due:
                    await run_to_end(None, self._uses.save)
        finally:
            _running.discard(self)
            if self._uses.are_due:
                await run_to_end(None, self._uses.save)

    async def look(self) -> bool:
        """Take what is new in the file now; False if it has not changed."""
        async with self._busy:
            try:
                return await self._look()
            except OSError as error:
                # Such as too many open files: it may pass without a change of the file.
                self._tell(error)
                return False

    async def _look(self) -> bool:
        stamp = await run_to_end(None, self._file.stamp)
        if stamp == self._stamp:
            self._refused = _NOTHING
            return False
        if stamp == self._refused:
            return False
        try:
            loaded = await self._read()
        except PenstockError as error:
            # Each new file that cannot be used is logged, not only the first.
            self._refused, self._has_trouble = stamp, False
            self._tell(error)
            return False
        self._take(loaded)
        log.info("users loaded path=%s users=%d", self.path, len(loaded.users.by_name))
        return True

    def _tell(self, error: Exception) -> None:
        if not self._has_trouble:
            log.error("users stay as they were, the new file cannot be used error=%s", error)
        self._has_trouble = True

    def _take(self, loaded: _Loaded) -> None:
        self._stamp, self._refused, self._has_trouble = loaded.stamp, _NOTHING, False
        self.users, self._verifiers = loaded.users, loaded.verifiers
        for listener in self._listeners:
            listener()


def _resolved(users: Users, stamp: FileStamp | None) -> _Loaded:
    """Read what secrets refer to; waits for the disk."""
    verifiers: dict[str, tuple[_Valid, ...]] = {}
    for user in users.by_name.values():
        found = []
        for secret in user.secrets:
            value = resolve_secret(secret.value)
            if value is None:
                log.error("secret not found user=%s id=%s", user.name, secret.id)
            else:
                found.append(_Valid(secret.id, secret.expires_ms, Verifier(value)))
        verifiers[user.name] = tuple(found)
    return _Loaded(users, stamp, verifiers)
