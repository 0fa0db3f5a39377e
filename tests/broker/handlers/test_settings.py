"""Settings of a running broker: read all, change few, and see the change."""

from __future__ import annotations

import ast
from collections.abc import Awaitable, Callable, Set
from contextlib import AsyncExitStack
from pathlib import Path

import pytest
from tests.support.wire import Wire, body_of

import penstock
from penstock.broker import Broker, BrokerConfig
from penstock.broker.settings import CHANGEABLE
from penstock.nameserver import NameServer, NameServerConfig
from penstock.protocol.bodies.codec import decode_body
from penstock.protocol.bodies.common import DataVersion
from penstock.protocol.bodies.config_text import ConfigText
from penstock.protocol.codes import RequestCode
from penstock.runtime.config import settings
from penstock.store import StoreConfig
from penstock.testing.eventually import eventually

MakeBroker = Callable[..., Awaitable[Broker]]
UPDATE = RequestCode.UPDATE_BROKER_CONFIG


async def change(wire: Wire, **texts: object) -> None:
    body = "".join(f"{key}={value}\n" for key, value in texts.items()).encode()
    await wire.ok(UPDATE, body=body)


async def read(wire: Wire) -> dict[str, str]:
    answer = await wire.ok(RequestCode.GET_BROKER_CONFIG)
    return decode_body(ConfigText, body_of(answer)).settings


async def version(wire: Wire) -> DataVersion:
    answer = await wire.ok(RequestCode.GET_BROKER_CONFIG)
    assert answer.ext is not None
    return decode_body(DataVersion, answer.ext["version"].encode())


async def test_all_settings_are_returned_under_rocketmqs_keys(wire: Wire) -> None:
    texts = await read(wire)
    assert texts["brokerName"] == "broker-a"
    assert texts["fileReservedTime"] == "72"
    assert texts["autoCreateTopicEnable"] == "true"
    assert texts["mappedFileSizeCommitLog"] == str(1 << 20)


async def test_a_change_is_returned_with_a_new_version(wire: Wire) -> None:
    before = await version(wire)
    await change(wire, fileReservedTime=71)
    assert (await read(wire))["fileReservedTime"] == "71"
    assert (await version(wire)).counter == before.counter + 1
    await change(wire, fileReservedTime=71)
    assert (await version(wire)).counter == before.counter + 1, "nothing changed"


async def test_the_store_follows_its_settings(broker: Broker, wire: Wire) -> None:
    await change(wire, fileReservedTime=1, deleteWhen="04;05")
    config = broker.state.storage.store.config
    assert config.file_reserved_hours == 1
    assert config.delete_hours == (4, 5)


async def test_topics_stop_and_start_being_made_by_sends(wire: Wire) -> None:
    await change(wire, autoCreateTopicEnable="false")
    assert (await wire.send("New")).code == 17
    await change(wire, autoCreateTopicEnable="true")
    assert (await wire.send("New")).code == 0


async def test_topics_can_be_made_where_the_broker_started_without(
    make_broker: MakeBroker,
) -> None:
    broker = await make_broker(settings={"auto_create_topic_enable": False})
    async with await Wire.connect(broker.port) as wire:
        assert (await wire.send("New")).code == 17
        await change(wire, autoCreateTopicEnable="true")
        assert (await wire.send("New")).code == 0


async def test_a_broker_restarted_without_auto_creation_makes_no_topics(
    make_broker: MakeBroker,
) -> None:
    broker = await make_broker()
    await broker.stop()
    broker = await make_broker(settings={"auto_create_topic_enable": False})
    async with await Wire.connect(broker.port) as wire:
        assert (await wire.send("New")).code == 17


async def test_groups_stop_being_made_by_pulls(wire: Wire) -> None:
    await wire.send("T")
    await change(wire, autoCreateSubscriptionGroup="false")
    assert (await wire.pull("new", "T", 0)).code == 26
    await change(wire, autoCreateSubscriptionGroup="true")
    assert (await wire.pull("new", "T", 0)).code == 0


async def test_a_broker_can_be_closed_for_readers(wire: Wire) -> None:
    await wire.send("T")
    await change(wire, brokerPermission=2)
    answer = await wire.pull("cg", "T", 0)
    assert (answer.code, answer.ext) == (16, {"forbiddenType": "1"})


async def test_holding_can_be_turned_off(wire: Wire) -> None:
    await wire.send("T")
    await change(wire, longPollingEnable="false", shortPollingTimeMills=10)
    assert (await wire.start_pull("cg", "T", 1, hold_ms=60_000)).code == 19


async def test_name_servers_get_the_changed_permissions(make_broker: MakeBroker) -> None:
    async with AsyncExitStack() as stack:
        names = await stack.enter_async_context(NameServer(NameServerConfig(listen_port=0)))
        broker = await make_broker(name_servers=[names.address])
        wire = await stack.enter_async_context(await Wire.connect(broker.port))
        await wire.send("T")

        def permission() -> int | None:
            route = names.routes.route("T")
            return None if route is None else route.queues[0].permission

        await eventually(lambda: permission() == 6)
        await change(wire, brokerPermission=4)
        await eventually(lambda: permission() == 4)
        await change(wire, brokerPermission=6)
        await eventually(lambda: permission() == 6)


