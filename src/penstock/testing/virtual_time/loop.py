"""An asyncio event loop whose time is virtual and whose network is in memory.

Everything runs in one thread, and everything that is random comes from one seed, so a run can be
repeated. The loop runs what is ready; when nothing is, its time jumps to the next timer. An hour
costs what happens in it, and nothing more.

What makes a run repeatable, besides the seed:

- timers due at one moment fire in the order in which they were made;
- tasks and futures hash by the order of their making and not by their address, because asyncio
  itself keeps them in sets (`TaskGroup`, `asyncio.wait`);
- `run_in_executor` runs its function inline, as an event of its own.

Ways to drive it: `run_virtual`, or ``asyncio.Runner(loop_factory=VirtualLoop)``, run a coroutine to
its end and let time pass as needed. `VirtualLoop.advance`, called while the loop stands still, lets
a stretch of time pass and returns; `VirtualLoop.drive` runs a coroutine to its end even from a
function that the loop itself is running "in an executor". In a thread of its own it runs for ever,
and `VirtualLoop.before_time_passes` decides when its time may pass (`testing.hosts.virtual_host`).
"""

from __future__ import annotations

import asyncio
import contextvars
import math
import random
import signal
import socket
import ssl as ssl_module
from asyncio import events
from collections import deque
from collections.abc import Awaitable, Callable, Coroutine, Sequence
from heapq import heapify, heappop, heappush
from typing import Any, Protocol, TypeVar, TypeVarTuple, cast

from penstock.errors import LifecycleError
from penstock.runtime.durations import Duration, seconds
from penstock.testing.clock import DEFAULT_START, VirtualClock
from penstock.testing.virtual_time.network import Network
from penstock.testing.virtual_time.servers import ProtocolFactory, VirtualServer
from penstock.testing.virtual_time.tasks import VirtualFuture, VirtualTask, describe_task
from penstock.testing.virtual_time.trace import Trace

_T = TypeVar("_T")
_Ts = TypeVarTuple("_Ts")

MAX_TURNS_PER_INSTANT = 1_000_000
_CANCELLED_TIMERS_KEPT = 100


class VirtualDeadlock(RuntimeError):
    """Nothing will ever happen again, and the main coroutine still waits."""


class UnhandledInLoop(Exception):
    """A callback or task failed and its error was never retrieved; the test must fail."""


class _Runnable(Protocol):
    """What lies in the queues of the loop: a handle, or a pipe of the network."""

    _cancelled: bool
    _scheduled: bool

    def _run(self) -> object: ...


