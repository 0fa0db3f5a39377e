"""Whether a cluster takes an access key: the login of browsers, and the keys of API requests."""

from __future__ import annotations

from penstock.admin.admin import Admin
from penstock.console.view import REQUEST_SECONDS
from penstock.console.visit import Console
from penstock.errors import PenstockError

TOO_MANY = "too many attempts; try again in a minute"


async def refusal(
    console: Console, context: str, user: str, secret: str, address: str
) -> str | None:
    """Why these keys do not open the console; None if they do. Failures are counted by address."""
    if not console.sessions.may_try(address):
        return TOO_MANY
    access = console.options.contexts[context]
    try:
        async with Admin(
            timeout=REQUEST_SECONDS,
            namesrv=access.namesrv,
            access_key=user,
            secret_key=secret,
            security_token="",
            tls=access.tls or False,
            namespace=access.namespace or "",
        ) as admin:
            await admin.topics()
    except PenstockError as error:
        console.sessions.note_failure(address)
        return f"the cluster refused {user!r}: {error}"
    return None
