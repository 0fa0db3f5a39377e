"""Whether a cluster accepts an access key: the login of browsers, and the keys of API requests.

An accepted request proves nothing by itself: a cluster without users answers any signature, and so
do Apache's name servers on every cluster. So a broker is asked, by a heartbeat without
groups, which needs no right and changes nothing; and the same broker must refuse the same request
with keys that were made up. Keys count only for the context whose brokers accepted them.
"""

from __future__ import annotations

import asyncio
import secrets
import time
from collections.abc import Iterable
from dataclasses import dataclass, field

from penstock.admin.admin import Admin
from penstock.admin.cluster_requests import on_host
from penstock.client import requests
from penstock.client.cluster_access import ClusterAccess
from penstock.console.login_tries import LoginTries
from penstock.console.view import REQUEST_SECONDS
from penstock.errors import NoPermission, PenstockError, RequestRefused
from penstock.protocol.bodies.clients import HeartbeatData
from penstock.protocol.bodies.codec import encode_body

TOO_MANY = "too many attempts; try again in a minute"
NO_USERS = (
    "this cluster has no users, so it cannot check a login; "
    "without --login, or with --insecure, the console does not ask for one"
)
INCOMPLETE = "an access key and its secret are needed"
TOO_LONG = "no access key or secret is that long"
MAX_USER = 255
MAX_SECRET = 1024
MAX_ASKED = 16
"""Masters that are asked at once."""
PROOF_SECONDS = 60.0
_CLIENT = "penstock-console"
_MADE_UP = "penstock-console-check"
"""How the made-up users begin, so that they can be recognised in the log of a broker."""
_ACL_OF_4 = "AclException"
"""Brokers of 4.9 refuse with the code of any failure, and this in the remark."""

_Keys = tuple[str, str, str]


class _Knocker(Admin):
    """Shows keys to brokers."""

    @on_host
    async def addresses(self) -> list[str]:
        return sorted((await self.masters()).values())[:MAX_ASKED]

    @on_host
    async def knock(self, address: str) -> PenstockError | None:
        """Why a broker did not accept the keys; None if it did."""
        try:
            await self.call(address, requests.heartbeat(encode_body(HeartbeatData(_CLIENT))))
        except PenstockError as error:
            return error
        return None


@dataclass(slots=True)
class KeyCheck:
    """Asks clusters about keys, for all requests of a console."""

    tries: LoginTries = field(default_factory=LoginTries)
    _proven: dict[tuple[str, str], float] = field(default_factory=dict)
    """When a broker of a context last refused keys that were made up."""
    _running: dict[tuple[str, _Keys], asyncio.Task[str | None]] = field(default_factory=dict)

    async def refusal(
        self, context: str, access: ClusterAccess, user: str, secret: str, address: str
    ) -> str | None:
        """Why these keys do not open the console; None if they do.

        Failures are counted by address and user. Requests that come together with the same keys
        are one try.
        """
        if not user or not secret:
            return INCOMPLETE
        if len(user) > MAX_USER or len(secret) > MAX_SECRET:
            return TOO_LONG
        key = (address, (context, user, secret))
        task = self._running.get(key)
        if task is None:
            begun = self.tries.begin(address, user)
            if begun is None:
                return TOO_MANY
            task = asyncio.ensure_future(self._try(context, access, user, secret, address, begun))
            self._running[key] = task
            task.add_done_callback(lambda _: self._running.pop(key, None))
        return await asyncio.shield(task)

    async def _try(
        self,
        context: str,
        access: ClusterAccess,
        user: str,
        secret: str,
        address: str,
        begun: float,
    ) -> str | None:
        try:
            async with _knocker(access, user, secret) as admin:
                brokers = await admin.addresses()
                answers = await asyncio.gather(*map(admin.knock, brokers))
        except PenstockError as error:
            return f"the cluster refused {user!r}: {error}"
        accepted = [broker for broker, why in zip(brokers, answers, strict=True) if why is None]
        if not accepted:
            return f"the cluster refused {user!r}: {_worst(answers)}"
        if not await self._is_checked(context, access, accepted):
            return NO_USERS
        self.tries.undo(address, user, begun)
        return None

    async def _is_checked(
        self, context: str, access: ClusterAccess, brokers: Iterable[str]
    ) -> bool:
        """Whether one of these brokers refuses keys that were made up."""
        now = time.monotonic()
        self._proven = {pair: at for pair, at in self._proven.items() if now - at < PROOF_SECONDS}
        if any((context, broker) in self._proven for broker in brokers):
            return True
        user = f"{_MADE_UP}-{secrets.token_hex(8)}"
        async with _knocker(access, user, secrets.token_urlsafe(32)) as admin:
            for broker in brokers:
                if _is_about_keys(await admin.knock(broker)):
                    self._proven[context, broker] = now
                    return True
        return False


def _knocker(access: ClusterAccess, user: str, secret: str) -> _Knocker:
    return _Knocker(
        timeout=REQUEST_SECONDS,
        namesrv=access.namesrv,
        access_key=user,
        secret_key=secret,
        security_token="",
        tls=access.tls or False,
        namespace=access.namespace or "",
    )


def _is_about_keys(error: PenstockError | None) -> bool:
    """Whether a broker refused because of the keys, and not for want of time or memory."""
    if isinstance(error, NoPermission):
        return True
    return isinstance(error, RequestRefused) and _ACL_OF_4 in str(error)


def _worst(answers: Iterable[PenstockError | None]) -> PenstockError | None:
    """The error that says most: that of a broker which answered."""
    errors = [error for error in answers if error is not None]
    return next((error for error in errors if isinstance(error, RequestRefused)), errors[0])
