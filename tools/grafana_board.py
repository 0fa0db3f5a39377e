"""Makes ``grafana/penstock.json``, the Grafana board of brokers: ``python -m tools.grafana_board``.

A test makes it again and compares, and checks that each metric that is named here is exposed.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

FILE = Path(__file__).parents[1] / "grafana/penstock.json"
_SOURCE = {"type": "prometheus", "uid": "${datasource}"}
_BROKER = 'cluster=~"$cluster",node_id=~"$node_id"'
_TOPIC = f'{_BROKER},topic=~"$topic"'
_GROUP = f'{_BROKER},consumer_group=~"$consumer_group"'
_LATE = "rocketmq_consumer_lag_latency_milliseconds"

Target = tuple[str, str]
"""An expression and its legend."""

ROWS: list[tuple[str, list[tuple[str, str, str, list[Target]]]]] = [
    (
        "State",
        [
            ("stat", "Brokers that answer", "short", [('sum(up{job="penstock"})', "up")]),
            (
                "timeseries",
                "Messages per second",
                "ops",
                [
                    (f"sum(rate(rocketmq_messages_in_total{{{_BROKER}}}[1m]))", "in"),
                    (f"sum(rate(rocketmq_messages_out_total{{{_BROKER}}}[1m]))", "out"),
                ],
            ),
            (
                "stat",
                "Groups more than a minute behind",
                "short",
                [(f"count({_LATE}{{{_GROUP}}} > 60000) or vector(0)", "groups")],
            ),
            (
                "stat",
                "Dead letters pending",
                "short",
                [(f"sum(penstock_dead_letters_pending{{{_GROUP}}})", "dead letters")],
            ),
            (
                "gauge",
                "Disk used",
                "percentunit",
                [(f"penstock_disk_used_ratio{{{_BROKER}}}", "{{node_id}}")],
            ),
            (
                "stat",
                "Oldest message",
                "ms",
                [
                    (
                        f"rocketmq_storage_message_reserve_time_milliseconds{{{_BROKER}}}",
                        "{{node_id}}",
                    )
                ],
            ),
        ],
    ),
    (
        "Topics",
        [
            (
                "timeseries",
                "Stored messages per second, the ten largest",
                "ops",
                [
                    (
                        "topk(10, sum by (topic) "
                        f"(rate(rocketmq_messages_in_total{{{_TOPIC}}}[1m])))",
                        "{{topic}}",
                    )
                ],
            ),
            (
                "timeseries",
                "Stored bytes per second, the ten largest",
                "Bps",
                [
                    (
                        "topk(10, sum by (topic) "
                        f"(rate(rocketmq_throughput_in_total{{{_TOPIC}}}[1m])))",
                        "{{topic}}",
                    )
                ],
            ),
            (
                "timeseries",
                "Delivered messages per second",
                "ops",
                [
                    (
                        "topk(10, sum by (consumer_group) "
                        f"(rate(rocketmq_messages_out_total{{{_GROUP}}}[1m])))",
                        "{{consumer_group}}",
                    )
                ],
            ),
        ],
    ),
    (
        "Groups",
        [
            (
                "timeseries",
                "Lag in messages",
                "short",
                [
                    (
                        f"sum by (consumer_group) (rocketmq_consumer_lag_messages{{{_GROUP}}})",
                        "{{consumer_group}}",
                    )
                ],
            ),
            (
                "timeseries",
                "Lag in time",
                "ms",
                [(f"max by (consumer_group) ({_LATE}{{{_GROUP}}})", "{{consumer_group}}")],
            ),
            (
                "timeseries",
                "In flight and ready",
                "short",
                [
                    (
                        "sum by (consumer_group) "
                        f"(rocketmq_consumer_inflight_messages{{{_GROUP}}})",
                        "{{consumer_group}} in flight",
                    ),
                    (
                        f"sum by (consumer_group) (rocketmq_consumer_ready_messages{{{_GROUP}}})",
                        "{{consumer_group}} ready",
                    ),
                ],
            ),
            (
                "timeseries",
                "Failures per minute",
                "short",
                [
                    (
                        "60 * sum by (consumer_group) "
                        f"(rate(penstock_sent_back_total{{{_GROUP}}}[5m]))",
                        "{{consumer_group}} sent back",
                    ),
                    (
                        "60 * sum by (consumer_group) "
                        f"(rate(rocketmq_send_to_dlq_messages_total{{{_GROUP}}}[5m]))",
                        "{{consumer_group}} dead",
                    ),
                ],
            ),
            (
                "timeseries",
                "Members",
                "short",
                [
                    (
                        f"sum by (consumer_group) (rocketmq_consumer_connections{{{_GROUP}}})",
                        "{{consumer_group}}",
                    )
                ],
            ),
        ],
    ),
    (
        "Broker",
        [
            (
                "timeseries",
                "Behind the disk and the consume queues",
                "bytes",
                [
                    (f"rocketmq_storage_flush_behind_bytes{{{_BROKER}}}", "{{node_id}} flush"),
                    (
                        f"rocketmq_storage_dispatch_behind_bytes{{{_BROKER}}}",
                        "{{node_id}} dispatch",
                    ),
                ],
            ),
            (
                "timeseries",
                "Loop lag, 99th percentile",
                "s",
                [
                    (
                        "histogram_quantile(0.99, sum by (le, node_id) "
                        f"(rate(penstock_loop_lag_seconds_bucket{{{_BROKER}}}[5m])))",
                        "{{node_id}}",
                    )
                ],
            ),
            (
                "timeseries",
                "Held pulls and delayed messages",
                "short",
                [
                    (f"penstock_held_pulls{{{_BROKER}}}", "{{node_id}} held pulls"),
                    (
                        f"sum by (level) (penstock_delayed_messages{{{_BROKER}}})",
                        "delayed, level {{level}}",
                    ),
                ],
            ),
            (
                "timeseries",
                "Memory and CPU",
                "short",
                [
                    (f"penstock_process_resident_bytes{{{_BROKER}}}", "{{node_id}} bytes"),
                    (
                        f"rate(penstock_process_cpu_seconds_total{{{_BROKER}}}[1m])",
                        "{{node_id}} cores",
                    ),
                ],
            ),
            (
                "timeseries",
                "Clients by language",
                "short",
                [
                    (
                        f"sum by (language) (rocketmq_producer_connections{{{_BROKER}}})",
                        "{{language}} producers",
                    ),
                    (
                        f"sum by (language) (rocketmq_consumer_connections{{{_BROKER}}})",
                        "{{language}} consumers",
                    ),
                ],
            ),
        ],
    ),
]

VARIABLES = {
    "cluster": "label_values(rocketmq_topic_number, cluster)",
    "node_id": 'label_values(rocketmq_topic_number{cluster=~"$cluster"}, node_id)',
    "topic": 'label_values(rocketmq_messages_in_total{cluster=~"$cluster"}, topic)',
    "consumer_group": 'label_values(rocketmq_consumer_lag_messages{cluster=~"$cluster"}, '
    "consumer_group)",
}


def board() -> dict[str, Any]:
    """The board."""
    return {
        "uid": "penstock",
        "title": "Penstock",
        "tags": ["rocketmq", "penstock"],
        "schemaVersion": 39,
        "refresh": "30s",
        "time": {"from": "now-1h", "to": "now"},
        "templating": {"list": [_source_variable(), *map(_variable, VARIABLES.items())]},
        "panels": _panels(),
    }


def _source_variable() -> dict[str, Any]:
    return {"name": "datasource", "type": "datasource", "query": "prometheus"}


def _variable(item: tuple[str, str]) -> dict[str, Any]:
    name, query = item
    return {
        "name": name,
        "type": "query",
        "datasource": _SOURCE,
        "query": query,
        "refresh": 2,
        "multi": True,
        "includeAll": True,
        "allValue": ".*",
        "current": {"text": "All", "value": "$__all"},
    }


def _panels() -> list[dict[str, Any]]:
    panels: list[dict[str, Any]] = []
    top = 0
    for title, parts in ROWS:
        place = {"x": 0, "y": top, "w": 24, "h": 1}
        panels.append({"type": "row", "title": title, "gridPos": place, "panels": []})
        top += 1
        for number, (kind, name, unit, targets) in enumerate(parts):
            panels.append(
                {
                    "type": kind,
                    "title": name,
                    "datasource": _SOURCE,
                    "gridPos": {"x": number % 3 * 8, "y": top + number // 3 * 8, "w": 8, "h": 8},
                    "fieldConfig": {"defaults": {"unit": unit, "min": 0}, "overrides": []},
                    "targets": [
                        {
                            "refId": "ABCDEF"[index],
                            "datasource": _SOURCE,
                            "expr": expression,
                            "legendFormat": legend,
                        }
                        for index, (expression, legend) in enumerate(targets)
                    ],
                }
            )
        top += -(-len(parts) // 3) * 8
    for number, panel in enumerate(panels, start=1):
        panel["id"] = number
    return panels


def text() -> str:
    """The file."""
    return json.dumps(board(), indent=1) + "\n"


if __name__ == "__main__":
    FILE.write_text(text(), encoding="utf-8")
