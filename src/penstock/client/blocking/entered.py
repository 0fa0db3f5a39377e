"""What the classes have in common: `start` and `stop`, alone and around a block."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable
from types import TracebackType
from typing import Self, TypeVar, TypeVarTuple

from penstock.client.facades.facade import MemberFacade

_T = TypeVar("_T")
_Ts = TypeVarTuple("_Ts")


class Entered(ABC):
    """`start` and `stop` around a block."""

    @abstractmethod
    def start(self) -> None:
        """Begin."""

    @abstractmethod
    def stop(self) -> None:
        """End; idempotent."""

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(
        self,
        exc_type: type[BaseException] | None,
        exc: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self.stop()


class Member(Entered, MemberFacade):
    """A consumer that joins its group when it starts and leaves it when it stops."""

    def start(self) -> None:
        """Join the group."""
        lease = self._open()
        try:
            lease.host.run(self._start_core(lease))
        except BaseException:
            self._close()
            lease.release()
            raise

    def stop(self) -> None:
        """Leave the group; idempotent."""
        lease = self._close()
        if lease is None:
            return
        try:
            lease.host.run(self._stop_core())
        finally:
            lease.release()


async def soon(call: Callable[[*_Ts], _T], *args: *_Ts) -> _T:
    """Run a plain function on the session's loop."""
    return call(*args)
