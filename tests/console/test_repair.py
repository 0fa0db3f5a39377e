"""Dead letters repaired in the browser, the life of a message, reset with preview.

The cluster is in virtual time: retries come when the test lets time pass.
"""

from __future__ import annotations

import re
from collections.abc import AsyncIterator, Iterator
from typing import Any

import pytest
from tests.console.browsing import Browser, browsing, text_of

import penstock
from penstock import Message, Receipt
from penstock.testing.embedded import Embedded, embedded
from penstock.testing.eventually import eventually


@pytest.fixture(scope="module")
def mq() -> Iterator[Embedded]:
    with embedded(clock="virtual") as running:
        yield running


@pytest.fixture
async def browser(mq: Embedded) -> AsyncIterator[Browser]:
    async with browsing(mq.namesrv) as browser:
        yield browser


def send(mq: Embedded, topic: str, *bodies: bytes) -> list[Receipt]:
    mq.admin.create_topic(topic, queues=1)
    with penstock.Producer("shop", namesrv=mq.namesrv) as producer:
        return [producer.send(Message(topic, body, keys=[body.decode()])) for body in bodies]


def die(mq: Embedded, group: str, topic: str, *bodies: bytes) -> list[Receipt]:
    """Have all messages fail until they are dead letters."""
    receipts = send(mq, topic, *bodies)
    consumer = penstock.PushConsumer(group, namesrv=mq.namesrv, start_from="first", max_retries=1)

    @consumer.on(topic)
    def fail(message: penstock.StoredMessage) -> None:
        raise ValueError(f"amount cannot be read: {message.body.decode()[:1]}")

    with consumer:
        mq.clock.advance("60s")
    assert mq.admin.dead_letter_queues(group)[0].pending == len(bodies)
    return receipts


def consume(mq: Embedded, group: str, topic: str, *, trace: bool = False) -> list[bytes]:
    """What a working consumer of the group gets."""
    got: list[bytes] = []
    consumer = penstock.PushConsumer(group, namesrv=mq.namesrv, start_from="first", trace=trace)

    @consumer.on(topic)
    def take(message: penstock.StoredMessage) -> None:
        got.append(message.body)

    with consumer:
        mq.clock.advance("30s")
    return got


async def finished(browser: Browser, response_text: str) -> str:
    """The text of the job's page when it has ended."""
    number = re.search(r"/jobs/(\d+)", response_text)
    assert number is not None, text_of(response_text)

    async def ended() -> str | None:
        text = await browser.read("jobs", number[1])
        return None if " running " in text else text

    shown = await eventually(ended, 60)
    assert shown is not None
    return shown


@pytest.mark.spec("C16", "C29")
async def test_letters_are_grouped_by_reason_edited_tried_and_redriven(
    mq: Embedded, browser: Browser
) -> None:
    die(mq, "fixers", "bills", b"?1", b"?2", b"!3")
    page = await browser.open("groups", "fixers", "dead-letters")
    shown = text_of(page)
    assert "3 pending, 3 stored" in shown
    assert "ValueError: amount cannot be read: ? 2 letters" in shown
    assert "ValueError: amount cannot be read: ! 1 letter" in shown
    ids = re.findall(r'name="id" value="(\w+)"', page)
    letters = {
        one.message.body: one.message.offset_msg_id for one in mq.admin.dead_letters("fixers")
    }
    assert set(ids) == set(letters.values())
    one = letters[b"?1"]
    assert "As it died ?1" in await browser.read("groups", "fixers", "dead-letters", one)
    edit: dict[str, Any] = {"id": one, "body": "11", "tag": "mended", "keys": "?1", "rate": "100"}
    plan = await browser.send("groups", "fixers", "dead-letters", "plan", **edit)
    assert "Dry run: 1 letter would be sent" in text_of(plan.text)
    assert consume(mq, "fixers", "bills") == []
    started = await browser.send(
        "groups", "fixers", "dead-letters", "redrive", follow=False, **edit
    )
    job = await finished(browser, started.headers["location"])
    assert "done 1 of 1 sent" in job
    assert consume(mq, "fixers", "bills") == [b"11"]
    rest = await browser.send(
        "groups",
        "fixers",
        "dead-letters",
        "redrive",
        follow=False,
        reason="ValueError: amount cannot be read: ?",
        rate="100",
    )
    assert "done 1 of 1" in await finished(browser, rest.headers["location"])
    assert consume(mq, "fixers", "bills") == [b"?2"]
    assert "1 pending" in await browser.read("groups", "fixers", "dead-letters")
    audit = await browser.read("audit")
    assert "redrive fixers" in audit
    assert "'before': [2, '" in audit
    assert "?1" not in audit.replace(one, "")


