"""The pages of the console on a real cluster, Apache's included: opened, read, forms sent."""

from __future__ import annotations

import asyncio
import json
import re
from collections.abc import Awaitable, Callable, Iterator, Mapping, Sequence
from typing import Any

from tests.console.browsing import Browser, browsing, text_of
from tests.interop.client_lab import Lab, check, same, wait_for
from tests.interop.client_scenarios import Run, run_clients
from tests.interop.results import Cell
from tests.interop.servers import Cluster

from penstock import DeadLetter, Message, StoredMessage
from penstock.testing.eventually import eventually

SECTION = "Console"
PARALLEL = 2
INDEX_SECONDS = 30.0
EVERY_PAGE = (
    (),
    ("topics",),
    ("groups",),
    ("dead-letters",),
    ("delays",),
    ("clients",),
    ("brokers",),
    ("spark",),
    ("jobs",),
    ("settings",),
    ("audit",),
)

Look = Callable[[Browser], Awaitable[str]]


def _browse(lab: Lab, look: Look) -> str:
    async def run() -> str:
        async with browsing(lab.cluster.namesrv) as browser:
            return await look(browser)

    return asyncio.run(run())


def pages(lab: Lab) -> str:
    """Every page opens, and lists show what the administrator's calls say."""
    topic, group = lab.topic(queues=2), lab.name("group")
    consumer, seen = lab.collect(topic, group)
    lab.send(topic, ["m-0", "m-1", "m-2"])
    seen.wait_for(["m-0", "m-1", "m-2"])
    wait_for(lambda: lab.lag(group, topic) == 0, lambda: f"lag {lab.lag(group, topic)}")
    client = lab.admin.clients(group)[0]

    async def look(browser: Browser) -> str:
        for parts in EVERY_PAGE:
            await browser.open(*parts)
        await browser.open("brokers", lab.cluster.broker_name)
        shown = await browser.read("topics", q=topic)
        check(re.search(rf"{topic} \S+ 2 3 ", shown) is not None, f"topics: {shown}")
        shown = await browser.read("topics", topic)
        check(f"{group} 0" in shown, f"groups of the topic: {shown}")
        shown = await browser.read("groups", q=group)
        check(re.search(rf"{group} {topic} 0 ", shown) is not None, f"groups: {shown}")
        shown = await browser.read("groups", group)
        check(client.client_id in shown, f"members: {shown}")
        check("Nothing keeps messages" in shown, f"findings: {shown}")
        shown = await browser.read("clients")
        check(f"{group} {client.client_id}" in shown, "the client is not listed")
        member = await browser.read("groups", group, "members", client.client_id)
        check(f"{topic} {lab.cluster.broker_name}:0" in member, f"queues it holds: {member}")
        return f"{len(EVERY_PAGE) + 5} pages"

    try:
        return _browse(lab, look)
    finally:
        consumer.stop()


def findings(lab: Lab) -> str:
    """A group without members: the doctor's words are on its page."""
    topic, group = lab.topic(queues=1), lab.name("group")
    lab.admin.create_group(group)
    lab.send(topic, ["m-0"])
    lab.admin.reset_offsets(group, topic, "first")

    async def look(browser: Browser) -> str:
        shown = await browser.read("groups", group)
        check("never had members" in shown, f"findings: {shown[:600]}")
        return "a group that never had members, in words"

    return _browse(lab, look)