async def test_all_changes_of_a_request_count_or_none(wire: Wire) -> None:
    answer = await wire.request(UPDATE, body=b"fileReservedTime=5\nbrokerPermission=99\n")
    assert answer.code == 29
    assert (await read(wire))["fileReservedTime"] == "72"


@pytest.mark.parametrize(
    "line",
    [
        "brokerName=other",
        "listenPort=1",
        "namesrvAddr=10.0.0.1:9876",
        "brokerIP1=10.0.0.1",
        "mappedFileSizeCommitLog=1024",
        "messageDelayLevel=1s",
        "flushDiskType=SYNC_FLUSH",
    ],
)
async def test_what_must_not_change_is_refused_by_name(wire: Wire, line: str) -> None:
    answer = await wire.request(UPDATE, body=line.encode())
    assert answer.code == 16
    assert answer.remark is not None
    assert line.partition("=")[0] in answer.remark
    assert "fileReservedTime" in answer.remark, "it says what can be changed"


@pytest.mark.parametrize(
    "key", ["configBlackList", "storePathRootDir", "rocketmqHome", "authConfigPath", "no such"]
)
async def test_paths_and_unknown_settings_are_refused_by_name(wire: Wire, key: str) -> None:
    answer = await wire.request(UPDATE, body=f"{key}=/etc/passwd".encode())
    assert answer.code == 29
    assert answer.remark is not None
    assert f"unknown setting {key}" in answer.remark


@pytest.mark.parametrize(
    "body",
    [
        b"brokerPermission=8",
        b"brokerPermission=-1",
        b"brokerPermission=rw",
        b"brokerPermission=",
        b"autoCreateTopicEnable=maybe",
        b"fileReservedTime=1e3",
        b"fileReservedTime=-1",
        b"deleteWhen=25",
        b"deleteWhen=$(rm -rf /)",
        b"shortPollingTimeMills=99999999999999999999999999",
        b"no equals sign",
        b"=value",
        b"\xff\xfe=1",
        b"\n".join(b"fileReservedTime%d=1" % n for n in range(1000)),
    ],
)
async def test_values_that_make_no_sense_are_refused(wire: Wire, body: bytes) -> None:
    before = await read(wire)
    answer = await wire.request(UPDATE, body=body)
    assert answer.code in (1, 29)
    assert answer.remark
    assert await read(wire) == before


async def test_an_empty_change_changes_nothing(wire: Wire) -> None:
    before = await version(wire)
    await wire.ok(UPDATE, body=b"")
    await wire.ok(UPDATE, body=b"# only a comment\n\n")
    assert await version(wire) == before


def test_only_numbers_with_a_range_switches_and_hours_may_change() -> None:
    by_key = {item.key: item for item in (*settings(BrokerConfig), *settings(StoreConfig))}
    for item in map(by_key.__getitem__, CHANGEABLE):
        is_bounded = item.kind is int and item.least is not None and item.most is not None
        assert is_bounded or item.kind is bool or item.key == "deleteWhen"


BUILDERS = ("broker/broker.py", "broker/pop/pop_state.py")
"""Modules whose functions build the parts of a broker."""
READ_AT_THE_START = {
    # Creates the template topic, as `BrokerState.apply_settings` does after a change.
    ("broker/broker.py", "auto_create_topic_enable"),
}


def copies_of(path: Path, names: Set[str], *, is_builder: bool) -> set[str]:
    """The settings that a module reads while parts are built; a function reads them later."""
    found: set[str] = set()

    def visit(node: ast.AST, *, builds: bool) -> None:
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            builds = is_builder or node.name in ("__init__", "__post_init__")
        elif isinstance(node, ast.Lambda):
            builds = False
        elif isinstance(node, ast.Attribute) and builds and node.attr in names:
            found.add(node.attr)
        for child in ast.iter_child_nodes(node):
            visit(child, builds=builds)

    visit(ast.parse(path.read_text()), builds=False)
    return found


@pytest.mark.parametrize(("package", "config"), [("broker", BrokerConfig), ("store", StoreConfig)])
def test_no_part_keeps_a_copy_of_a_setting_that_may_change(package: str, config: type) -> None:
    root = Path(penstock.__file__).parent
    names = {item.name for item in settings(config) if item.is_changeable}
    assert len(names) > 5
    for path in sorted((root / package).rglob("*.py")):
        name = path.relative_to(root).as_posix()
        if name == f"{package}/config.py":
            continue
        copies = copies_of(path, names, is_builder=name in BUILDERS)
        copies -= {setting for module, setting in READ_AT_THE_START if module == name}
        assert not copies, f"{name} copies {copies}: pass a function that reads them"


def test_a_copy_is_found(tmp_path: Path) -> None:
    module = tmp_path / "part.py"
    module.write_text(
        "class Part:\n"
        "    def __init__(self, config, settings):\n"
        "        self.later = lambda: settings.broker.max_pull_bytes\n"
        "        self.copy = config.long_polling_enable\n"
        "    def serve(self):\n"
        "        return self.config.short_polling_time_ms\n"
    )
    names = {"max_pull_bytes", "long_polling_enable", "short_polling_time_ms"}
    assert copies_of(module, names, is_builder=False) == {"long_polling_enable"}
    assert copies_of(module, names, is_builder=True) == {
        "long_polling_enable",
        "short_polling_time_ms",
    }
