"""The sessions of this process: clients of one client id share one, and the last one ends it.

A session runs on a `LoopThread` of its own, unless a host was registered for the address of its
first name server: a cluster on a virtual loop does that, so that its clients run there, too.
"""

from __future__ import annotations

import asyncio
import os
import threading
from typing import TypeAlias

from penstock.client.session.client_session import ClientSession
from penstock.client.session.host import Host
from penstock.client.session.loop_thread import LoopThread
from penstock.client.settings import SessionSettings, difference
from penstock.errors import ConfigError

_Key: TypeAlias = tuple[tuple[str, ...], str]
"""Name servers and client id."""


class _SharedSession:
    __slots__ = ("clients", "host", "key", "session")

    def __init__(self, key: _Key, session: ClientSession, host: Host) -> None:
        self.key: _Key = key
        self.session: ClientSession = session
        self.host: Host = host
        self.clients: int = 1


class Lease:
    """The share of one client in a session."""

    __slots__ = ("_is_released", "_shared")

    def __init__(self, shared: _SharedSession) -> None:
        self._shared = shared
        self._is_released = False

    @property
    def session(self) -> ClientSession:
        return self._shared.session

    @property
    def host(self) -> Host:
        return self._shared.host

    def release(self) -> None:
        """Leave the session; block until it has ended, if this was the last client."""
        if self._leave():
            self.host.run(self.session.stop())
            self.host.close()

    async def end(self) -> bool:
        """The same on the session's loop; true: the caller closes the host, on another thread."""
        if not self._leave():
            return False
        await self.session.stop()
        return True

    async def release_async(self) -> None:
        """The same, without blocking the caller's loop."""
        if self._leave():
            await self.host.await_(self.session.stop())
            await asyncio.get_running_loop().run_in_executor(None, self.host.close)

    def _leave(self) -> bool:
        """Whether this was the last client."""
        if self._is_released:
            return False
        self._is_released = True
        return _registry.leave(self._shared)


class SessionRegistry:
    """Sessions by name servers and client id."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._sessions: dict[_Key, _SharedSession] = {}
        self._hosts: dict[str, Host] = {}

    def __len__(self) -> int:
        return len(self._sessions)

    def lease(self, settings: SessionSettings) -> Lease:
        key = (settings.access.namesrv, settings.client_id)
        with self._lock:
            shared = self._sessions.get(key)
            if shared is not None:
                _check_same(shared.session.settings, settings)
                shared.clients += 1
                return Lease(shared)
            host = self._hosts.get(settings.access.namesrv[0])
            if host is None:
                host = LoopThread(f"penstock {settings.client_id}")
            session = ClientSession(settings, clock=host.clock, chance=host.chance)
            shared = self._sessions[key] = _SharedSession(key, session, host)
            return Lease(shared)

    def leave(self, shared: _SharedSession) -> bool:
        with self._lock:
            shared.clients -= 1
            if shared.clients:
                return False
            if self._sessions.get(shared.key) is shared:
                del self._sessions[shared.key]
            return True

    def use_host(self, address: str, host: Host) -> None:
        with self._lock:
            self._hosts[address] = host

    def retire_host(self, address: str) -> list[str]:
        with self._lock:
            host = self._hosts.pop(address, None)
            left = [key for key, shared in self._sessions.items() if shared.host is host]
            return [self._sessions.pop(key).session.client_id for key in left]

    def forget_after_fork(self) -> None:
        # A fork has no threads but its own, so the sessions of the parent are dead here. A lock
        # that another thread held at the fork would never be released.
        self._lock = threading.Lock()
        self._sessions = {}


def _check_same(theirs: SessionSettings, ours: SessionSettings) -> None:
    """Refuse a client that would share a session with other settings than its own."""
    keyword = difference(theirs, ours)
    if keyword is not None:
        raise ConfigError(
            f"{keyword} differs from that of other clients of client id {ours.client_id!r}",
            expected="the same for all, because they share their connections",
            hint="give this client an instance= of its own",
        )


_registry = SessionRegistry()
if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_registry.forget_after_fork)


def lease(settings: SessionSettings) -> Lease:
    """Share the session of these settings; the first client makes it."""
    return _registry.lease(settings)


def use_host(address: str, host: Host) -> None:
    """Run clients of a name server address on a host."""
    _registry.use_host(address, host)


def retire_host(address: str) -> list[str]:
    """Stop using the host of an address; return the client ids that still run on it."""
    return _registry.retire_host(address)
