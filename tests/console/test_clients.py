"""Clients: who is connected, what a consumer does now, and a message handled once more."""

from __future__ import annotations

import re

import pytest
from tests.console.browsing import Browser, text_of
from tests.support.wire import Wire

import penstock
from penstock import Message
from penstock.protocol.commands import Language
from penstock.protocol.versions import readable_version
from penstock.testing.embedded import Embedded
from penstock.testing.eventually import eventually


@pytest.mark.spec("C19")
async def test_a_consumer_is_listed_shows_its_stacks_and_handles_a_message_again(
    mq: Embedded, browser: Browser
) -> None:
    got: list[bytes] = []
    mq.admin.create_topic("calls", queues=1)
    consumer = penstock.PushConsumer("callers", namesrv=mq.namesrv, start_from="first")

    @consumer.on("calls")
    def take(message: penstock.StoredMessage) -> None:
        got.append(message.body)

    with consumer, penstock.Producer("ringers", namesrv=mq.namesrv) as producer:
        receipt = producer.send(Message("calls", b"once"))
        await eventually(lambda: got, 60)
        await eventually(lambda: mq.admin.clients("callers"), 60)
        [client] = mq.admin.clients("callers")
        shown = await browser.read("clients")
        assert f"callers {client.client_id} {client.address} python" in shown
        assert "ringers" in shown
        member = await browser.read("groups", "callers", "members", client.client_id)
        assert "calls broker-a:0" in member
        assert "Stacks" in member
        assert 'File "' in member
        page = await browser.open("messages", receipt.msg_id, topic="calls")
        assert re.search(rf'<option value="callers {re.escape(client.client_id)}"', page)
        done = await browser.send(
            "messages", receipt.offset_msg_id, "handle", client=f"callers {client.client_id}"
        )
        assert done.status_code == 200, text_of(done.text)
        assert "CR_SUCCESS" in text_of(done.text)
        assert 'class="notice good"' in done.text
    assert got == [b"once", b"once"]


async def test_timer_messages_are_listed_with_their_time(mq: Embedded, browser: Browser) -> None:
    mq.admin.create_topic("alarms", queues=1)
    with penstock.Producer("ringers", namesrv=mq.namesrv) as producer:
        producer.send(Message("alarms", b"wake up", delay="7m30s", keys=["bed-1"]))

    async def listed() -> bool:
        shown = await browser.read("delays")
        return re.search(r"in 7 min alarms bed-1 [0-9A-F]{32}", shown) is not None

    await eventually(listed, 60)


async def test_a_cluster_without_users_did_answer(browser: Browser) -> None:
    refused = await browser.client.get(browser.path("access"))
    shown = text_of(refused.text)
    assert "Not supported by this cluster" in shown
    assert "authentication is off" in shown
    assert "did not answer" not in shown
    refused = await browser.client.get("/api/v1" + browser.path("access"))
    assert refused.json()["title"] == "Not supported by this cluster"


@pytest.mark.spec("C19")
async def test_a_java_client_has_its_language_and_version(mq: Embedded, browser: Browser) -> None:
    host, _, port = mq.admin.cluster()[0].address.rpartition(":")
    wire = await Wire.connect(int(port), host, language=Language.JAVA, version=453)
    async with wire:
        await wire.heartbeat("10.0.0.7@1234", consumer="java-billing", topics=["calls"])
        shown = await browser.read("clients")
        assert "java-billing 10.0.0.7@1234" in shown
        found = re.search(r"java-billing 10\.0\.0\.7@1234 \S+ java (\S+)", shown)
        assert found is not None
        assert found[1] == readable_version(453)
        # It answers no questions about itself, and the page says so.
        refused = await browser.client.get(
            browser.path("groups", "java-billing", "members", "10.0.0.7@1234")
        )
        assert refused.status_code == 502
        assert "did not answer" in text_of(refused.text)
