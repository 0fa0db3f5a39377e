"""Request code to handler.

A handler is a plain function. Its annotations say what it gets after its server's state: the typed
header of the request, the `Call` (the peer and the whole command), both or none:

    @handles(RequestCode.GET_MIN_OFFSET)
    def get_min_offset(broker: BrokerState, ask: GetMinOffset) -> OffsetResult: ...

The return value becomes the answer: a header the ext fields, a `Reply` anything more, None an empty
success, a `Promise` an answer later. A generator works in steps (`long_answers`). The connection
turns an exception into a response code.
The few handlers that are called thousands of times a second take the bare command instead and are
added with `add_raw`.
"""

from __future__ import annotations

import inspect
import logging
from collections.abc import Callable
from types import GeneratorType, ModuleType
from typing import TYPE_CHECKING, Any, Final, NamedTuple, TypeVar

from penstock.errors import (
    LifecycleError,
    ProtocolError,
    RequestCodeNotSupported,
    ServiceNotAvailable,
)
from penstock.protocol.bodies.codec import decode_body, encode_body
from penstock.protocol.codes import request_name
from penstock.protocol.commands import Body, Command
from penstock.protocol.headers.codec import decode_header, encode_header
from penstock.remoting.long_answers import LongAnswers
from penstock.remoting.peer import FastPath, Handler, Peer, fast_path_key
from penstock.remoting.promise import Promise

if TYPE_CHECKING:
    from penstock.protocol.headers.codec import Header

log = logging.getLogger(__name__)

MAX_JSON_BYTES: Final = 512 * 1024
"""The longest JSON body of a request. Reading 16 MiB of it takes seconds, during which no other
request is served. Two thousand subscriptions fit, or ten thousand queues to lock."""
_Body = TypeVar("_Body")


class Call(NamedTuple):
    """The peer that sent a request, and the whole request."""

    peer: Peer
    command: Command

    @property
    def body(self) -> bytes:
        """The body of the request."""
        body = self.command.body
        assert isinstance(body, bytes), "a received body is bytes"
        return body

    def json(self, cls: type[_Body], max_bytes: int = MAX_JSON_BYTES) -> _Body:
        """The body as one of the body classes; a body above ``max_bytes`` is refused."""
        body = self.body
        if len(body) > max_bytes:
            raise ProtocolError(
                f"{request_name(self.command.code)} with a body of {len(body)} bytes",
                expected=f"at most {max_bytes}",
                hint="send it in several requests",
            )
        return decode_body(cls, body)


class Reply(NamedTuple):
    """An answer that is more than a header; ``body`` is a JSON body class or ready bytes."""

    header: Header | None = None
    body: object = b""
    remark: str | None = None
    code: int = 0


Answer = Command | Promise | Reply | object | None
Function = TypeVar("Function", bound=Callable[..., Any])


_ATTRIBUTE = "__penstock_request_codes__"


def handles(code: int) -> Callable[[Function], Function]:
    """Mark a function as the handler of a request code."""

    def mark(function: Function) -> Function:
        setattr(function, _ATTRIBUTE, [*getattr(function, _ATTRIBUTE, ()), code])
        return function

    return mark


def answer_of(result: Answer) -> Command | Promise:
    """The answer for a handler's return value."""
    if result is None:
        return Command(0)
    if isinstance(result, Command | Promise):
        return result
    if isinstance(result, Reply):
        return Command(
            result.code,
            ext=None if result.header is None else encode_header(result.header),
            body=_as_bytes(result.body),
            remark=result.remark,
        )
    return Command(0, ext=encode_header(result))  # type: ignore[arg-type]  # a header


def _as_bytes(body: object) -> Body:
    if isinstance(body, bytes | bytearray | memoryview | list):
        return body
    return encode_body(body)


class Dispatcher:
    """Finds the handler of a request; refuses requests without one."""

    def __init__(self) -> None:
        self.fast_paths: dict[bytes, FastPath] = {}
        """Fast paths for the most frequent requests, for the server of this dispatcher."""
        self.long_answers = LongAnswers(answer_of)
        """To be started by the server whose handlers work in steps."""
        self._handlers: dict[int, Handler] = {}
        self._unknown: set[int] = set()

    def add_raw(self, code: int, handler: Handler) -> None:
        """Serve a code with a function of the bare command."""
        if code in self._handlers:
            raise LifecycleError(f"{request_name(code)} has two handlers", expected="one")
        self._handlers[code] = handler

    def add_fast_path(self, code: int, fast_path: FastPath) -> None:
        """Offer requests of a code to a function before the handler of the code."""
        self.fast_paths[fast_path_key(code)] = fast_path

    def add_module(self, module: ModuleType, state: object) -> None:
        """Serve the codes that the functions of a module are marked with."""
        for function in vars(module).values():
            if getattr(function, "__module__", None) == module.__name__:  # not imported by it
                for code in getattr(function, _ATTRIBUTE, ()):
                    self.add_raw(code, _bound(function, state, self._answer))

    def _answer(self, result: Answer) -> Command | Promise:
        if isinstance(result, GeneratorType):
            return self.long_answers.start_answer(result)
        return answer_of(result)

    @property
    def codes(self) -> frozenset[int]:
        """Every code that is served."""
        return frozenset(self._handlers)

    def serve(self, peer: Peer, command: Command) -> Command | Promise | bytes | None:
        """Let the handler of the command's code answer it."""
        handler = self._handlers.get(command.code)
        if handler is None:
            return self._refuse(peer, command)
        return handler(peer, command)

    # A bound method is called in less time than an object, so servers are given ``serve``.
    __call__ = serve

    def _refuse(self, peer: Peer, command: Command) -> Command:
        code = command.code
        if not self._handlers:
            raise ServiceNotAvailable("the server is starting", hint="try again in a second")
        # A peer may send any 32-bit number as a code: bound the number of remembered codes.
        if code not in self._unknown and len(self._unknown) < 1000:
            self._unknown.add(code)
            log.warning(
                "request code not supported, logged once code=%d name=%s remote=%s language=%s",
                code,
                request_name(code),
                peer.remote,
                command.language.name,
            )
        # The leading blank is what Java answers, word for word; some tools compare it.
        raise RequestCodeNotSupported(f" request type {code} not supported")


def _bound(
    function: Callable[..., Answer], state: object, answer: Callable[[Answer], Command | Promise]
) -> Handler:
    """A handler of bare commands that gives ``function`` the arguments of its annotations."""
    _, *wanted = inspect.signature(function, eval_str=True).parameters.values()
    wants_call = bool(wanted) and wanted[-1].annotation is Call
    if len(wanted) == wants_call:
        if wants_call:
            return lambda peer, command: answer(function(state, Call(peer, command)))
        return lambda peer, command: answer(function(state))
    header: type[Header] = wanted[0].annotation
    if wants_call:
        return lambda peer, command: answer(
            function(state, decode_header(header, command.ext), Call(peer, command))
        )
    return lambda peer, command: answer(function(state, decode_header(header, command.ext)))
