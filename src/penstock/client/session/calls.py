"""Sends requests for a session, without blocking.

A call returns the result or raises: `RemotingError` when no answer came, `RequestRefused` (one of
its leaves) when the server refused. Requests are signed here and nowhere else, and a server that
is about to stop (GO_AWAY) is asked once more over a new connection.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import TypeVar

from penstock.client.cluster_access import Credentials
from penstock.client.requests import Request
from penstock.protocol import headers
from penstock.protocol.acl import sign
from penstock.protocol.codes import RequestCode, ResponseCode
from penstock.protocol.commands import Command
from penstock.protocol.headers.codec import encode_header
from penstock.remoting.peer import Peer

_T = TypeVar("_T")


class Calls:
    """The requests of one session. ``connect`` gives the connection to an address."""

    def __init__(
        self,
        connect: Callable[[str], Awaitable[Peer]],
        credentials: Credentials | None,
        timeout: float,
    ) -> None:
        self._connect = connect
        self._credentials = credentials
        self._timeout = timeout

    def signed(self, command: Command) -> Command:
        """The same request, signed if the session has credentials."""
        who = self._credentials
        if who is not None:
            proof = sign(
                command.ext, command.body, who.access_key, who.secret_key, who.security_token
            )
            command.ext = {**(command.ext or {}), **proof}
        return command

    async def exchange(self, address: str, command: Command, seconds: float) -> Command:
        """Send a signed request and return the answer, with any code."""
        peer = await self._connect(address)
        answer = await peer.request(command, seconds)
        if answer.code == ResponseCode.GO_AWAY:
            # The server is about to stop; its successor at this address may serve the request.
            peer.close("the server asked to go away")
            peer = await self._connect(address)
            answer = await peer.request(command, seconds)
        return answer

    async def call(self, address: str, request: Request[_T], seconds: float | None = None) -> _T:
        """Send a request and return the result in its answer."""
        command = self.signed(request.command())
        limit = seconds or request.seconds or self._timeout
        return request.result(await self.exchange(address, command, limit), address)

    async def tell(self, address: str, request: Request[None]) -> None:
        """Send a request one way: servers do not answer it."""
        self.tell_peer(await self._connect(address), request)

    def tell_peer(self, peer: Peer, request: Request[None]) -> None:
        """The same on a connection that is open."""
        peer.oneway(self.signed(request.command()))

    async def pull(
        self,
        address: str,
        header: headers.pull.PullMessage,
        seconds: float,
        extra: dict[str, str] | None = None,
    ) -> Command:
        """Ask for messages; the code of the answer says what was found."""
        ext = encode_header(header)
        if extra:
            ext = {**ext, **extra}
        command = self.signed(Command(RequestCode.PULL_MESSAGE, ext=ext))
        return await self.exchange(address, command, seconds)

    def send_command(self, code: int, header: headers.send.SendMessage, body: bytes) -> Command:
        """A send request with the short header names of SEND_MESSAGE_V2."""
        return self.signed(Command(code, ext=headers.send.encode_send_v2(header), body=body))
