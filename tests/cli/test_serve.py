"""``penstock up``, ``nameserver`` and ``broker`` as a user starts them: real processes."""

from __future__ import annotations

import http.client
import json
import os
import pty
import re
import signal
import socket
import subprocess
import sys
from pathlib import Path

import grpc.aio
import pytest
from tests.cli.running import succeed
from tests.support.wire import Wire

from penstock.cli.grpc_port import Port, chosen_port
from penstock.cli.server_plan import ServerPlan, everything, load_settings
from penstock.errors import ConfigError
from penstock.protocol.bodies.registration import RegisterBrokerBody
from penstock.protocol.codes import RequestCode, ResponseCode
from penstock.protocol.headers.nameserver import RegisterBroker
from penstock.proxy.wire import messages as wire
from penstock.proxy.wire.codes import Code
from penstock.proxy.wire.definitions import SERVICE
from penstock.runtime.child_process import ChildProcess

PENSTOCK = [sys.executable, "-m", "penstock"]
READY = (
    r"^ready namesrv=127\.0\.0\.1:(\d+) broker=127\.0\.0\.1:(\d+) "
    r"(?:grpc=\S+ )?console=http://127\.0\.0\.1:\d+/ data=(\S+)$"
)
ANY_PORTS = ["--nameserver-port", "0", "--broker-port", "0"]


def up(data: Path, *more: str) -> ChildProcess:
    return ChildProcess([*PENSTOCK, "up", "--data", str(data), *ANY_PORTS, *more])


def refused(*arguments: str) -> str:
    """Run a command that must fail; what it said."""
    done = subprocess.run(
        [*PENSTOCK, *arguments], capture_output=True, text=True, timeout=60, check=False
    )
    assert done.returncode != 0, done.stdout
    assert "Traceback" not in done.stderr
    return done.stderr


def test_up_prints_one_line_when_it_serves_and_stops_cleanly(tmp_path: Path) -> None:
    with up(tmp_path / "data") as process:
        ready = process.wait_for_line(READY)
        assert ready[3] == str(tmp_path / "data")
        for port in (ready[1], ready[2], str(int(ready[2]) - 2)):
            socket.create_connection(("127.0.0.1", int(port)), timeout=10).close()
        assert (tmp_path / "data/broker-a/abort").exists()
        assert process.terminate() == 0
    assert process.output.splitlines() == [ready[0]]
    assert not (tmp_path / "data/broker-a/abort").exists()


def test_ctrl_c_stops_it_cleanly(tmp_path: Path) -> None:
    with up(tmp_path) as process:
        process.wait_for_line(READY)
        process.send_signal(signal.SIGINT)
        assert process.wait() == 0
    assert not (tmp_path / "broker-a/abort").exists()


def test_an_idle_broker_takes_less_than_100_mb(tmp_path: Path) -> None:
    with up(tmp_path) as process:
        process.wait_for_line(READY)
        status = Path(f"/proc/{process.pid}/status").read_text()
    resident = re.search(r"VmRSS:\s+(\d+) kB", status)
    assert resident is not None
    assert int(resident[1]) < 100_000


def test_an_empty_store_takes_kilobytes(tmp_path: Path) -> None:
    with up(tmp_path) as process:
        process.wait_for_line(READY)
        process.terminate()
    blocks = sum(path.stat().st_blocks for path in tmp_path.rglob("*") if path.is_file())
    assert blocks * 512 < 1_000_000


def test_several_brokers_share_one_name_server(tmp_path: Path) -> None:
    with up(tmp_path, "--brokers", "2") as process:
        ready = process.wait_for_line(
            r"^ready namesrv=\S+ broker=\S+ broker=\S+ grpc=\S+ console=\S+ data="
        )
        assert ready is not None
        assert process.terminate() == 0
    assert (tmp_path / "broker-a/lock").exists()
    assert (tmp_path / "broker-b/lock").exists()
    said = refused("up", "--data", str(tmp_path), *ANY_PORTS)
    assert "broker-a, broker-b" in said
    assert "--brokers 2" in said


