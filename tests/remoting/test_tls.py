"""Plain and TLS on one port; the first byte decides which is accepted."""

from __future__ import annotations

import asyncio
import contextlib
import os
import socket
import ssl
from pathlib import Path

import pytest
import trustme
from tests.support.raw_connection import RawConnection

from penstock.errors import ConfigError, ConnectFailed, ConnectionLost, ListenFailed
from penstock.protocol.commands import Command, encode_command, reply
from penstock.remoting import Limits, Peer, Pool, Server, ServerTls, Tls, TlsMode
from penstock.testing.eventually import eventually


def echo(_peer: Peer, request: Command) -> Command:
    return reply(request, body=request.body)


class Files:
    """Certificates of one authority, as files."""

    def __init__(self, root: Path) -> None:
        self.authority = trustme.CA()
        self.ca = root / "ca.pem"
        self.authority.cert_pem.write_to_path(str(self.ca))
        self.certificate, self.key = self._issue(root, "server", "127.0.0.1", "localhost")
        self.client_certificate, self.client_key = self._issue(root, "client", "client.example")

    def _issue(self, root: Path, name: str, *identities: str) -> tuple[Path, Path]:
        issued = self.authority.issue_cert(*identities)
        certificate, key = root / f"{name}.pem", root / f"{name}.key"
        for number, part in enumerate(issued.cert_chain_pems):
            part.write_to_path(str(certificate), append=number > 0)
        issued.private_key_pem.write_to_path(str(key))
        return certificate, key

    def server(self, mode: TlsMode, *, client_ca: Path | None = None) -> ServerTls:
        return ServerTls(
            mode=mode,
            certificate_file=self.certificate,
            key_file=self.key,
            client_ca_file=client_ca,
        )


@pytest.fixture(scope="module")
def files(tmp_path_factory: pytest.TempPathFactory) -> Files:
    return Files(tmp_path_factory.mktemp("certificates"))


async def ask(port: int, tls: Tls | None, *, body: bytes = b"hello") -> object:
    async with Pool(echo, tls=tls) as pool:
        return (await pool.request(f"127.0.0.1:{port}", Command(34, body=body), 10)).body


async def test_a_permissive_server_takes_plain_and_tls_on_one_port(files: Files) -> None:
    async with Server(echo, tls=files.server(TlsMode.PERMISSIVE)) as server:
        assert await ask(server.port, Tls(ca_file=files.ca)) == b"hello"
        assert await ask(server.port, None) == b"hello"


async def test_large_bodies_and_many_requests_go_through_tls(files: Files) -> None:
    async with (
        Server(echo, tls=files.server(TlsMode.ENFORCING)) as server,
        Pool(echo, tls=Tls(ca_file=files.ca)) as pool,
    ):
        address = f"127.0.0.1:{server.port}"
        bodies = [bytes([number]) * (number * 10_000) for number in range(0, 100, 7)]
        answers = await asyncio.gather(
            *(pool.request(address, Command(310, body=body), 30) for body in bodies)
        )
        assert [answer.body for answer in answers] == bodies


async def test_an_enforcing_server_refuses_plain_clients(
    files: Files, caplog: pytest.LogCaptureFixture
) -> None:
    async with Server(echo, tls=files.server(TlsMode.ENFORCING)) as server:
        async with await RawConnection.open(server.port) as raw:
            await raw.send(encode_command(Command(34, 1)))
            assert await raw.wait_closed() == b""
            assert f"connection refused remote={raw.address}" in caplog.text
            assert "a plain client, but the server's TLS mode is enforcing" in caplog.text
        assert await ask(server.port, Tls(ca_file=files.ca)) == b"hello"


@pytest.mark.parametrize("tls", [None, ServerTls(mode=TlsMode.DISABLED)])
async def test_a_server_without_tls_refuses_tls_clients_and_says_so(
    tls: ServerTls | None, files: Files, caplog: pytest.LogCaptureFixture
) -> None:
    async with Server(echo, tls=tls) as server:
        with pytest.raises(ConnectFailed, match=f"127.0.0.1:{server.port}: .+ TLS\\?") as refused:
            await ask(server.port, Tls(ca_file=files.ca))
        assert not refused.value.what.endswith(": "), "a reason is given"
        await eventually(lambda: "a TLS client; this port takes plain" in caplog.text)
        assert await ask(server.port, None) == b"hello"


async def test_a_client_refuses_a_certificate_it_does_not_trust(
    files: Files, caplog: pytest.LogCaptureFixture
) -> None:
    async with Server(echo, tls=files.server(TlsMode.PERMISSIVE)) as server:
        with pytest.raises(ConnectFailed, match=r"(?i)certificate"):
            await ask(server.port, Tls())
        await eventually(lambda: "TLS handshake failed" in caplog.text)
        assert await ask(server.port, Tls(verify=False)) == b"hello"