class VirtualLoop(asyncio.BaseEventLoop):
    """An event loop with virtual time, an in-memory network and one seed."""

    # Attributes of BaseEventLoop that the type stubs leave out.
    _ready: deque[Any]
    _stopping: bool
    _check_closed: Callable[[], None]

    def __init__(self, seed: int = 0, *, start: float = DEFAULT_START) -> None:
        super().__init__()
        self.seed = seed
        self.random: random.Random = random.Random(seed)
        self.trace: Trace = Trace()
        self.network: Network = Network(self, random.Random(self.random.getrandbits(64)))
        self.executor_latency: tuple[float, float] = (0.0, 0.0)
        self.unhandled: list[dict[str, Any]] = []
        self.before_time_passes: Callable[[], bool] | None = None
        """Asked when nothing is ready; True: something may be now, look again."""
        self.on_call_from_thread: Callable[[], None] | None = None
        self._now = 0.0
        self._timers: list[tuple[float, int, _Runnable]] = []
        self._cancelled_timers = 0
        self._settlers: list[tuple[float, int, Callable[[], object]]] = []
        self._sequence = 0
        self._made = 0
        self._turns = 0
        self._inline_depth = 0
        self._is_driven_inside = False
        self._signal_handlers_by_number: dict[int, tuple[Callable[..., object], tuple[Any, ...]]]
        self._signal_handlers_by_number = {}
        self.clock: VirtualClock = VirtualClock(self, start)
        self.set_exception_handler(_keep_unhandled)

    # -- time -------------------------------------------------------------------------------------

    def time(self) -> float:
        return self._now

    def call_at(
        self,
        when: float,
        callback: Callable[[*_Ts], object],
        *args: *_Ts,
        context: contextvars.Context | None = None,
    ) -> asyncio.TimerHandle:
        self._check_closed()
        timer = asyncio.TimerHandle(when, callback, args, self, context)
        self.schedule_at(when, cast(_Runnable, timer))
        return timer

    def schedule_at(self, when: float, runnable: _Runnable) -> None:
        """Run ``runnable`` at ``when``, or in the next turn if that is now."""
        runnable._scheduled = True
        self._sequence += 1
        heappush(self._timers, (when, self._sequence, runnable))

    def _timer_handle_cancelled(self, handle: _Runnable) -> None:
        if not handle._scheduled:
            return
        self._cancelled_timers += 1
        # Most timers are timeouts that never fire; do not carry them along for minutes.
        if self._cancelled_timers > _CANCELLED_TIMERS_KEPT and self._cancelled_timers * 2 > len(
            self._timers
        ):
            self._timers = [
                entry for entry in self._timers if not (entry[2]._cancelled or entry[2] is handle)
            ]
            heapify(self._timers)
            self._cancelled_timers = 0

    def _run_once(self) -> None:
        ready = self._ready
        if ready:
            self._turns += 1
            if self._turns > MAX_TURNS_PER_INSTANT:
                raise VirtualDeadlock(
                    f"time stands still at {self._now}: {self._turns} turns without a pause\n"
                    + self.describe_tasks()
                )
        elif not self._stopping:
            self._next_instant()
        now = self._now
        timers = self._timers
        while timers and timers[0][0] <= now:
            _, number, runnable = heappop(timers)
            runnable._scheduled = False
            if runnable._cancelled:
                self._cancelled_timers -= 1
                continue
            if isinstance(runnable, asyncio.TimerHandle):
                self.trace.record(now, "timer", number)
            ready.append(runnable)
        for _ in range(len(ready)):
            if not ready:  # `drive` ran the rest from within
                break
            handle = ready.popleft()
            if not handle._cancelled:
                handle._run()

    def _next_instant(self) -> None:
        """Nothing is ready: call `before_time_passes`, or jump to the next timer."""
        if self.before_time_passes is not None and self.before_time_passes():
            return
        timers = self._timers
        while timers and timers[0][2]._cancelled:
            heappop(timers)
            self._cancelled_timers -= 1
        when = timers[0][0] if timers else math.inf
        # Inside `drive` a blocking call is under way, so nothing counts as settled yet; unless
        # that is what it waits for.
        if (
            self._settlers
            and self._settlers[0][0] < when
            and (not self._is_driven_inside or when == math.inf)
        ):
            deadline, _, callback = heappop(self._settlers)
            self._go_to(deadline)
            callback()
            return
        if when == math.inf:
            raise VirtualDeadlock(
                f"nothing will happen any more at {self._now}, and these still wait:\n"
                + self.describe_tasks()
            )
        self._go_to(when)

    def _go_to(self, when: float) -> None:
        self._turns = 0
        self._now = max(self._now, when)

    def _when_passed(self, duration: float, callback: Callable[[], object]) -> None:
        self._sequence += 1
        heappush(self._settlers, (self._now + duration, self._sequence, callback))

    def advance(self, duration: Duration) -> None:
        """Let time pass: run all that is due in it, in order, and what comes of that; then stop.

        For code outside the loop. A coroutine on the loop awaits `VirtualClock.advance`.
        """
        if self.is_running():
            raise LifecycleError(
                "advance() was called while the loop runs", hint="await loop.clock.advance(...)"
            )
        self._when_passed(seconds(duration), self.stop)
        self.run_forever()

    def settle(self) -> None:
        """Run all that is ready now and what comes of it, without letting time pass."""
        self.advance(0)

    async def passed(self, duration: float) -> None:
        """Return when ``duration`` has passed and all that was due by then has happened."""
        done = self.create_future()

        def tell() -> None:
            if not done.done():
                done.set_result(None)

        self._when_passed(duration, tell)
        await done

    # -- being driven -----------------------------------------------------------------------------

    def drive(self, awaitable: Awaitable[_T]) -> _T:
        """Run ``awaitable`` to its end, letting time pass as needed, and return its result.

        Also from a function that the loop runs through `run_in_executor`: the loop goes on, one
        level deeper, until the result is there. That is how blocking calls work in a listener.
        """
        if not self.is_running():
            return self.run_until_complete(awaitable)
        if not self._inline_depth:
            raise LifecycleError(
                "a blocking call was made on the loop's own thread", hint="await it instead"
            )
        before = (self._inline_depth, self._is_driven_inside, self._stopping)
        self._inline_depth, self._is_driven_inside = 0, True
        is_stopped = False
        events._set_running_loop(self)
        try:
            future = asyncio.ensure_future(awaitable, loop=self)
            while not future.done():
                # A stop of the loop is meant for the outer run; this call ends first.
                self._stopping = False
                self._run_once()
                is_stopped = is_stopped or self._stopping
            return future.result()
        finally:
            events._set_running_loop(None)
            self._inline_depth, self._is_driven_inside, self._stopping = before
            self._stopping = self._stopping or is_stopped

    def run_in_executor(
        self, executor: object, func: Callable[[*_Ts], _T], *args: *_Ts
    ) -> asyncio.Future[_T]:
        """Run ``func`` inline, as an event of its own, after `executor_latency`."""
        self._check_closed()
        future: asyncio.Future[_T] = self.create_future()
        low, high = self.executor_latency
        delay = low if low == high else self.random.uniform(low, high)
        if delay:
            self.call_later(delay, self._run_inline, future, func, args)
        else:
            self.call_soon(self._run_inline, future, func, args)
        return future

    def _run_inline(
        self, future: asyncio.Future[_T], func: Callable[..., _T], args: tuple[Any, ...]
    ) -> None:
        if future.cancelled():
            return
        self._inline_depth += 1
        # The function believes to be in a thread of its own, where no loop runs.
        events._set_running_loop(None)
        try:
            result = func(*args)
        except (SystemExit, KeyboardInterrupt):
            raise
        except BaseException as error:
            if not future.cancelled():
                future.set_exception(error)
        else:
            if not future.cancelled():
                future.set_result(result)
        finally:
            events._set_running_loop(self)
            self._inline_depth -= 1

    def _write_to_self(self) -> None:
        """A call from another thread is in the queue; it runs when the loop is next driven."""
        if self.on_call_from_thread is not None:
            self.on_call_from_thread()

    @property
    def has_ready(self) -> bool:
        """Whether there is something to run at this instant."""
        return bool(self._ready)

    # -- tasks and futures ------------------------------------------------------------------------

    def create_future(self) -> asyncio.Future[Any]:
        future = VirtualFuture(loop=self)
        self._made = future.number = self._made + 1
        return future

    def create_task(self, coro: Any, **options: Any) -> asyncio.Task[Any]:
        if self.get_task_factory() is not None:
            return super().create_task(coro, **options)
        self._check_closed()
        self._made += 1
        if options.get("name") is None:
            # asyncio's own default counts over all loops of the process.
            options["name"] = f"Task-{self._made}"
        return VirtualTask(coro, number=self._made, loop=self, **options)

    def describe_tasks(self) -> str:
        """One line a task: its name, and where it waits for what."""
        tasks = sorted(asyncio.all_tasks(self), key=hash)
        return "\n".join(f"  {describe_task(task)}" for task in tasks) or "  (no task)"

    # -- the network ------------------------------------------------------------------------------

    async def create_connection(  # type: ignore[override]  # the stubs have one overload an argument
        self,
        protocol_factory: ProtocolFactory,
        host: str | None = None,
        port: int | None = None,
        *,
        ssl: ssl_module.SSLContext | bool | None = None,
        server_hostname: str | None = None,
        ssl_handshake_timeout: float | None = None,
        **options: object,
    ) -> tuple[asyncio.BaseTransport, asyncio.BaseProtocol]:
        if host is None or port is None:
            raise ValueError("host and port must be given; the virtual network has no sockets")
        context = ssl_module.create_default_context() if ssl is True else ssl or None
        if context is not None and server_hostname is None:
            server_hostname = host
        return await self.network.connect(
            protocol_factory, host, int(port), context, server_hostname, ssl_handshake_timeout
        )

    async def create_server(  # type: ignore[override]  # the stubs have one overload an argument
        self,
        protocol_factory: ProtocolFactory,
        host: str | Sequence[str] | None = None,
        port: int | None = None,
        *,
        ssl: ssl_module.SSLContext | None = None,
        ssl_handshake_timeout: float | None = None,
        start_serving: bool = True,
        **options: object,
    ) -> VirtualServer:
        if options.get("sock") is not None:
            raise ValueError("host and port must be given; the virtual network has no sockets")
        hosts = [host] if host is None or isinstance(host, str) else list(host)
        server = self.network.listen(
            protocol_factory, hosts, int(port or 0), ssl, ssl_handshake_timeout
        )
        if start_serving:
            await server.start_serving()
        return server

    async def getaddrinfo(
        self,
        host: str | bytes | None,
        port: str | bytes | int | None,
        *,
        family: int = 0,
        type: int = 0,
        proto: int = 0,
        flags: int = 0,
    ) -> list[Any]:
        """Resolve literal addresses and the names given to the network, and nothing else."""
        name = host.decode() if isinstance(host, bytes) else host or "127.0.0.1"
        address = self.network.resolve(name)
        number = int(port or 0)
        is_v6 = ":" in address
        found = socket.AF_INET6 if is_v6 else socket.AF_INET
        if family not in (socket.AF_UNSPEC, found):
            raise socket.gaierror(socket.EAI_FAMILY, f"no address of that family for {name!r}")
        where = (address, number, 0, 0) if is_v6 else (address, number)
        return [(found, socket.SOCK_STREAM, socket.IPPROTO_TCP, "", where)]

    # -- signals ----------------------------------------------------------------------------------

    def add_signal_handler(self, sig: int, callback: Callable[[*_Ts], object], *args: *_Ts) -> None:
        """Kept for `send_signal`; real signals do not reach the loop."""
        self._signal_handlers_by_number[int(sig)] = (callback, args)

    def remove_signal_handler(self, sig: int) -> bool:
        return self._signal_handlers_by_number.pop(int(sig), None) is not None

    def send_signal(self, sig: int) -> None:
        """Do what the process would do on a real signal."""
        found = self._signal_handlers_by_number.get(int(sig))
        if found is None:
            raise LifecycleError(f"no handler for {signal.Signals(sig).name}")
        callback, args = found
        self.call_soon(callback, *args)

    def close(self) -> None:
        super().close()
        self._timers.clear()
        self._settlers.clear()