def test_a_name_server_and_a_broker_run_alone(tmp_path: Path) -> None:
    name_server = ChildProcess(
        [*PENSTOCK, "nameserver", "--nameserver-port", "0", "--data", str(tmp_path)]
    )
    with name_server:
        address = name_server.wait_for_line(r"^ready namesrv=(\S+) ")[1]
        broker = ChildProcess(
            [
                *PENSTOCK,
                "broker",
                "--namesrv",
                address,
                "--broker-port",
                "0",
                "--data",
                str(tmp_path),
            ]
        )
        with broker:
            broker.wait_for_line(r"^ready broker=\S+ data=")
            assert broker.terminate() == 0
        assert name_server.terminate() == 0


def test_a_broker_conf_of_rocketmq_loads_and_unknown_keys_are_named(tmp_path: Path) -> None:
    conf = tmp_path / "broker.conf"
    conf.write_text(
        "# as found in the field\n"
        "brokerClusterName=Shop\nbrokerName=broker-x\nflushDiskType=SYNC_FLUSH\n"
        "fileReservedTime = 48\nstorePathRootDir=/somewhere\nwhatIsThis=1\n"
        "flushDiskTyp=SYNC_FLUSH\nfileReservedTime = 72\n"
    )
    with up(tmp_path / "data", "--config", str(conf)) as process:
        process.wait_for_line(READY)
        process.wait_for_line("unknown setting storePathRootDir")
        process.wait_for_line("unknown setting whatIsThis")
        process.wait_for_line("flushDiskTyp ignored; did you mean flushDiskType?")
        process.wait_for_line("setting fileReservedTime given twice")
    assert (tmp_path / "data/broker-x/lock").exists()


def test_a_bad_config_value_is_one_sentence(tmp_path: Path) -> None:
    conf = tmp_path / "broker.conf"
    conf.write_text("listenPort=many\n")
    said = refused("up", "--data", str(tmp_path), "--config", str(conf))
    assert "listenPort" in said
    assert "many" in said
    assert len(said.splitlines()) == 1
    missing = refused("up", "--data", str(tmp_path), "--config", str(tmp_path / "none"))
    assert "cannot be read" in missing


@pytest.mark.parametrize("port", ["1", "2"])
def test_a_port_without_room_for_the_vip_port_below_is_one_sentence(
    tmp_path: Path, port: str
) -> None:
    said = refused("up", "--data", str(tmp_path), "--nameserver-port", "0", "--broker-port", port)
    assert f"listenPort is {port}; expected 0, or 3 to 65535" in said
    assert len(said.splitlines()) == 1


@pytest.mark.skipif(not socket.has_dualstack_ipv6(), reason="this machine has no IPv6")
def test_addresses_of_ipv6_can_be_used_as_they_are_printed(tmp_path: Path) -> None:
    with up(tmp_path, "--bind", "::1") as process:
        ready = process.wait_for_line(
            r"^ready namesrv=(\[::1\]:\d+) broker=\[::1\]:\d+ grpc=\[::1\]:\d+ console="
        )
        succeed("topic", "create", "orders", "--namesrv", ready[1])


