"""The gRPC endpoint of ``penstock up`` is a process of its own, which lives and dies with it."""

from __future__ import annotations

import asyncio
import os
import signal
import socket
import subprocess
import sys
from contextlib import ExitStack, suppress
from pathlib import Path
from urllib.parse import urlsplit

import grpc.aio
import pytest

from penstock.cli import restarts
from penstock.cli.console_process import ConsoleProcess
from penstock.cli.grpc_port import GRPC_PORT
from penstock.cli.grpc_process import ChildSettings, GrpcProcess, listen
from penstock.cli.restarts import Pauses, module_command
from penstock.errors import ListenFailed
from penstock.proxy.wire import messages as wire
from penstock.proxy.wire.codes import Code
from penstock.proxy.wire.definitions import SERVICE
from penstock.remoting.tls import ServerTls, Tls, TlsMode
from penstock.runtime.child_process import ChildProcess
from penstock.testing.eventually import eventually

UP = [sys.executable, "-m", "penstock", "up", "--nameserver-port=0", "--broker-port=0"]
SECONDS = 40.0


def up(data: Path, *more: str) -> ChildProcess:
    return ChildProcess([*UP, "--console=off", f"--data={data}", *more])


def endpoint_of(process: ChildProcess) -> str:
    return process.wait_for_line(r"^ready .* grpc=(\S+) ")[1]


def children(pid: int) -> list[int]:
    """The processes that a process has started."""
    found: list[int] = []
    for task in Path(f"/proc/{pid}/task").iterdir():
        found += map(int, (task / "children").read_text().split())
    return found


def is_alive(pid: int) -> bool:
    with suppress(OSError):
        # A process that no one has waited for is dead all the same.
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    return False


def test_a_start_that_fails_says_nothing_of_the_grpc_port(tmp_path: Path) -> None:
    with ExitStack() as stack:
        # Whether this test or another process has the default port, it is taken.
        with suppress(OSError):
            stack.enter_context(socket.create_server(("127.0.0.1", GRPC_PORT)))
        taken = stack.enter_context(socket.create_server(("127.0.0.1", 0))).getsockname()[1]
        done = subprocess.run(
            [*UP[:4], f"--nameserver-port={taken}", f"--data={tmp_path}", "--console=off"],
            capture_output=True,
            text=True,
            timeout=SECONDS,
            check=False,
        )
    assert done.returncode == 1
    assert "--nameserver-port PORT" in done.stderr
    assert "gRPC is served" not in done.stderr


async def route_code(address: str) -> int:
    """The code of an answer; 0 if there is none."""
    async with grpc.aio.insecure_channel(address) as channel:
        call = channel.unary_unary(
            f"/{SERVICE}/QueryRoute",
            request_serializer=wire.QueryRouteRequest.SerializeToString,
            response_deserializer=wire.QueryRouteResponse.FromString,
        )
        request = wire.QueryRouteRequest(topic=wire.Resource(name="missing"))
        with suppress(grpc.aio.AioRpcError):
            answer = await call(request, metadata=(("x-mq-client-id", "c"),), timeout=10)
            return int(answer.status.code)
    return 0


async def serves(address: str) -> bool:
    return await route_code(address) == Code.TOPIC_NOT_FOUND


async def test_an_endpoint_that_dies_is_replaced_on_the_same_port(tmp_path: Path) -> None:
    with up(tmp_path) as process:
        address = endpoint_of(process)
        assert await serves(address)
        (first,) = children(process.pid)
        os.kill(first, signal.SIGKILL)
        await eventually(lambda: serves(address), SECONDS, interval=0.5)
        (second,) = children(process.pid)
        assert second != first
        assert process.terminate() == 0
        assert not is_alive(second)


async def test_it_ends_with_its_parent(tmp_path: Path) -> None:
    with up(tmp_path) as process:
        endpoint_of(process)
        (child,) = children(process.pid)
        process.kill()
        await eventually(lambda: not is_alive(child), SECONDS)


def test_protobuf_is_not_loaded_beside_the_broker(tmp_path: Path) -> None:
    with up(tmp_path) as process:
        endpoint_of(process)
        assert "protobuf" not in Path(f"/proc/{process.pid}/maps").read_text()


