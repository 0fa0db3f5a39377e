"""From the metadata of a call to a user, and to signed requests of that user.

Clients sign the text of one header, nothing else; whether the signature is right is decided here.
What the user may do is decided by the broker, for every request that the endpoint makes in the
user's name: the endpoint signs it with the same secret, so the broker's guard checks it as it
checks a request of a remoting client.
"""

from __future__ import annotations

import asyncio
import base64
import hmac
import re
from collections.abc import Callable
from typing import Final

from penstock.auth.failed_tries import FailedTries
from penstock.auth.user_source import UserSource
from penstock.protocol import acl
from penstock.protocol.acl import Verifier
from penstock.protocol.commands import Command
from penstock.proxy.calls import Caller
from penstock.proxy.statuses import Refused
from penstock.proxy.wire.codes import Code
from penstock.runtime.clock import Clock

_CREDENTIAL: Final = re.compile(r"Credential=([^,/\s]+)")
_SIGNATURE: Final = re.compile(r"Signature=([0-9a-fA-F]{40})")
_DATE: Final = "date"


class Signer:
    """Signs requests as one user."""

    def __init__(self, name: str, verifier: Verifier) -> None:
        self.name = name
        self._verifier = verifier

    def sign(self, command: Command) -> Command:
        """The same command, signed."""
        ext = dict(command.ext or {})
        ext[acl.ACCESS_KEY] = self.name
        names = acl.signed_names(tuple(ext))
        digest = self._verifier.digest(ext, names, command.body)
        ext[acl.SIGNATURE] = base64.b64encode(digest).decode()
        command.ext = ext
        return command


class Access:
    """Finds the user of a call."""

    def __init__(
        self,
        users: Callable[[], UserSource | None],
        clock: Clock,
        unchecked: Signer | None = None,
    ) -> None:
        """``unchecked`` signs the requests of callers where no users are known."""
        self._users = users
        self._clock = clock
        self._unchecked = unchecked
        self._failed_tries = FailedTries()
        self._looking: asyncio.Task[bool] | None = None

    async def has_news(self) -> bool:
        """Whether the users have changed since they were last looked at, a second ago at most."""
        source = self._users()
        if source is None:
            return False
        before = source.users
        if self._looking is not None:
            # It may have read the file before the user of this caller was made.
            await asyncio.wait((self._looking,))
        if self._looking is None:
            # One look for all that wait: each is a read of the file, and callers may be thousands.
            self._looking = asyncio.get_running_loop().create_task(source.look())
            self._looking.add_done_callback(self._looked)
        looking = self._looking
        # Not awaited directly: a call that ends must not end it for the others.
        await asyncio.wait((looking,))
        looking.result()
        return source.users is not before

    def _looked(self, task: asyncio.Task[bool]) -> None:
        self._looking = None

    def signer(self, caller: Caller) -> Signer | None:
        """What signs the requests of a caller; None: they are not signed. Raises `Refused`."""
        source = self._users()
        if source is None:
            return self._unchecked
        name = _CREDENTIAL.search(caller.authorization)
        claimed = _SIGNATURE.search(caller.authorization)
        if name is None or claimed is None or not caller.date_time:
            raise Refused(
                Code.UNAUTHORIZED,
                "the call is not signed",
                expected="the header authorization with a credential and a signature",
                hint="give the client an access key and a secret",
            )
        user_name = name[1]
        address = caller.address.rpartition(":")[0].strip("[]")
        # Not the wall clock: one that is set back would refuse for hours.
        now = round(self._clock.monotonic() * 1000)
        if not self._failed_tries.must_wait(address, user_name, now):
            user = source.users.get(user_name)
            # Of an unknown user the signature is computed, too, so that the time tells nothing.
            found = [
                verifier
                for verifier in source.verifiers(user, self._clock.time_ms())
                if hmac.compare_digest(
                    verifier.digest({_DATE: caller.date_time}, (_DATE,), b""),
                    bytes.fromhex(claimed[1]),
                )
            ]
            if user is not None and user.is_enabled and found:
                self._failed_tries.succeeded(address, user_name)
                return Signer(user_name, found[0])
        self._failed_tries.failed(address, user_name[:64], now)
        raise Refused(Code.UNAUTHORIZED, "the signature is wrong, or the user unknown or disabled")
