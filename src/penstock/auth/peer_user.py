"""The user of a connection: the one that its last request with a right signature was signed by."""

from __future__ import annotations

from typing import Final

from penstock.remoting.peer import Peer

_USER: Final = "auth_user"


def user_of(peer: Peer) -> str | None:
    """The name of the user; None if no request was signed, or the server has no users."""
    name = peer.data.get(_USER)
    return name if isinstance(name, str) else None


def set_user(peer: Peer, name: str) -> None:
    """A request of the connection was signed by this user."""
    peer.data[_USER] = name
