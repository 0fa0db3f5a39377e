"""A client with a lease on its session, from start to stop."""

from __future__ import annotations

import functools
import os
import types
from abc import ABC, abstractmethod
from dataclasses import replace

from penstock.client.session import session_registry
from penstock.client.session.client_ids import renamed
from penstock.client.session.host import Host
from penstock.client.session.session_registry import Lease
from penstock.client.settings import (
    SessionSettings,
)
from penstock.errors import LifecycleError


class Facade:
    """A client with a lease on its session, from start to stop."""

    _lease: Lease | None = None
    _was_stopped = False

    def __init_subclass__(cls) -> None:
        """Have Python name the public class, not a base class, when arguments are wrong."""
        super().__init_subclass__()
        init = cls.__init__
        if "__init__" in cls.__dict__ or not isinstance(init, types.FunctionType):
            return
        if init is Facade.__init__:  # a part of a public class: another base has the arguments
            return
        named = types.FunctionType(
            init.__code__, init.__globals__, "__init__", init.__defaults__, init.__closure__
        )
        functools.update_wrapper(named, init)
        del named.__wrapped__  # type: ignore[attr-defined]  # it is a copy, not a wrapper
        named.__kwdefaults__ = init.__kwdefaults__
        named.__qualname__ = cls.__name__
        cls.__init__ = named  # type: ignore[method-assign]

    def __init__(self, what: str, session: SessionSettings, *, is_named: bool) -> None:
        self._what = what
        self._session_settings = session
        self._namespace = session.access.namespace
        self._is_named = is_named
        self._process = os.getpid()

    @property
    def client_id(self) -> str:
        """The name by which brokers know this client."""
        return self._session_settings.client_id

    def _open(self) -> Lease:
        if self._lease is not None or self._was_stopped:
            raise LifecycleError(
                f"{self._what} was started twice", hint="a client is started once; make a new one"
            )
        if self._process != os.getpid() and not self._is_named:
            # Made before a fork, as in servers with workers. Members need different client ids.
            session = self._session_settings
            by_process = session.profile.instance_by_process
            new_id = renamed(session.client_id, by_process=by_process)
            self._session_settings = replace(session, client_id=new_id)
        self._lease = session_registry.lease(self._session_settings)
        return self._lease

    def _close(self) -> Lease | None:
        """Take the lease from this client; the caller releases it."""
        lease, self._lease = self._lease, None
        self._was_stopped = self._was_stopped or lease is not None
        return lease

    @property
    def _host(self) -> Host:
        if self._lease is None:
            raise self._not_running()
        return self._lease.host

    def _not_running(self) -> LifecycleError:
        return LifecycleError(
            f"{self._what} is not running", hint="start() it, or use it in a with block"
        )


class MemberFacade(Facade, ABC):
    """A consumer that joins its group when it starts and leaves it when it stops."""

    @abstractmethod
    async def _start_core(self, lease: Lease) -> None:
        """Join; on the session's loop."""

    @abstractmethod
    async def _stop_core(self) -> None:
        """Leave; on the session's loop."""