async def test_a_certificate_for_another_name_is_refused_by_default(
    files: Files,
) -> None:
    tls = ServerTls(
        mode=TlsMode.ENFORCING,
        certificate_file=files.client_certificate,
        key_file=files.client_key,
    )
    async with Server(echo, tls=tls) as server:
        with pytest.raises(ConnectFailed, match=r"127\.0\.0\.1"):
            await ask(server.port, Tls(ca_file=files.ca))
        assert await ask(server.port, Tls(ca_file=files.ca, check_hostname=False)) == b"hello"


async def test_own_authorities_take_the_place_of_those_of_the_system(
    files: Files, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    system, ours = tmp_path / "system.pem", tmp_path / "ours.pem"
    system.write_bytes(files.ca.read_bytes())
    trustme.CA().cert_pem.write_to_path(str(ours))
    monkeypatch.setenv("SSL_CERT_FILE", str(system))
    async with Server(echo, tls=files.server(TlsMode.ENFORCING)) as server:
        assert await ask(server.port, Tls()) == b"hello"
        with pytest.raises(ConnectFailed, match=r"(?i)certificate"):
            await ask(server.port, Tls(ca_file=ours, check_hostname=False))


async def test_a_server_may_ask_clients_for_a_certificate(files: Files) -> None:
    tls = files.server(TlsMode.ENFORCING, client_ca=files.ca)
    known = Tls(
        ca_file=files.ca,
        certificate_file=files.client_certificate,
        key_file=files.client_key,
    )
    async with Server(echo, tls=tls) as server:
        assert await ask(server.port, known) == b"hello"
        # With TLS 1.3 the client learns of the refusal only after its own handshake.
        with pytest.raises((ConnectFailed, ConnectionLost)) as caught:
            await ask(server.port, Tls(ca_file=files.ca))
        assert "127.0.0.1" in str(caught.value)


async def test_garbage_that_starts_like_a_handshake_is_logged(
    files: Files, caplog: pytest.LogCaptureFixture
) -> None:
    async with Server(echo, tls=files.server(TlsMode.PERMISSIVE)) as server:
        async with await RawConnection.open(server.port) as raw:
            await raw.send(b"\x16" + b"garbage" * 50)
            await raw.wait_closed()
            await eventually(lambda: f"TLS handshake failed remote={raw.address}" in caplog.text)
        assert await ask(server.port, None) == b"hello"


@pytest.mark.parametrize(
    ("sent", "text"),
    [
        (b"\x16" + b"garbage" * 50, "TLS handshake failed"),
        (encode_command(Command(34, 1)), "connection refused"),
    ],
    ids=["garbage", "plain"],
)
async def test_many_that_fail_do_not_fill_the_log(
    files: Files, caplog: pytest.LogCaptureFixture, sent: bytes, text: str
) -> None:
    async with Server(echo, tls=files.server(TlsMode.ENFORCING)) as server:
        for _ in range(20):
            async with await RawConnection.open(server.port) as raw:
                await raw.send(sent)
                await raw.wait_closed()
        await eventually(lambda: text in caplog.text)
    assert caplog.text.count(text) == 1


async def test_a_client_that_says_nothing_is_dropped_by_a_tls_port(
    files: Files, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level("INFO")
    limits = Limits(first_frame_seconds=0.05)
    async with (
        Server(echo, tls=files.server(TlsMode.PERMISSIVE), limits=limits) as server,
        await RawConnection.open(server.port) as raw,
    ):
        assert await raw.wait_closed() == b""
        assert f"no request came in time remote={raw.address}" in caplog.text


@pytest.mark.spec("A84")
@pytest.mark.parametrize("first", [b"", b"\x16\x03\x01"], ids=["silent", "half a handshake"])
async def test_many_that_wait_on_a_tls_port_keep_no_one_out(
    files: Files, caplog: pytest.LogCaptureFixture, first: bytes
) -> None:
    tls = files.server(TlsMode.PERMISSIVE)
    async with Server(echo, tls=tls, limits=Limits(max_connections=40)) as server:
        waiting = []
        for _ in range(100):
            waiting.append(await RawConnection.open(server.port))
            if first:
                await waiting[-1].send(first)
        # A quarter may wait; each further one takes the place of the oldest.
        for raw in waiting[:80]:
            assert await raw.wait_closed() == b""
        assert caplog.text.count("connections dropped that have waited longest") == 1
        for client in (None, Tls(ca_file=files.ca)):
            assert await ask(server.port, client) == b"hello"
        for raw in waiting:
            await raw.close()


async def test_every_address_of_a_name_is_listened_on(files: Files) -> None:
    async with Server(echo, "localhost", tls=files.server(TlsMode.PERMISSIVE)) as server:
        async with Pool(echo, tls=Tls(ca_file=files.ca)) as pool:
            address = f"localhost:{server.port}"
            assert (await pool.request(address, Command(34, body=b"hello"), 10)).body == b"hello"
        assert await ask(server.port, None) == b"hello"


async def test_a_tls_port_in_use_is_named_with_a_way_out(files: Files) -> None:
    tls = files.server(TlsMode.PERMISSIVE)
    async with Server(echo, tls=tls) as server:
        with pytest.raises(ListenFailed, match="choose another port"):
            await Server(echo, port=server.port, tls=tls).start()


async def test_stopping_drops_connections_that_have_not_said_anything(files: Files) -> None:
    server = Server(echo, tls=files.server(TlsMode.PERMISSIVE))
    await server.start()
    async with (
        await RawConnection.open(server.port) as silent,
        await RawConnection.open(server.port) as halfway,
    ):
        await halfway.send(b"\x16\x03\x01")
        await asyncio.sleep(0.05)
        await server.stop(0)
        assert await silent.wait_closed() == b""
        assert await halfway.wait_closed() == b""


async def test_bad_bytes_inside_tls_are_refused_like_plain_ones(
    files: Files, caplog: pytest.LogCaptureFixture
) -> None:
    context = Tls(ca_file=files.ca).context()
    async with (
        Server(echo, tls=files.server(TlsMode.ENFORCING)) as server,
        await RawConnection.open(server.port, tls=context, server_hostname="127.0.0.1") as raw,
    ):
        await raw.send(b"GET / HTTP/1.1\r\n\r\n")
        assert await raw.wait_closed() == b""
        assert "an HTTP client" in caplog.text


def test_a_mode_that_needs_a_certificate_says_so() -> None:
    with pytest.raises(ConfigError, match="certificate_file and key_file"):
        ServerTls(mode=TlsMode.ENFORCING)
    assert ServerTls(mode=TlsMode.DISABLED).context() is None


def test_certificates_that_cannot_be_loaded_are_named(files: Files, tmp_path: Path) -> None:
    missing = tmp_path / "missing.pem"
    with pytest.raises(ConfigError, match=r"missing\.pem"):
        Server(echo, tls=ServerTls(certificate_file=missing, key_file=files.key))
    with pytest.raises(ConfigError, match=r"missing\.pem"):
        Tls(ca_file=missing).context()
    with pytest.raises(ConfigError, match=r"ca\.pem"):
        Tls(certificate_file=files.ca, key_file=files.key).context()


def test_the_first_byte_decides_by_the_mode() -> None:
    assert TlsMode.PERMISSIVE.refusal(0x16) is None
    assert TlsMode.PERMISSIVE.refusal(0x00) is None
    assert TlsMode.ENFORCING.refusal(0x16) is None
    assert TlsMode.ENFORCING.refusal(0x00) is not None
    assert TlsMode.DISABLED.refusal(0x16) is not None
    assert TlsMode.DISABLED.refusal(0x00) is None


def test_a_client_verifies_by_default() -> None:
    assert Tls().context().verify_mode is ssl.CERT_REQUIRED
    assert Tls().context().check_hostname
    assert Tls(verify=False).context().verify_mode is ssl.CERT_NONE


def _shakes_hands_and_falls_silent(listening: socket.socket, files: Files) -> None:
    """Serve one connection as Java does over TLS 1.3: a goodbye is not answered."""
    context = files.server(TlsMode.ENFORCING).context()
    assert context is not None
    plain, _ = listening.accept()
    with (
        context.wrap_socket(plain, server_side=True) as connection,
        # Below the TLS layer, so that nothing there sees the goodbye and answers it.
        socket.socket(fileno=os.dup(connection.fileno())) as raw,
        contextlib.suppress(OSError),
    ):
        raw.settimeout(60)
        while raw.recv(4096):
            pass


async def test_a_client_leaves_soon_when_its_goodbye_is_not_answered(files: Files) -> None:
    with socket.create_server(("127.0.0.1", 0)) as listening:
        port = listening.getsockname()[1]
        serving = asyncio.create_task(
            asyncio.to_thread(_shakes_hands_and_falls_silent, listening, files)
        )
        pool = Pool(
            echo, tls=Tls(ca_file=files.ca), limits=Limits(close_seconds=60, idle_seconds=60)
        )
        await pool.peer(f"127.0.0.1:{port}")
        async with asyncio.timeout(20):  # asyncio alone waits for half a minute
            await pool.close()
            await serving
