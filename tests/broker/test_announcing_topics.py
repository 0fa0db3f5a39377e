"""A new topic is registered alone with a name server that knows the broker, and only there."""

from __future__ import annotations

import contextlib
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
from tests.support.asking import put_topic, route
from tests.support.stage import Stage, in_virtual_time

from penstock.broker.tables.topics import topic_config
from penstock.protocol.bodies.codec import decode_body
from penstock.protocol.bodies.registration import V5_0_0, decode_registration
from penstock.protocol.bodies.routes import QueueData, TopicRouteData
from penstock.protocol.codes import RequestCode, ResponseCode
from penstock.protocol.commands import VERSION, Command
from penstock.protocol.headers.admin import DeleteTopic
from penstock.protocol.headers.nameserver import DeleteTopicInNamesrv
from penstock.remoting import Peer, Server
from penstock.testing.eventually import eventually

ALL, ONE = RequestCode.REGISTER_BROKER, RequestCode.REGISTER_TOPIC_IN_NAMESRV


class Listening:
    """A name server that only records requests."""

    def __init__(self) -> None:
        self.codes: list[int] = []
        self.topics: list[str] = []
        self.queues: list[QueueData] = []
        self.answers: dict[int, int] = {}
        self.version = VERSION
        self.server = Server(self._note, "127.0.0.1", 0)

    def _note(self, peer: Peer, command: Command) -> Command:
        code = self.answers.get(command.code, 0)
        if command.code in (ALL, ONE):
            self.codes.append(command.code)
            body = bytes(command.body or b"")  # type: ignore[arg-type]
            if code == 0 and command.code == ALL:
                self.topics += decode_registration(body).topics.topic_config_table
            elif code == 0:
                self.topics.append((command.ext or {})["topic"])
                self.queues += decode_body(TopicRouteData, body).queue_datas
        return Command(code, version=self.version)

    def forget(self) -> None:
        self.codes.clear()
        self.topics.clear()

    @property
    def address(self) -> str:
        return f"127.0.0.1:{self.server.port}"


@contextlib.asynccontextmanager
async def listening() -> AsyncIterator[Listening]:
    names = Listening()
    await names.server.start()
    try:
        yield names
    finally:
        await names.server.stop(0)


async def test_topics_created_by_sends_and_requests_are_registered_alone(tmp_path: Path) -> None:
    async with listening() as names, Stage(tmp_path) as stage:
        wire = await stage.connect(await stage.broker(namesrv_addr=names.address))
        assert set(names.codes) == {ALL}
        names.forget()
        assert (await wire.send("T")).code == 0
        assert (names.codes, names.topics) == ([ONE], ["T"])
        assert names.queues == [QueueData("broker-a", 4, 4, 6, 0)]
        await put_topic(wire, "U", 3)
        assert set(names.codes) == {ONE}
        assert names.topics[-1] == "U"
        names.forget()
        await put_topic(wire, "U", 3)
        assert names.topics == ["U"], "who asks for a topic again may miss its route"


async def test_a_deleted_topic_and_many_new_ones_register_the_whole_table(tmp_path: Path) -> None:
    async with listening() as names, Stage(tmp_path) as stage:
        broker = await stage.broker(namesrv_addr=names.address)
        wire = await stage.connect(broker)
        await wire.send("T")
        names.forget()
        await wire.ok(RequestCode.DELETE_TOPIC_IN_BROKER, DeleteTopic("T"))
        await eventually(lambda: names.codes == [ALL])
        names.forget()
        for number in range(50):
            broker.state.topics.put(topic_config(f"T-{number}", 1, 1))
        await eventually(lambda: {f"T-{n}" for n in range(50)} <= set(names.topics))
        assert set(names.codes) == {ALL}


@pytest.mark.spec("S11")
async def test_a_topic_that_is_deleted_while_another_is_new_registers_the_whole_table(
    tmp_path: Path,
) -> None:
    """The new one alone would leave the deleted one at name servers that drop unnamed topics."""
    async with Stage(tmp_path) as stage:
        server = await stage.name_server(delete_topic_with_broker_registration=True)
        names = await stage.connect(server)
        broker = await stage.broker()
        await put_topic(await stage.connect(broker), "T", 1)
        assert await route(names, "T") is not None
        broker.state.topics.put(topic_config("U", 1, 1))
        broker.state.topics.remove("T")
        await eventually(lambda: "U" in server.routes.topics().topic_list)
        assert await route(names, "T") is None


@pytest.mark.parametrize(
    "code", [ResponseCode.REQUEST_CODE_NOT_SUPPORTED, ResponseCode.SYSTEM_ERROR]
)
async def test_a_name_server_that_refuses_a_single_topic_gets_the_whole_table(
    tmp_path: Path, code: int
) -> None:
    async with listening() as names, Stage(tmp_path) as stage:
        names.answers = {ONE: code}
        wire = await stage.connect(await stage.broker(namesrv_addr=names.address))
        names.forget()
        await wire.send("T")
        assert names.codes == [ONE, ALL]
        assert "T" in names.topics
        names.forget()
        await wire.send("U")
        assert names.codes == [ONE, ALL]
        assert {"T", "U"} <= set(names.topics)


async def test_a_name_server_of_4_is_not_asked_what_it_would_not_answer(tmp_path: Path) -> None:
    async with listening() as names, Stage(tmp_path) as stage:
        names.version = V5_0_0 - 1
        wire = await stage.connect(await stage.broker(namesrv_addr=names.address))
        names.forget()
        await wire.send("T")
        assert names.codes == [ALL]
        assert "T" in names.topics


async def test_after_a_lost_connection_the_whole_table_is_registered(tmp_path: Path) -> None:
    async with listening() as names, Stage(tmp_path) as stage:
        wire = await stage.connect(await stage.broker(namesrv_addr=names.address))
        await wire.send("T")
        names.forget()
        for peer in list(names.server.peers):
            peer.close("test")
        await eventually(lambda: not names.server.peers)
        await wire.send("U")
        assert names.codes == [ALL]
        assert {"T", "U", "TBW102"} <= set(names.topics)


async def test_a_slave_never_speaks_of_a_topic_alone(tmp_path: Path) -> None:
    async with listening() as names, Stage(tmp_path) as stage:
        broker = await stage.broker(
            namesrv_addr=names.address, broker_role="SLAVE", broker_id=1, broker_name="broker-a"
        )
        names.forget()
        broker.state.topics.put(topic_config("T", 1, 1))
        await eventually(lambda: "T" in names.topics)
        assert set(names.codes) == {ALL}


@in_virtual_time
async def test_topics_registered_alone_do_not_delay_the_next_registration(tmp_path: Path) -> None:
    async with listening() as names, Stage(tmp_path) as stage:
        wire = await stage.connect(await stage.broker(namesrv_addr=names.address))
        names.forget()
        for number in range(20):
            await wire.send(f"T-{number}")
            await stage.clock.sleep(10)
        assert 5 <= names.codes.count(ALL) <= 8


async def test_a_name_server_made_to_forget_a_topic_learns_it_again(tmp_path: Path) -> None:
    async with Stage(tmp_path) as stage:
        names = await stage.connect(await stage.name_server())
        wire = await stage.connect(await stage.broker())
        await put_topic(wire, "T", 3)
        await names.ok(RequestCode.DELETE_TOPIC_IN_NAMESRV, DeleteTopicInNamesrv("T"))
        assert await route(names, "T") is None
        await put_topic(wire, "T", 3)
        assert await route(names, "T") is not None
