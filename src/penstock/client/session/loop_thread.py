"""Where sessions run: each on an event loop of its own thread, shared by clients of one client id.

A user's thread reaches a session through its `Host` only. The usual host is a `LoopThread`. A whole
cluster on a virtual loop brings another one and registers it under its name server's address;
clients that name that address then run there, in the same thread as everything else.
"""

from __future__ import annotations

import asyncio
import concurrent.futures
import logging
import os
import random
import threading
from collections.abc import Callable, Coroutine
from typing import Any, Protocol, TypeVar, TypeVarTuple

from penstock.client.consuming.executors import (
    CoroutineExecutor,
    Executor,
    Finished,
    ThreadExecutor,
)
from penstock.client.consuming.listeners import Caller
from penstock.client.session.client_session import ClientSession
from penstock.client.settings import SessionSettings, difference
from penstock.errors import ConfigError, LifecycleError
from penstock.remoting.loop import new_event_loop
from penstock.runtime.clock import Clock, SystemClock

log = logging.getLogger(__name__)

ENDING_SECONDS = 1.0
"""How long the end of a loop's thread is waited for."""

_T = TypeVar("_T")
_Ts = TypeVarTuple("_Ts")


_process_id = os.getpid()
"""Kept, because it is compared with for every send and the system is slow to tell it."""


class Host(Protocol):
    """An event loop that sessions run on, as seen from elsewhere."""

    @property
    def loop(self) -> asyncio.AbstractEventLoop: ...

    @property
    def clock(self) -> Clock: ...

    @property
    def chance(self) -> random.Random | None:
        """Where sessions take their random numbers from; None: each from its own."""

    def run(self, work: Coroutine[Any, Any, _T]) -> _T:
        """Run ``work`` on the loop; block until it has ended."""

    def start(self, work: Coroutine[Any, Any, _T]) -> concurrent.futures.Future[_T]:
        """Run ``work`` on the loop; do not wait."""

    def wait(self, future: concurrent.futures.Future[_T]) -> _T:
        """Block until something that was handed to the loop is done."""

    def expect(self, done: Callable[[_T], None]) -> Callable[[_T], None]:
        """Somebody waits until ``done`` is called on the loop; call what is returned instead.

        Where time is virtual, it passes meanwhile.
        """

    def check(self) -> None:
        """Raise where `run` would: in a fork, on the loop's own thread, after its end."""

    def may_ask_directly(self) -> bool:
        """Whether the calling thread may speak to brokers itself; raises where `run` would."""

    async def await_(self, work: Coroutine[Any, Any, _T]) -> _T:
        """Run ``work`` on the loop; wait for it on the caller's."""

    def call_soon(self, callback: Callable[[*_Ts], object], *args: *_Ts) -> None:
        """Call something on the loop; from any thread."""

    def executor(
        self,
        caller: Caller,
        finished: Finished,
        *,
        handler_loop: asyncio.AbstractEventLoop | None,
        limit: int,
        name: str,
        task_limit: int | None,
    ) -> Executor:
        """Where handlers run: coroutines on ``handler_loop``, plain ones (None) on threads."""

    def handler_host(self, name: str) -> Host:
        """Where coroutine handlers of blocking clients run; to be closed by whoever asked."""

    def close(self) -> None:
        """The last session has left."""


class LoopThread:
    """An event loop in a thread of its own."""

    def __init__(self, name: str) -> None:
        self.name = name
        self.clock: Clock = SystemClock()
        self.chance: random.Random | None = None
        self.loop: asyncio.AbstractEventLoop = new_event_loop()
        self._process = _process_id
        self._is_closing = False
        self._thread = threading.Thread(target=self._run, name=name, daemon=True)
        self._thread.start()
        self._thread_id = self._thread.ident

    def start(self, work: Coroutine[Any, Any, _T]) -> concurrent.futures.Future[_T]:
        try:
            self.check()
            return asyncio.run_coroutine_threadsafe(work, self.loop)
        except BaseException:
            work.close()
            raise

    def run(self, work: Coroutine[Any, Any, _T]) -> _T:
        future = self.start(work)
        try:
            return future.result()
        except BaseException:
            # Ctrl-C while waiting: whoever is gone needs no answer.
            future.cancel()
            raise

    def wait(self, future: concurrent.futures.Future[_T]) -> _T:
        return future.result()

    def expect(self, done: Callable[[_T], None]) -> Callable[[_T], None]:
        return done  # Real time passes by itself.

    def may_ask_directly(self) -> bool:
        self.check()
        return True

    async def await_(self, work: Coroutine[Any, Any, _T]) -> _T:
        if asyncio.get_running_loop() is self.loop:
            return await work
        return await asyncio.wrap_future(self.start(work))

    def call_soon(self, callback: Callable[[*_Ts], object], *args: *_Ts) -> None:
        self.check()
        self.loop.call_soon_threadsafe(callback, *args)

    def executor(
        self,
        caller: Caller,
        finished: Finished,
        *,
        handler_loop: asyncio.AbstractEventLoop | None,
        limit: int,
        name: str,
        task_limit: int | None,
    ) -> Executor:
        if handler_loop is None:
            return ThreadExecutor(
                self.loop, caller.call, finished, threads=limit, name=name, task_limit=task_limit
            )
        return CoroutineExecutor(
            self.loop,
            handler_loop,
            caller.call_async,
            finished,
            limit=limit,
            name=name,
            task_limit=task_limit,
        )

    def handler_host(self, name: str) -> Host:
        return LoopThread(name)

    def close(self) -> None:
        if self._process != _process_id or self._is_closing:
            return
        self._is_closing = True
        self.loop.call_soon_threadsafe(self.loop.stop)
        if threading.current_thread() is not self._thread:
            self._thread.join(ENDING_SECONDS)
            if self._thread.is_alive():
                # A user's code that blocks the loop, or a thread it started there. It ends with
                # the process, which does not wait for daemons.
                log.warning(
                    "a thread does not end and is left behind thread=%s waited=%.1f",
                    self.name,
                    ENDING_SECONDS,
                )

    def check(self) -> None:
        if self._process != _process_id:
            raise LifecycleError(
                f"{self.name} was started in process {self._process} and used in its fork",
                expected="a client of the forked process's own",
                hint="make and start clients after the fork",
            )
        if self._is_closing:
            raise LifecycleError(f"{self.name} was stopped", hint="make a new client")
        if threading.get_ident() == self._thread_id:
            raise LifecycleError(
                f"a blocking call on the thread of {self.name} would wait for itself"
            )

    def _run(self) -> None:
        asyncio.set_event_loop(self.loop)
        try:
            self.loop.run_forever()
            # What was cancelled on the way out still has to run to its end.
            tasks = asyncio.all_tasks(self.loop)
            for task in tasks:
                task.cancel()
            if tasks:
                self.loop.run_until_complete(asyncio.wait(tasks))
            self.loop.run_until_complete(self.loop.shutdown_default_executor())
        finally:
            self.loop.close()


