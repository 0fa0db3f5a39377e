"""A console without a server: requests go to the application, as a browser would send them."""

from __future__ import annotations

import re
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from html.parser import HTMLParser
from typing import Any
from urllib.parse import quote

import httpx
from starlette.applications import Starlette

from penstock.client.cluster_access import ClusterAccess
from penstock.console.app import running_app
from penstock.console.options import ConsoleOptions

HOME = "http://127.0.0.1:8082"


class _Text(HTMLParser):
    """The text of a page, without what scripts and styles hold."""

    def __init__(self) -> None:
        super().__init__()
        self.parts: list[str] = []

    def handle_data(self, data: str) -> None:
        self.parts.append(data)


def text_of(html: str) -> str:
    """What a reader sees, with single blanks."""
    parser = _Text()
    parser.feed(html)
    return " ".join(" ".join(parser.parts).split())


class Browser:
    """Opens pages and sends their forms."""

    def __init__(self, client: httpx.AsyncClient, app: Starlette, context: str = "local") -> None:
        self.client = client
        self.app = app
        self._home = f"/c/{context}"

    def path(self, *parts: str) -> str:
        return "/".join([self._home, *(quote(part, safe="") for part in parts)])

    async def open(self, *parts: str, status: int = 200, **query: Any) -> str:
        """The HTML of a page."""
        path = self.path(*parts) if parts else f"{self._home}/"
        answer = await self.client.get(path, params={k: str(v) for k, v in query.items()})
        assert answer.status_code == status, (answer.status_code, text_of(answer.text)[:600])
        return answer.text

    async def read(self, *parts: str, status: int = 200, **query: Any) -> str:
        """The text of a page."""
        return text_of(await self.open(*parts, status=status, **query))

    async def token(self) -> str:
        """The token that forms of this session carry."""
        found = re.search(r'name="token" value="(\w+)"', await self.open("settings"))
        assert found is not None
        return found[1]

    async def send(self, *parts: str, follow: bool = True, **fields: Any) -> httpx.Response:
        """Send a form as its page would."""
        return await self.client.post(
            self.path(*parts),
            data={"token": await self.token(), **fields},
            headers={"origin": HOME},
            follow_redirects=follow,
        )


@asynccontextmanager
async def browsing(namesrv: str, **options: Any) -> AsyncIterator[Browser]:
    """A browser for the console of one cluster."""
    chosen = ConsoleOptions(contexts={"local": ClusterAccess.of(namesrv)}, **options)
    async with (
        running_app(chosen) as app,
        httpx.AsyncClient(transport=httpx.ASGITransport(app=app), base_url=HOME) as client,
    ):
        yield Browser(client, app)