def messages(lab: Lab) -> str:
    """By tag, key and condition; the life of one; search; export."""
    topic = lab.topic(queues=2)
    bodies = [json.dumps({"id": number, "total": number * 10}) for number in range(6)]
    producer = lab.producer()

    receipts = [
        producer.send(
            Message(topic, body.encode(), keys=[f"{topic}-{number}"], tag=f"t{number % 2}")
        )
        for number, body in enumerate(bodies)
    ]
    wait_for(
        lambda: len(lab.admin.query(topic, f"{topic}-5")) == 1,
        lambda: "the index is not up to date",
        INDEX_SECONDS,
    )

    async def look(browser: Browser) -> str:
        def rows(page: str) -> int:
            return page.count('data-label="Stored"')

        queries: tuple[tuple[dict[str, Any], int], ...] = (
            ({}, 6),
            ({"tag": "t1"}, 3),
            ({"key": f"{topic}-2"}, 1),
            ({"where": "$total > 25.0"}, 3),
            ({"text": '"total": 40'}, 1),
        )
        for query, count in queries:
            page = await browser.open("topics", topic, "messages", **query)
            same(count, rows(page), f"messages with {query}")
        found = await browser.client.get(
            browser.path("search"), params={"q": f"{topic}-3"}, follow_redirects=True
        )
        check(receipts[3].msg_id in found.text, "the search by key found another page")
        found = await browser.client.get(
            browser.path("search"), params={"q": receipts[4].offset_msg_id}, follow_redirects=True
        )
        check(receipts[4].msg_id in found.text, "the search by offset id found another page")
        life = await browser.read("messages", receipts[0].msg_id, topic=topic)
        check("stored" in life, f"life: {life[:400]}")
        export = await browser.client.get(browser.path("topics", topic, "messages", "export"))
        lines = [json.loads(line)["body"] for line in export.text.splitlines()]
        same(sorted(bodies), sorted(lines), "exported rows")
        sent = await browser.send("topics", topic, "send", body="by form", tag="form")
        check("by form" in sent.text, "no receipt")

        async def there() -> bool:
            return rows(await browser.open("topics", topic, "messages", tag="form")) == 1

        await eventually(there, INDEX_SECONDS)
        return "5 filters, search, life, export, send"

    return _browse(lab, look)


def reset(lab: Lab) -> str:
    """The plan is what the administrator plans; the move is carried out."""
    topic, group = lab.topic(queues=1), lab.name("group")
    lab.admin.create_group(group)
    lab.send(topic, [f"m-{number}" for number in range(5)])
    lab.admin.reset_offsets(group, topic, "last")

    async def look(browser: Browser) -> str:
        goal: dict[str, Any] = {"topic": topic, "to": "first"}
        page = await browser.open("groups", group, "reset", **goal)
        check("5 messages come again, 0 are left out" in text_of(page), text_of(page)[:600])
        digest = re.search(r'name="plan" value="(\w+)"', page)
        assert digest is not None
        done = await browser.send("groups", group, "reset", plan=digest[1], **goal)
        check("was moved" in text_of(done.text), text_of(done.text)[:600])
        same([0], [row.committed for row in lab.admin.group_lag(group)], "committed")
        return "5 messages come again"

    return _browse(lab, look)


def repair(lab: Lab) -> str:
    """A dead letter is edited and redriven, and its group handles it."""
    topic, group = lab.topic(queues=1), lab.name("group")
    consumer = lab.push(group)
    handled: list[str] = []

    @consumer.on(topic)
    def handle(message: StoredMessage) -> None:
        handled.append(message.body.decode())
        if message.body == b"bad":
            raise DeadLetter("no such account")

    consumer.start()
    lab.send(topic, ["bad"])
    wait_for(lambda: bool(_pending(lab, group)), lambda: f"handled {handled}", 80)
    letter = lab.admin.dead_letters(group)[0].message.offset_msg_id

    async def look(browser: Browser) -> str:
        shown = await browser.read("groups", group, "dead-letters")
        check("no such account" in shown, f"reason: {shown[:600]}")
        edit: dict[str, Any] = {"id": letter, "body": "good", "tag": "", "keys": ""}
        plan = await browser.send("groups", group, "dead-letters", "plan", **edit)
        check("1 letter would be sent" in text_of(plan.text), text_of(plan.text)[:600])
        started = await browser.send("groups", group, "dead-letters", "redrive", **edit)

        async def done() -> bool:
            return "done 1 of 1" in text_of((await browser.client.get(started.url)).text)

        await eventually(done, INDEX_SECONDS)
        return "edited, redriven, handled"

    said = _browse(lab, look)
    wait_for(lambda: "good" in handled, lambda: f"handled {handled}", 80)
    consumer.stop()
    same(0, _pending(lab, group), "pending letters")
    return said


def _pending(lab: Lab, group: str) -> int:
    if group not in lab.admin.dead_letter_groups():
        return 0
    return sum(queue.pending for queue in lab.admin.dead_letter_queues(group))


_RUNS: tuple[Run, ...] = (pages, findings, messages, reset, repair)
RUNS: Mapping[str, Run] = {f"console_{run.__name__}": run for run in _RUNS}


def run_console(servers: Cluster, names: Sequence[str], column: str) -> Iterator[Cell]:
    """Run ``names``, a few at a time; yield a cell as each ends."""
    yield from run_clients(servers, names, column, runs=RUNS, section=SECTION, parallel=PARALLEL)
