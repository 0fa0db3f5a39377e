"""``penstock broker config`` against a running broker."""

from __future__ import annotations

import pytest
from tests.cli.running import fail, run, succeed

from penstock.testing.embedded import Embedded


def test_settings_are_read_by_name_and_by_pattern(cluster: Embedded) -> None:
    [row] = succeed("broker", "config", "get", "fileReservedTime", "--json").json
    assert row == {"broker": "broker-a", "key": "fileReservedTime", "value": "72"}
    lines = succeed("broker", "config", "get", "fileReserved*").lines
    assert lines == [["key", "value"], ["fileReservedTime", "72"]]
    everything = succeed("broker", "config", "get", "--json").json
    assert {row["key"] for row in everything} > {"brokerName", "fileReservedTime"}
    assert "did you mean fileReservedTime?" in fail("broker", "config", "get", "fileReservdTime")
    assert "broker-z" in fail("broker", "config", "get", "--broker", "broker-z")


def test_a_setting_is_changed_and_read_back(cluster: Embedded) -> None:
    change = ("broker", "config", "set", "fileReservedTime=48")
    assert "--yes" in fail(*change, stdin="y\n")
    assert cluster.admin.broker_config("broker-a")["fileReservedTime"] == "72"
    [row] = succeed(*change, "--yes", "--json").json
    assert (row["before"], row["value"]) == ("72", "48")
    assert cluster.admin.broker_config("broker-a")["fileReservedTime"] == "48"
    succeed("broker", "config", "set", "fileReservedTime=72", "--yes")


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["fileReservedTime"], "expected KEY=VALUE"),
        (["=3"], "expected KEY=VALUE"),
        (["fileReservdTime=3"], "did you mean fileReservedTime?"),
        (["fileReservedTime=soon"], "soon"),
    ],
)
def test_a_change_that_cannot_be_made_is_one_sentence(
    cluster: Embedded, arguments: list[str], said: str
) -> None:
    assert said in fail("broker", "config", "set", *arguments, "--yes")


def test_options_of_a_server_are_not_options_of_its_settings() -> None:
    done = run("broker", "--broker-name", "broker-b", "config", "get")
    assert done.code == 2
    assert "--broker-name is for starting it, not for config" in done.err