class Lease:
    """A client's share in a session; the last one to release it ends it."""

    __slots__ = ("_entry", "_is_released")

    def __init__(self, entry: _Entry) -> None:
        self._entry = entry
        self._is_released = False

    @property
    def session(self) -> ClientSession:
        return self._entry.session

    @property
    def host(self) -> Host:
        return self._entry.host

    def release(self) -> None:
        """Done with it; blocks until the session has ended, if this was the last client."""
        if self._give_back():
            self.host.run(self.session.stop())
            self.host.close()

    async def end(self) -> bool:
        """The same on the session's loop; true: close the host, from another thread."""
        if not self._give_back():
            return False
        await self.session.stop()
        return True

    async def release_async(self) -> None:
        """The same, without blocking the caller's loop."""
        if self._give_back():
            await self.host.await_(self.session.stop())
            await asyncio.get_running_loop().run_in_executor(None, self.host.close)

    def _give_back(self) -> bool:
        if self._is_released:
            return False
        self._is_released = True
        return _sessions.give_back(self._entry)


def _check_shared(theirs: SessionSettings, ours: SessionSettings) -> None:
    """Refuse a client that would get a session with other settings than it asked for."""
    keyword = difference(theirs, ours)
    if keyword is not None:
        raise ConfigError(
            f"{keyword} is not what other clients of client id {ours.client_id!r} were given",
            expected="the same for all, because they share their connections",
            hint="give this client an instance= of its own",
        )


class _Entry:
    __slots__ = ("clients", "host", "key", "session")

    def __init__(self, key: tuple[object, ...], session: ClientSession, host: Host) -> None:
        self.key: tuple[object, ...] = key
        self.session: ClientSession = session
        self.host: Host = host
        self.clients: int = 1


class _Sessions:
    """The sessions of this process, by name servers and client id."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._entries: dict[tuple[object, ...], _Entry] = {}
        self._hosts: dict[str, Host] = {}

    def lease(self, settings: SessionSettings) -> Lease:
        key = (settings.access.namesrv, settings.client_id)
        with self._lock:
            entry = self._entries.get(key)
            if entry is not None:
                _check_shared(entry.session.settings, settings)
                entry.clients += 1
                return Lease(entry)
            host = self._hosts.get(settings.access.namesrv[0])
            if host is None:
                host = LoopThread(f"penstock {settings.client_id}")
            session = ClientSession(settings, clock=host.clock, chance=host.chance)
            entry = self._entries[key] = _Entry(key, session, host)
            return Lease(entry)

    def give_back(self, entry: _Entry) -> bool:
        with self._lock:
            entry.clients -= 1
            if entry.clients:
                return False
            if self._entries.get(entry.key) is entry:
                del self._entries[entry.key]
            return True

    def use_host(self, address: str, host: Host) -> None:
        with self._lock:
            self._hosts[address] = host

    def retire_host(self, address: str) -> list[str]:
        with self._lock:
            host = self._hosts.pop(address, None)
            left = [key for key, entry in self._entries.items() if entry.host is host]
            return [self._entries.pop(key).session.client_id for key in left]

    def forget_after_fork(self) -> None:
        # The threads did not come along, so the sessions of the parent are dead here. A lock that
        # another thread held at the fork would stay locked for ever.
        self._lock = threading.Lock()
        self._entries = {}


_sessions = _Sessions()


def _after_fork() -> None:
    global _process_id
    _process_id = os.getpid()
    _sessions.forget_after_fork()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_after_fork)

lease: Callable[[SessionSettings], Lease] = _sessions.lease
"""Share the session of these settings, made if it is the first time."""

use_host: Callable[[str, Host], None] = _sessions.use_host
"""Let clients of a name server address run on a host."""

retire_host: Callable[[str], list[str]] = _sessions.retire_host
"""Let no more clients run on the host of an address; return the client ids that still do."""
