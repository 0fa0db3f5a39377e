"""The Grafana board and the alert rules name metrics and labels that a broker exposes."""

from __future__ import annotations

import json
import re
import shutil
import subprocess
from collections.abc import Awaitable, Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml  # type: ignore[import-untyped]  # its stubs are a package of their own
from tests.broker.metrics.scraping import PROM, Metrics, scrape
from tests.support.asking import log_position, send_back
from tests.support.wire import Wire

from penstock.broker import Broker
from tools import grafana_board

ALERTS = grafana_board.FILE.with_name("alerts.yml")
PAGE = Path(grafana_board.FILE).parents[1] / "docs/howto/monitor.md"
METRIC = re.compile(r"\b((?:rocketmq|penstock)_[a-z_]+)\b(?:\{([^}]*)\})?")
LABEL = re.compile(r"(\w+)\s*(?:=~|!~|!=|=)")
BY = re.compile(r"\b(?:by|on) \(([^)]*)\)")
OF_PROMETHEUS = {"le", "job", "instance"}


def rules() -> list[dict[str, Any]]:
    [group] = yaml.safe_load(ALERTS.read_text(encoding="utf-8"))["groups"]
    found: list[dict[str, Any]] = group["rules"]
    return found


def expressions() -> Iterator[str]:
    for panel in grafana_board.board()["panels"]:
        for target in panel.get("targets", ()):
            yield target["expr"]
    yield from grafana_board.VARIABLES.values()
    for rule in rules():
        yield rule["expr"]


def test_the_board_is_the_one_that_the_tool_makes() -> None:
    assert grafana_board.FILE.read_text(encoding="utf-8") == grafana_board.text(), (
        "run python -m tools.grafana_board"
    )
    panels = json.loads(grafana_board.text())["panels"]
    places = [(panel["gridPos"]["x"], panel["gridPos"]["y"]) for panel in panels]
    assert len(set(places)) == len(places) > 15


@pytest.fixture
async def exposed(
    make_broker: Callable[..., Awaitable[Broker]],
) -> Metrics:
    broker = await make_broker(settings=PROM)
    async with await Wire.connect(broker.port) as wire:
        await wire.heartbeat("c-1", consumer="g", topics=["T"], producer="p")
        sent = await wire.send("T")
        await wire.send("T", properties={"DELAY": "18"})
        await wire.pull("g", "T", 0, commit=0)
        await send_back(wire, "g", log_position(sent), level=-1)
        return await scrape(broker)


async def test_the_documentation_names_every_metric(exposed: Metrics) -> None:
    page = PAGE.read_text(encoding="utf-8")
    ends = tuple(re.findall(r"`\.\.\.(_\w+)`", page))
    starts = tuple(re.findall(r"`(\w+_)\*`", page))
    missing = [
        name
        for name in (family.name for family in exposed.families)
        if f"`{name}`" not in page and f"`{name}_total`" not in page
        if not name.endswith(ends) and not name.startswith(starts)
    ]
    assert missing == [], f"say in {PAGE.name} what they mean"


@pytest.mark.spec("O8")
async def test_every_metric_and_label_is_exposed(exposed: Metrics) -> None:
    names = {name for name, _ in exposed.samples}
    labels = {key for _, pairs in exposed.samples for key, _ in pairs} | OF_PROMETHEUS
    looked_at = 0
    for expression in expressions():
        for name, conditions in METRIC.findall(expression):
            assert name in names, expression
            own = {key for keys in exposed.labels(name) for key in keys}
            assert set(LABEL.findall(conditions)) <= own, expression
            looked_at += 1
        for group in BY.findall(expression):
            assert {label.strip() for label in group.split(",")} <= labels, expression
    assert looked_at > 40


def test_every_alert_says_what_is_wrong() -> None:
    names = [rule["alert"] for rule in rules()]
    assert len(set(names)) == len(names) == 10
    for rule in rules():
        assert rule["labels"]["severity"] in ("warning", "critical")
        used = set(re.findall(r"\$labels\.(\w+)", json.dumps(rule["annotations"])))
        kept = {label for group in BY.findall(rule["expr"]) for label in group.split(", ")}
        # Without an aggregation all labels are kept.
        assert not kept or used <= kept | OF_PROMETHEUS, rule["alert"]
        assert rule["annotations"]["summary"]


def test_the_files_are_part_of_the_documentation() -> None:
    page = PAGE.read_text(encoding="utf-8")
    assert "grafana/penstock.json" in page
    assert "grafana/alerts.yml" in page


PROMTOOL = shutil.which("promtool")


@pytest.mark.spec("O8")
@pytest.mark.skipif(
    PROMTOOL is None, reason="no promtool found; it is part of Prometheus, docs/testing.md says how"
)
def test_each_alert_fires_in_its_case_and_not_otherwise() -> None:
    assert PROMTOOL is not None
    cases = ALERTS.with_name("alerts_test.yml")
    for words in (["check", "rules", str(ALERTS)], ["test", "rules", str(cases)]):
        done = subprocess.run([PROMTOOL, *words], capture_output=True, text=True)
        assert done.returncode == 0, done.stdout + done.stderr


@pytest.mark.spec("O8")
def test_each_alert_has_a_case() -> None:
    cases = yaml.safe_load(ALERTS.with_name("alerts_test.yml").read_text(encoding="utf-8"))
    fired = {
        one["alertname"]
        for case in cases["tests"]
        for one in case["alert_rule_test"]
        if one["exp_alerts"]
    }
    assert fired == {rule["alert"] for rule in rules()}
    # Names and labels of the cases are those that a broker exposes: see the first test.
    used = set(METRIC.findall(json.dumps(cases)))
    named = {name for expression in expressions() for name, _ in METRIC.findall(expression)}
    assert {name for name, _ in used} <= named