@pytest.mark.spec("G7")
async def test_a_taken_port_is_replaced_if_it_is_the_default() -> None:
    with socket.create_server(("127.0.0.1", 0)) as other:
        number = other.getsockname()[1]
        with pytest.raises(ListenFailed, match=str(number)):
            await listen("127.0.0.1", (number,))
        (bound,) = await listen("127.0.0.1", (number, 0))
        with bound:
            assert bound.getsockname()[1] not in (0, number)


async def test_the_default_port_of_two_servers(tmp_path: Path) -> None:
    with up(tmp_path / "a") as first:
        taken = endpoint_of(first).rpartition(":")[2]
        with up(tmp_path / "b", f"--grpc-port={taken}") as second:
            assert second.wait() != 0
            assert taken in second.output
            assert "--grpc-port PORT" in second.output


def endpoints() -> list[int]:
    """The endpoints that this process has started."""
    mine = children(os.getpid())
    return [one for one in mine if "grpc_child" in Path(f"/proc/{one}/cmdline").read_text()]


async def greets(port: int) -> bool:
    """Whether a process accepts connections, and not only the system for it."""
    with suppress(OSError, TimeoutError):
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        try:
            return bool(await asyncio.wait_for(reader.read(9), 1))
        finally:
            writer.close()
    return False


async def test_a_system_without_room_for_a_process(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(restarts, "FIRST_PAUSE_SECONDS", 0.05)
    monkeypatch.setattr(restarts, "LONGEST_PAUSE_SECONDS", 0.1)
    plain = ChildSettings(name_server="127.0.0.1:1", host="127.0.0.1")
    process = GrpcProcess(await listen("127.0.0.1", (0,)), lambda: plain)
    try:
        await process.load()
        async with process:
            await eventually(lambda: greets(process.port), SECONDS)
            with monkeypatch.context() as no_room:
                no_room.setattr(sys, "executable", "/nowhere/python")
                for child in endpoints():
                    os.kill(child, signal.SIGKILL)
                await eventually(lambda: caplog.text.count("cannot be started") >= 2, SECONDS)
                assert process.is_running
            await eventually(lambda: greets(process.port), SECONDS)
    finally:
        await process.discard()


async def test_a_console_that_cannot_be_started(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(restarts, "FIRST_PAUSE_SECONDS", 0.05)
    monkeypatch.setattr(sys, "executable", "/nowhere/python")
    async with ConsoleProcess(0, []) as console:
        address = urlsplit(console.address)
        _, writer = await asyncio.open_connection(address.hostname, address.port)
        await eventually(lambda: caplog.text.count("cannot be started") >= 2, SECONDS)
        assert console.is_running
        writer.close()


def test_pauses_between_starts() -> None:
    pauses = Pauses()
    assert [pauses.after(0.5) for _ in range(8)] == [1, 2, 4, 8, 16, 30, 30, 30]
    assert pauses.after(60) == 1
    assert [pauses.after(9), pauses.after(11), pauses.after(9)] == [2, 1, 2]


def test_files_of_the_working_directory_are_not_run(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "penstock.py").write_text("raise SystemExit(3)")
    monkeypatch.chdir(tmp_path)

    def status() -> int:
        command = [*module_command("penstock"), "--version"]
        return subprocess.run(command, check=False, capture_output=True, timeout=60).returncode

    assert status() == 0
    # A process that looks there itself, as one of `python -m`, has children that do, too.
    monkeypatch.setattr(sys, "path", [*sys.path, str(tmp_path)])
    assert module_command("penstock")[1] == "-m"
    assert status() == 3


def test_settings_reach_the_child_as_they_are() -> None:
    full = ChildSettings(
        name_server="127.0.0.1:9876",
        host="::1",
        tls=ServerTls(
            mode=TlsMode.ENFORCING,
            certificate_file=Path("a.pem"),
            key_file=Path("a.key"),
            client_ca_file=Path("ca.pem"),
        ),
        client_tls=Tls(ca_file=Path("ca.pem"), check_hostname=False),
        user_file=Path("auth.json"),
        account=("penstock-servers", "line\nbreak"),
        verbose=True,
    )
    plain = ChildSettings(name_server="127.0.0.1:9876", host="127.0.0.1")
    for settings in (full, plain):
        line = settings.to_line()
        assert line.count(b"\n") == 1
        assert ChildSettings.from_line(line) == settings
