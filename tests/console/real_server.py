"""A console on a real socket, and a producer that sends what no client of ours would send."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from typing import Any
from urllib.parse import urlsplit

import httpx

from penstock.admin.admin import Admin
from penstock.admin.cluster_requests import on_host
from penstock.client.cluster_access import ClusterAccess
from penstock.console.listening import listen
from penstock.console.options import ConsoleOptions
from penstock.console.serving import serving
from penstock.model.properties import format_properties
from penstock.protocol import headers
from penstock.protocol.codes import RequestCode


@asynccontextmanager
async def served(
    *namesrv: str, host: str = "127.0.0.1", **options: Any
) -> AsyncIterator[httpx.AsyncClient]:
    """A client of a console that serves clusters: the first as ``local``, then ``other``."""
    names = ("local", "other")
    contexts = {
        name: ClusterAccess.of(address) for name, address in zip(names, namesrv, strict=False)
    }
    chosen = ConsoleOptions(**{"contexts": contexts, **options})
    async with (
        serving(chosen, listen(host, 0)) as address,
        httpx.AsyncClient(base_url=address, timeout=60) as client,
    ):
        yield client


def origin_of(client: httpx.AsyncClient) -> str:
    """What a browser sends as the origin of the console's own pages."""
    parts = urlsplit(str(client.base_url))
    return f"{parts.scheme}://{parts.netloc}"


async def ask_raw(client: httpx.AsyncClient, first_line: str, *lines: str) -> str:
    """The answer to a request that an HTTP library would not send."""
    parts = urlsplit(str(client.base_url))
    head = (first_line, f"Host: {parts.netloc}", "Connection: close", *lines, "", "")
    async with asyncio.timeout(60):
        reader, writer = await asyncio.open_connection(parts.hostname, parts.port)
        writer.write("\r\n".join(head).encode())
        answer = await reader.read()
        writer.close()
    return answer.decode()


class RawProducer(Admin):
    """Sends a message with the properties as they are given, an id of its own among them."""

    @on_host
    async def send_raw(self, topic: str, body: bytes, properties: Mapping[str, str]) -> None:
        [address] = (await self.topic_masters(topic)).values()
        header = headers.send.SendMessage(
            producer_group="raw",
            topic=topic,
            default_topic="TBW102",
            default_topic_queue_nums=1,
            queue_id=0,
            sys_flag=0,
            born_timestamp=time.time_ns() // 1_000_000,
            flag=0,
            properties=format_properties(properties),
        )
        await self.ask(address, RequestCode.SEND_MESSAGE, header, body, about=topic)


async def send_raw(namesrv: str, topic: str, body: bytes = b"x", **properties: str) -> None:
    """Store a message whose properties its producer made up."""
    async with RawProducer(namesrv=namesrv) as producer:
        await producer.send_raw(topic, body, properties)
