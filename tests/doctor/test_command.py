"""``penstock doctor``: what it prints, how it ends, and that its advice can be followed."""

from __future__ import annotations

import ast
import shlex
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from tests.cli.running import run, succeed, wait_for

import penstock.doctor.checks
from penstock import Message, Producer, PushConsumer, StoredMessage
from penstock.cli.main import app
from penstock.doctor import TITLES
from penstock.testing.embedded import Embedded, embedded


@pytest.fixture(scope="module")
def shop() -> Iterator[Embedded]:
    """A real cluster: one group that is fine, and one whose consumer is gone."""
    with embedded() as mq:
        mq.admin.create_topic("orders", 1)
        with consuming(mq, "gone"), Producer("shop", namesrv=mq.namesrv) as producer:
            producer.send(Message("orders", b"1"))
            wait_until_consumed(mq, "gone")
        with consuming(mq, "billing"):
            wait_until_consumed(mq, "billing")
            yield mq


@pytest.fixture(autouse=True)
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path))
    monkeypatch.delenv("NAMESRV_ADDR", raising=False)


def consuming(mq: Embedded, group: str) -> PushConsumer:
    consumer = PushConsumer(
        group, namesrv=mq.namesrv, start_from="first", persist_interval=0.1, instance=group
    )

    @consumer.on("orders")
    def take(message: StoredMessage) -> None:
        pass

    return consumer


def wait_until_consumed(mq: Embedded, group: str) -> None:
    def is_done() -> bool:
        rows = mq.admin.group_lag(group, topic="orders")
        return bool(rows) and all(row.committed == row.latest == 1 for row in rows)

    wait_for(is_done)


def test_a_healthy_group_ends_with_zero(shop: Embedded) -> None:
    done = succeed("doctor", "billing", "--namesrv", shop.namesrv)
    assert "group billing: members 1, topics orders, lag 0" in done.out
    assert "Nothing is wrong" in done.out
    report = succeed("doctor", "billing", "--namesrv", shop.namesrv, "--json").json
    assert report["healthy"] is True
    assert report["findings"] == []
    assert report["not_known"] == []
    assert (report["group"], report["members"], report["topics"]) == ("billing", 1, ["orders"])


def test_a_finding_ends_with_one_and_says_what_to_do(shop: Embedded) -> None:
    done = run("doctor", "gone", "--namesrv", shop.namesrv)
    assert done.code == 1
    assert "warning  no-members: group 'gone' has no connected members" in done.out
    # What is advised leads to the same cluster.
    assert f"try: penstock group describe gone --namesrv {shop.namesrv}" in done.out
    report = run("doctor", "gone", "--namesrv", shop.namesrv, "--json").json
    [finding] = report["findings"]
    assert (finding["cause"], finding["severity"]) == ("no-members", "warning")
    assert finding["evidence"]["members"] == 0
    assert finding["way_out"][0] == "penstock group describe gone"


def test_without_a_group_every_group_has_a_line(
    shop: Embedded, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("NAMESRV_ADDR", shop.namesrv)
    done = run("doctor")
    assert done.code == 1
    assert "name servers 1 of 1 answer, brokers 1 of 1" in done.out
    lines = {line[0]: line for line in done.lines}
    assert lines["billing"] == ["billing", "1", "0", "0", "0", "healthy"]
    assert lines["gone"] == ["gone", "0", "0", "0", "0", "no-members"]
    assert "penstock doctor gone" in done.err
    report = run("doctor", "--json").json
    assert report["healthy"] is False
    assert report["findings"] == []
    assert [broker["answers"] for broker in report["brokers"]] == [True]
    assert {group["group"]: group["healthy"] for group in report["groups"]} == {
        "billing": True,
        "gone": False,
    }


def test_without_a_cluster_that_is_what_it_says() -> None:
    done = run("doctor", "billing", "--namesrv", "127.0.0.1:1")
    assert done.code == 1
    assert "critical  nameserver-unreachable: name server 127.0.0.1:1" in done.out
    assert "members -" in done.out
    assert "try: penstock up\n" in done.out


def test_a_wrong_duration_is_refused() -> None:
    done = run("doctor", "billing", "--stuck-after", "soon")
    assert done.code == 1
    assert "'soon'" in done.err


class Advice(ast.NodeVisitor):
    """Collects the commands in a source, with something for what is filled in."""

    def __init__(self) -> None:
        self.found: set[str] = set()

    def visit_Constant(self, node: ast.Constant) -> None:
        if isinstance(node.value, str):
            self._take(node.value)

    def visit_JoinedStr(self, node: ast.JoinedStr) -> None:
        self._take(
            "".join(str(p.value) if isinstance(p, ast.Constant) else "1" for p in node.values)
        )

    def _take(self, text: str) -> None:
        if text.startswith("penstock ") and "\n" not in text:
            self.found.add(text)


def advised_commands() -> list[str]:
    """Every command that the checks advise."""
    advice = Advice()
    for path in Path(penstock.doctor.checks.__path__[0]).glob("*.py"):
        advice.visit(ast.parse(path.read_text()))
    return sorted(advice.found)


def test_there_are_commands_to_check() -> None:
    assert len(advised_commands()) > 10
    assert "penstock group list" in advised_commands()


@pytest.mark.parametrize("advice", advised_commands())
def test_what_is_advised_is_a_command_with_these_options(advice: str) -> None:
    command: Any = app
    _, *words = shlex.split(advice)
    with command.make_context("penstock", words) as context:
        # A command that serves has options of its own, and commands below it.
        while hasattr(command, "get_command") and not words[0].startswith("-"):
            name = words.pop(0)
            command = command.get_command(context, name)
            assert command is not None, f"penstock has no {name}"
        # Parses the options and arguments, and runs nothing.
        command.make_context(advice, words, parent=context)


@pytest.mark.parametrize("cause", TITLES)
def test_every_cause_has_a_test_that_finds_it(cause: str) -> None:
    tests = [
        path.read_text(encoding="utf-8")
        for path in Path(__file__).parent.glob("test_*.py")
        if path.name != Path(__file__).name
    ]
    assert any(f'"{cause}"' in text for text in tests)