@pytest.mark.spec("C17")
async def test_a_redrive_is_safe_to_repeat_and_refused_where_it_cannot_work(
    mq: Embedded, browser: Browser
) -> None:
    die(mq, "again", "twice", b"a")
    [letter] = mq.admin.dead_letters("again")
    order: dict[str, Any] = {"id": letter.message.offset_msg_id, "rate": "100"}
    first = await browser.send("groups", "again", "dead-letters", "redrive", follow=False, **order)
    await finished(browser, first.headers["location"])
    second = await browser.send("groups", "again", "dead-letters", "redrive", **order)
    assert second.status_code == 400
    assert "redriven before" in text_of(second.text)
    # Another console, as after a crash, knows it by the copy itself.
    async with browsing(mq.namesrv) as other:
        third = await other.send("groups", "again", "dead-letters", "redrive", **order)
        assert third.status_code == 400
    assert consume(mq, "again", "twice") == [b"a"]


async def test_a_body_that_should_be_json_is_checked(mq: Embedded, browser: Browser) -> None:
    die(mq, "jsons", "parsed", b'{"total":"?"}')
    [letter] = mq.admin.dead_letters("jsons")
    refused = await browser.send(
        "groups",
        "jsons",
        "dead-letters",
        "plan",
        id=letter.message.offset_msg_id,
        body='{"total":}',
        check_json="1",
    )
    assert refused.status_code == 400
    assert "no JSON" in text_of(refused.text)


async def test_letters_are_put_aside_and_deleted_on_purpose_only(
    mq: Embedded, browser: Browser
) -> None:
    die(mq, "aside", "old", b"a", b"b")
    kept = await browser.send("groups", "aside", "dead-letters", "aside")
    assert kept.status_code == 400
    assert mq.admin.dead_letter_queues("aside")[0].pending == 2
    await browser.send("groups", "aside", "dead-letters", "aside", sure="1")
    assert mq.admin.dead_letter_queues("aside")[0].pending == 0
    wrong = await browser.send("groups", "aside", "dead-letters", "delete", name="other")
    assert wrong.status_code == 400
    await browser.send("groups", "aside", "dead-letters", "delete", name="aside")
    assert "aside" not in mq.admin.dead_letter_groups()


@pytest.mark.spec("C12")
async def test_the_life_of_a_message_has_its_steps_in_order_with_reasons(
    mq: Embedded, browser: Browser
) -> None:
    [receipt] = die(mq, "lively", "lives", b"?x")
    [letter] = mq.admin.dead_letters("lively")
    await browser.send(
        "groups",
        "lively",
        "dead-letters",
        "redrive",
        id=letter.message.offset_msg_id,
        body="fine",
        tag="",
        keys="k",
        rate="100",
    )
    await eventually(lambda: mq.admin.dead_letter_queues("lively")[0].pending == 0)
    assert consume(mq, "lively", "lives", trace=True) == [b"fine"]
    life = mq.admin.message_life(receipt.msg_id, topic="lives")
    assert [one.kind for one in life.events] == [
        "sent",
        "stored",
        "failed",
        "dead",
        "redriven",
        "handled",
        "passed",
    ]
    queries: list[dict[str, Any]] = [{"topic": "lives"}, {}]
    for query in queries:
        page = await browser.open("messages", receipt.msg_id, **query)
        shown = text_of(page)
        assert "ValueError: amount cannot be read: ?" in shown
        steps = (
            "attempt 1 failed",
            "died after 2 attempts",
            "redriven, edited",
            "handled at 127.0.0.1 in ",
            "passed: ",
        )
        places = [shown.index(step) for step in steps]
        assert places == sorted(places)
        assert '<svg class="life"' in page
    # The dead letter leads to the same life.
    assert "redriven, edited" in await browser.read("messages", letter.message.offset_msg_id)