def test_a_port_in_use_is_one_sentence_with_a_way_out(tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = str(taken.getsockname()[1])
        said = refused("up", "--data", str(tmp_path), "--nameserver-port", port)
    assert f"127.0.0.1:{port}: address already in use" in said
    assert "--nameserver-port PORT" in said
    assert len(said.splitlines()) == 1


def test_an_address_of_another_machine_is_not_reported_as_in_use(tmp_path: Path) -> None:
    # Reserved for documentation, so no machine has it.
    flags = ["--data", str(tmp_path), "--bind", "203.0.113.77", "--insecure", *ANY_PORTS]
    said = refused("up", *flags)
    assert "an address of this machine" in said
    assert "stop what listens there" not in said


def test_a_broker_port_in_use_names_its_own_flag(tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = str(taken.getsockname()[1])
        flags = ["--data", str(tmp_path), "--broker-port", port]
        for said in (
            refused("up", *flags, "--nameserver-port", "0"),
            refused("broker", *flags),
        ):
            assert port in said
            assert "--broker-port PORT" in said


def test_the_ready_line_can_be_json(tmp_path: Path) -> None:
    with up(tmp_path, "--json") as process:
        ready = json.loads(process.wait_for_line(r"^\{.*\}$")[0])
        assert ready["ready"] is True
        assert ready["data"] == str(tmp_path)
        assert ready["pid"] == process.pid
        for address in (ready["namesrv"], *ready["brokers"]):
            host, _, port = address.rpartition(":")
            socket.create_connection((host, int(port)), timeout=10).close()
        assert process.terminate() == 0


def test_a_user_at_a_terminal_gets_a_hint_what_to_do_next(tmp_path: Path) -> None:
    master, terminal = pty.openpty()
    serving = subprocess.Popen(
        [*PENSTOCK, "up", "--data", str(tmp_path), *ANY_PORTS],
        stdin=subprocess.DEVNULL,
        stdout=terminal,
        stderr=terminal,
    )
    os.close(terminal)
    shown = b""
    while b"penstock tail" not in shown:
        shown += os.read(master, 4096)
    serving.send_signal(signal.SIGINT)
    assert serving.wait(60) == 0
    os.close(master)
    namesrv = re.search(r"ready namesrv=(\S+) ", shown.decode())
    assert namesrv is not None
    assert f"penstock send orders hello --namesrv {namesrv[1]}" in shown.decode()


def test_a_store_in_use_is_one_sentence_with_a_way_out(tmp_path: Path) -> None:
    with up(tmp_path) as process:
        process.wait_for_line(READY)
        said = refused("up", "--data", str(tmp_path), *ANY_PORTS)
        assert "writes to store" in said
        assert len(said.splitlines()) == 1


@pytest.mark.parametrize("command", ["up", "broker"])
def test_a_store_given_for_the_directory_of_stores_is_not_hidden(
    command: str, tmp_path: Path
) -> None:
    store = tmp_path / "broker-a"
    (store / "commitlog").mkdir(parents=True)
    ports = ANY_PORTS if command == "up" else ANY_PORTS[-2:]
    said = refused(command, "--data", str(store), *ports)
    assert "is itself the store of one broker" in said
    assert f"try: {tmp_path}, if the broker is called broker-a" in said
    assert sorted(path.name for path in store.iterdir()) == ["commitlog"]


def test_a_data_directory_that_cannot_be_is_one_sentence(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("not a directory")
    said = refused("up", "--data", str(tmp_path / "file"), *ANY_PORTS)
    assert "is a file" in said
    assert "expected a directory" in said
    said = refused("up", "--data", str(tmp_path / "file/within"), *ANY_PORTS)
    assert "cannot be written" in said
    assert "give another one" in said


@pytest.mark.parametrize("address", ["nonsense", "127.0.0.1:9876;http://here", "127.0.0.1:0"])
def test_a_name_server_that_is_no_address_is_one_sentence(address: str, tmp_path: Path) -> None:
    said = refused("broker", "--data", str(tmp_path), "--broker-port", "0", "--namesrv", address)
    assert "expected host:port" in said
    assert len(said.splitlines()) == 1


def test_a_broker_registers_with_the_name_servers_of_its_file(tmp_path: Path) -> None:
    conf = tmp_path / "broker.conf"
    name_server = ChildProcess(
        [*PENSTOCK, "nameserver", "--nameserver-port", "0", "--data", str(tmp_path)]
    )
    with name_server:
        address = name_server.wait_for_line(r"^ready namesrv=(\S+) ")[1]
        conf.write_text(f"namesrvAddr = {address} ; \n")
        flags = ["--config", str(conf), "--broker-port", "0", "--data", str(tmp_path)]
        with ChildProcess([*PENSTOCK, "broker", *flags]) as broker:
            where = broker.wait_for_line(r"^ready broker=(\S+) data=")[1]
            listed = succeed("cluster", "overview", "--namesrv", address, "--json").json
            assert [broker["address"] for broker in listed] == [where]


def test_a_flag_wins_over_the_name_servers_of_the_file(tmp_path: Path) -> None:
    conf = tmp_path / "broker.conf"
    conf.write_text("namesrvAddr= one:9876 ;two:9876\n")
    plan = ServerPlan(data=tmp_path, config_file=conf)
    assert load_settings(plan).broker.name_servers == ("one:9876", "two:9876")
    plan = ServerPlan(data=tmp_path, config_file=conf, namesrv="three:9876")
    assert load_settings(plan).broker.name_servers == ("three:9876",)


def test_a_name_server_of_the_file_that_is_no_address_is_one_sentence(tmp_path: Path) -> None:
    conf = tmp_path / "broker.conf"
    conf.write_text("namesrvAddr=127.0.0.1:9876;nonsense\n")
    said = refused("broker", "--data", str(tmp_path), "--config", str(conf))
    assert "namesrvAddr (--namesrv) has 'nonsense'; expected host:port" in said
    assert len(said.splitlines()) == 1


def test_up_says_that_it_leaves_the_name_servers_of_the_file_aside(tmp_path: Path) -> None:
    conf = tmp_path / "broker.conf"
    conf.write_text("namesrvAddr=mq.example.com:9876\n")
    with up(tmp_path, "--config", str(conf)) as process:
        process.wait_for_line("namesrvAddr ignored: up registers with its own name server")
        process.wait_for_line(READY)


def test_an_export_that_cannot_be_written_is_one_sentence(tmp_path: Path) -> None:
    with up(tmp_path / "data") as process:
        process.wait_for_line(READY)
        assert process.terminate() == 0
    output = str(tmp_path / "nowhere" / "messages.jsonl")
    said = refused("store", "export", str(tmp_path / "data"), "--output", output)
    assert "No such file or directory; expected a file in a directory that exists" in said
    assert len(said.splitlines()) == 1


@pytest.mark.parametrize("command", ["up", "nameserver", "broker"])
def test_other_machines_are_served_only_when_asked_for(command: str, tmp_path: Path) -> None:
    said = refused(command, "--data", str(tmp_path), "--bind", "0.0.0.0")
    assert "--insecure" in said


def test_a_wildcard_address_must_be_advertised_to_clients_as_a_real_one(tmp_path: Path) -> None:
    said = refused("up", "--data", str(tmp_path), "--bind", "0.0.0.0", "--insecure", *ANY_PORTS)
    assert "--advertise" in said


def test_help_shows_an_example() -> None:
    for command in ("up", "nameserver", "broker", "demo"):
        done = subprocess.run(
            [*PENSTOCK, command, "--help"], capture_output=True, text=True, timeout=60, check=True
        )
        assert "Example" in done.stdout


@pytest.mark.parametrize("others", [True, False])
async def test_other_brokers_may_register_only_if_the_option_says_so(
    tmp_path: Path, others: bool
) -> None:
    plan = ServerPlan(data=tmp_path, broker_port=0, other_brokers=others)
    async with everything(plan) as running:
        assert running.namesrv is not None
        async with await Wire.connect(int(running.namesrv.rpartition(":")[2])) as wire:
            answer = await wire.request(
                RequestCode.REGISTER_BROKER,
                RegisterBroker("broker-z", "10.0.0.5:1", "DefaultCluster", "10.0.0.5:2", 0),
                RegisterBrokerBody(),
            )
    assert (answer.code == ResponseCode.SUCCESS) == others


@pytest.mark.spec("O5")
def test_each_broker_has_a_port_for_its_metrics(tmp_path: Path) -> None:
    def get(address: str, path: str) -> tuple[int, str]:
        host, _, port = address.rpartition(":")
        connection = http.client.HTTPConnection(host, int(port), timeout=60)
        try:
            connection.request("GET", path)
            answer = connection.getresponse()
            return answer.status, answer.read().decode()
        finally:
            connection.close()

    with up(tmp_path, "--brokers", "2", "--metrics", "0", "--json") as process:
        ready = json.loads(process.wait_for_line(r'^\{"ready".*$', 60)[0])
        assert len(set(ready["metrics"])) == 2
        for address, name in zip(ready["metrics"], ("broker-a", "broker-b"), strict=True):
            assert get(address, "/readyz") == (200, "ready\n")
            status, text = get(address, "/metrics")
            assert status == 200
            assert f'node_id="{name}"' in text
        assert process.terminate() == 0


@pytest.mark.spec("O5")
def test_metrics_can_be_set_in_a_file_and_are_off_without(tmp_path: Path) -> None:
    file = tmp_path / "broker.conf"
    file.write_text("metricsExporterType=PROM\nmetricsPromExporterPort=15557\n")
    found = load_settings(ServerPlan(data=tmp_path, config_file=file))
    assert found.warnings == []
    assert (found.broker.exports_metrics, found.broker.metrics_prom_exporter_port) == (True, 15557)
    assert not load_settings(ServerPlan(data=tmp_path)).broker.exports_metrics
    # What the broker listens on is not what its metrics listen on: they need no user.
    assert found.broker.metrics_prom_exporter_host == "127.0.0.1"
    file.write_text("metricsLabel=zone\n")
    with pytest.raises(ConfigError, match="metricsLabel has 'zone'"):
        load_settings(ServerPlan(data=tmp_path, config_file=file))


@pytest.mark.spec("O14")
def test_logs_are_json_by_a_flag(tmp_path: Path) -> None:
    with up(tmp_path, "--log-format", "json", "--verbose") as process:
        process.wait_for_line(READY)
        assert process.terminate() == 0
    lines = [line for line in process.output.splitlines() if not line.startswith("ready ")]
    events = [json.loads(line)["event"] for line in lines]
    assert "broker started" in events
    assert "name server started" in events


# The gRPC endpoint


@pytest.mark.spec("G7")
def test_up_serves_grpc_on_a_port_of_the_ready_line(tmp_path: Path) -> None:
    with up(tmp_path) as first:
        taken = first.wait_for_line(r"^ready .* grpc=127\.0\.0\.1:(\d+) ")
        with socket.create_connection(("127.0.0.1", int(taken[1])), timeout=10):
            pass
        said = refused("up", "--data", str(tmp_path / "b"), *ANY_PORTS, "--grpc-port", taken[1])
        assert f"127.0.0.1:{taken[1]}" in said
        assert "--grpc-port PORT" in said


def test_up_without_grpc(tmp_path: Path) -> None:
    with up(tmp_path, "--grpc-port", "off") as process:
        assert "grpc=" not in process.wait_for_line(READY)[0]


@pytest.mark.parametrize("given", ["", "-1", "65536", "on", "8081x"])
def test_a_bad_grpc_port_is_named(given: str) -> None:
    with pytest.raises(ConfigError, match=re.escape(repr(given))):
        chosen_port(given)


def test_which_grpc_port_is_chosen() -> None:
    assert chosen_port(None) == Port(8081, is_default=True)
    assert chosen_port(None, any_port=True) == Port(0)
    assert chosen_port("off") is None
    assert chosen_port("0") == Port(0)


async def test_a_proxy_serves_a_cluster(tmp_path: Path) -> None:
    with up(tmp_path, "--grpc-port", "off") as cluster:
        namesrv = f"127.0.0.1:{cluster.wait_for_line(READY)[1]}"
        succeed("topic", "create", "orders", "--namesrv", namesrv)
        command = [*PENSTOCK, "proxy", "--namesrv", namesrv, "--grpc-port", "0"]
        with ChildProcess(command) as proxy:
            ready = proxy.wait_for_line(rf"^ready namesrv={namesrv} grpc=(127\.0\.0\.1:\d+)$")
            async with grpc.aio.insecure_channel(ready[1]) as channel:
                call = channel.unary_unary(
                    f"/{SERVICE}/QueryRoute",
                    request_serializer=wire.QueryRouteRequest.SerializeToString,
                    response_deserializer=wire.QueryRouteResponse.FromString,
                )
                request = wire.QueryRouteRequest(topic=wire.Resource(name="orders"))
                route = await call(request, metadata=(("x-mq-client-id", "c"),), timeout=20)
                assert route.status.code == Code.OK
                assert route.message_queues[0].broker.name == "broker-a"
            assert proxy.terminate() == 0
    said = refused("proxy", "--namesrv", "nonsense", "--grpc-port", "0")
    assert "nonsense" in said
