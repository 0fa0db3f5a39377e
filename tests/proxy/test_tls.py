"""TLS of the gRPC port: new certificates, and handshakes that take for ever."""

from __future__ import annotations

import asyncio
import ssl
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager, suppress
from pathlib import Path

import pytest
import trustme

from penstock.broker import Broker, BrokerConfig
from penstock.proxy import server as grpc_server
from penstock.proxy.grpc_servers import local_server
from penstock.proxy.http2.frames import PREFACE
from penstock.proxy.server import GrpcServer
from penstock.remoting.tls import ServerTls, TlsMode
from penstock.runtime.clock import SystemClock
from penstock.testing.eventually import eventually

SECONDS = 20.0


class Certificates:
    """Files of a server, and an authority that its clients trust."""

    def __init__(self, root: Path) -> None:
        self._authority = trustme.CA()
        self.tls = ServerTls(
            mode=TlsMode.ENFORCING,
            certificate_file=root / "server.pem",
            key_file=root / "server.key",
        )
        self.issue()

    def issue(self) -> None:
        """Replace the files by new ones."""
        assert self.tls.certificate_file is not None
        assert self.tls.key_file is not None
        issued = self._authority.issue_cert("127.0.0.1")
        self.tls.certificate_file.write_bytes(issued.cert_chain_pems[0].bytes())
        self.tls.key_file.write_bytes(issued.private_key_pem.bytes())

    async def connect(self, port: int) -> tuple[bytes, str | None]:
        """The certificate of the server, and the protocol that was agreed on."""
        context = ssl.create_default_context()
        self._authority.configure_trust(context)
        context.set_alpn_protocols(["h2"])
        async with asyncio.timeout(SECONDS):
            _, writer = await asyncio.open_connection("127.0.0.1", port, ssl=context)
        found = writer.get_extra_info("ssl_object")
        certificate = found.getpeercert(binary_form=True)
        protocol = found.selected_alpn_protocol()
        writer.close()
        with suppress(ConnectionError, ssl.SSLError):
            await writer.wait_closed()
        return certificate, protocol


@asynccontextmanager
async def serving(root: Path, certificates: Certificates) -> AsyncIterator[GrpcServer]:
    async with (
        Broker(BrokerConfig(listen_port=0), root) as broker,
        local_server(
            broker, SystemClock(), host="127.0.0.1", port=0, tls=certificates.tls
        ) as server,
    ):
        yield server


async def test_new_certificates_are_used_without_a_restart(tmp_path: Path) -> None:
    certificates = Certificates(tmp_path)
    async with serving(tmp_path / "store", certificates) as server:
        first, protocol = await certificates.connect(server.port)
        assert protocol == "h2"
        assert (await certificates.connect(server.port))[0] == first
        certificates.issue()

        async def is_new() -> bool:
            found, protocol = await certificates.connect(server.port)
            assert protocol == "h2"
            return found != first

        await eventually(is_new, SECONDS, interval=0.2)


async def test_handshakes_that_do_not_go_on(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(grpc_server, "MAX_HANDSHAKES", 5)
    certificates = Certificates(tmp_path)
    async with serving(tmp_path / "store", certificates) as server, AsyncExitStack() as stack:
        waiting = []
        for number in range(30):
            reader, writer = await asyncio.open_connection("127.0.0.1", server.port)
            stack.callback(writer.close)
            # Some say nothing, the others begin a handshake and leave it at that.
            writer.write(b"\x16\x03\x01\x02\x00" if number % 2 else b"")
            waiting.append(asyncio.ensure_future(end_of(reader)))
        await eventually(lambda: sum(one.done() for one in waiting) >= 25, SECONDS)
        _, protocol = await certificates.connect(server.port)
        assert protocol == "h2"


async def end_of(reader: asyncio.StreamReader) -> None:
    with suppress(ConnectionError):
        await reader.read()


async def test_plain_clients_of_a_port_with_tls_are_refused(tmp_path: Path) -> None:
    certificates = Certificates(tmp_path)
    async with serving(tmp_path / "store", certificates) as server:
        reader, writer = await asyncio.open_connection("127.0.0.1", server.port)
        writer.write(PREFACE)
        async with asyncio.timeout(SECONDS):
            await end_of(reader)
        writer.close()