def _keep_unhandled(loop: asyncio.AbstractEventLoop, context: dict[str, Any]) -> None:
    assert isinstance(loop, VirtualLoop)
    loop.unhandled.append(context)
    loop.default_exception_handler(context)


def virtual_loop() -> VirtualLoop:
    """The virtual loop this code runs on."""
    loop = asyncio.get_running_loop()
    if not isinstance(loop, VirtualLoop):
        raise LifecycleError(f"the running loop is {loop!r}", expected="a VirtualLoop")
    return loop


def run_virtual(
    main: Coroutine[Any, Any, _T] | Callable[[VirtualLoop], Coroutine[Any, Any, _T]],
    *,
    seed: int = 0,
    start: float = DEFAULT_START,
    debug: bool | None = None,
) -> _T:
    """Run ``main`` to its end in virtual time and return its result.

    ``main`` is a coroutine, or a function that makes one of the loop. The module `random` is
    seeded for the time of the run, so that jitter is repeatable too. A callback that failed
    unseen fails the run.
    """
    state = random.getstate()
    random.seed(seed)
    loops: list[VirtualLoop] = []

    def make_loop() -> VirtualLoop:
        loops.append(VirtualLoop(seed, start=start))
        return loops[-1]

    try:
        with asyncio.Runner(loop_factory=make_loop, debug=debug) as runner:
            loop = runner.get_loop()
            assert isinstance(loop, VirtualLoop)
            result = runner.run(main(loop) if callable(main) else main)
    finally:
        random.setstate(state)
    if loops[0].unhandled:
        first = loops[0].unhandled[0]
        raise UnhandledInLoop(
            f"{len(loops[0].unhandled)} failed unseen, the first: {first.get('message')}"
        ) from first.get("exception")
    return result