@pytest.mark.spec("C15")
async def test_a_reset_shows_its_plan_and_moves_only_by_it(mq: Embedded, browser: Browser) -> None:
    send(mq, "moves", *(b"%d" % number for number in range(10)))
    assert len(consume(mq, "movers", "moves")) == 10
    path = ("groups", "movers", "reset")
    page = await browser.open(*path, topic="moves", to="first")
    assert "10 messages come again, 0 are left out." in text_of(page)
    planned = mq.admin.plan_reset("movers", "moves", "first")
    assert f"broker-a:0 10 {planned[0].target} -10 10" in text_of(page)
    digest = re.search(r'name="plan" value="(\w+)"', page)
    assert digest is not None
    goal: dict[str, Any] = {"topic": "moves", "to": "first", "plan": digest[1]}
    done = await browser.send(*path, **goal)
    assert "movers was moved" in text_of(done.text)
    assert mq.admin.group_lag("movers", topic="moves")[0].committed == 0
    # The plan that was shown no longer holds.
    old = await browser.send(*path, **goal)
    assert old.status_code == 409
    assert "The group has moved meanwhile" in text_of(old.text)
    ahead = await browser.open(*path, topic="moves", to="last")
    digest = re.search(r'name="plan" value="(\w+)"', ahead)
    assert digest is not None
    goal = {"topic": "moves", "to": "last", "plan": digest[1]}
    for name, status in (("", 400), ("mover", 400), ("movers", 200)):
        moved = await browser.send(*path, **goal, name=name)
        assert moved.status_code == status, name
    assert mq.admin.group_lag("movers", topic="moves")[0].committed == 10
    assert "reset movers" in await browser.read("audit")


@pytest.mark.spec("C18")
async def test_delays_and_retries_are_shown_until_they_are_delivered(
    mq: Embedded, browser: Browser
) -> None:
    mq.admin.create_topic("later", queues=1)
    with penstock.Producer("shop", namesrv=mq.namesrv) as producer:
        producer.send(Message("later", b"x", delay=3))
    shown = await browser.read("delays")
    assert re.search(r"\b3 10s 1\b", shown), shown
    mq.clock.advance("15s")
    async with browsing(mq.namesrv) as fresh:
        assert re.search(r"\b3 10s 0\b", await fresh.read("delays"))
    die(mq, "retriers", "retried", b"?")
    shown = await browser.read("groups", "retriers", "retries")
    assert "ValueError: amount cannot be read: ?" in shown
    assert "delivered" in shown


async def test_the_doctors_findings_are_on_the_page_with_their_commands(
    mq: Embedded, browser: Browser
) -> None:
    send(mq, "stuck", b"1")
    mq.admin.create_group("stopped", consume_enable=False)
    mq.admin.reset_offsets("stopped", "stuck", "first")
    report = await browser.open("groups", "stopped")
    shown = text_of(report)
    from penstock import doctor

    found = mq.admin._run(doctor.examine_group(mq.admin._actions, "stopped")).findings
    assert found
    for finding in found:
        assert finding.what in shown
        for line in finding.way_out:
            assert " ".join(line.split()) in shown


@pytest.mark.spec("C16")
async def test_a_cancelled_redrive_leaves_the_rest_pending(mq: Embedded, browser: Browser) -> None:
    die(mq, "halted", "halts", b"a", b"b", b"c")
    started = await browser.send(
        "groups", "halted", "dead-letters", "redrive", follow=False, all="1", rate="0.1"
    )
    number = started.headers["location"].rpartition("/")[2]

    async def one_is_sent() -> bool:
        return "1 of 3 sent" in await browser.read("jobs", number)

    await eventually(one_is_sent, 60)
    await browser.send("jobs", number, "cancel")
    job = await finished(browser, started.headers["location"])
    assert "cancelled 1 of 3 sent" in job
    assert job.count("not sent, stays pending") == 2
    assert mq.admin.dead_letter_queues("halted")[0].pending == 2


@pytest.mark.spec("C17")
async def test_letters_of_an_orderly_group_are_refused_with_the_way_out(
    mq: Embedded, browser: Browser
) -> None:
    die(mq, "ordered", "in-order", b"a")
    consumer = penstock.PushConsumer("ordered", namesrv=mq.namesrv, orderly=True)

    @consumer.on("in-order")
    def take(message: penstock.StoredMessage) -> None:
        pass

    with consumer:
        mq.clock.advance("2s")
        started = await browser.send(
            "groups", "ordered", "dead-letters", "redrive", follow=False, all="1", rate="100"
        )
        job = await finished(browser, started.headers["location"])
    assert "failed 0 of 1" in job
    assert "consumes in order" in job
    assert "redrive to the topic they came from" in job
    assert mq.admin.dead_letter_queues("ordered")[0].pending == 1
