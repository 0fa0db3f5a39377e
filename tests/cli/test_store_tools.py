"""``penstock store inspect | verify | export | repair`` as a user runs them."""

from __future__ import annotations

import base64
import json
import subprocess
import sys
import tarfile
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner
from tests.support.paths import VECTORS

from penstock.cli import output
from penstock.cli.main import app
from penstock.errors import InvalidArgument
from penstock.store import Draft, MessageStore, StoreConfig

# Python before 3.11.4 knows no filters, and later ones warn where none is named.
SAFE_EXTRACTION: Any = {"filter": "data"} if hasattr(tarfile, "data_filter") else {}
SMALL = StoreConfig(mapped_file_size_commit_log=4096, max_hash_slot_num=10, max_index_num=40)
START_MS = 1_700_000_000_000


def fill(root: Path, count: int = 30, topic: str = "orders") -> None:
    now = START_MS
    with MessageStore(root, SMALL, time_ms=lambda: now) as store:
        for number in range(count):
            now += 1000
            store.append(Draft(topic, 0, b"body %d" % number, b"KEYS\x01k%d\x02" % number))
            store.write()


@pytest.fixture
def data(tmp_path: Path) -> Path:
    """A data directory with two brokers."""
    fill(tmp_path / "data" / "broker-a")
    fill(tmp_path / "data" / "broker-b", 5, "bills")
    (tmp_path / "data" / "namesrv").mkdir()
    return tmp_path / "data"


def damage(root: Path) -> Path:
    path = sorted((root / "commitlog").iterdir())[0]
    content = bytearray(path.read_bytes())
    content[90] ^= 1
    path.write_bytes(content)
    return path


def run(*arguments: str | Path, code: int = 0) -> str:
    result = CliRunner().invoke(app, ["store", *map(str, arguments)], env={"COLUMNS": "200"})
    assert result.exit_code == code, result.output
    return result.stdout


def lines(text: str) -> list[dict[str, Any]]:
    return [json.loads(line) for line in text.splitlines()]


# inspect


def test_inspect_shows_the_stores_of_a_data_directory(data: Path) -> None:
    shown = run("inspect", data)
    for word in ("broker-a", "broker-b", "written by Penstock", "stopped cleanly", "commitlog"):
        assert word in shown
    assert "orders" in shown
    assert "bills" in shown


def test_inspect_as_json_has_one_object_a_store(data: Path) -> None:
    first, second = lines(run("inspect", data, "--json"))
    assert (first["name"], second["name"]) == ("broker-a", "broker-b")
    (queue,) = first["queues"]
    assert queue == {
        "topic": "orders",
        "queue_id": 0,
        "min_offset": 0,
        "max_offset": 30,
        "first_ms": START_MS + 1000,
        "last_ms": START_MS + 30_000,
        "count": 30,
    }
    assert first["is_clean"] is True
    assert first["problem"] is None
    assert first["checkpoint"]["log_timestamp"] == START_MS + 30_000


def test_inspect_of_a_live_store_says_that_it_runs(tmp_path: Path) -> None:
    with MessageStore(tmp_path / "store", SMALL) as store:
        store.append(Draft("orders", 0, b"body"))
        store.write()
        assert "running, or not stopped cleanly" in run("inspect", tmp_path / "store")
        (found,) = lines(run("inspect", tmp_path / "store", "--json"))
        assert found["queues"][0]["max_offset"] == 1


def test_inspect_of_a_store_that_cannot_be_opened_says_why_and_fails(data: Path) -> None:
    sorted((data / "broker-a" / "commitlog").iterdir())[0].write_bytes(b"short")
    shown = run("inspect", data / "broker-a", code=1)
    assert "cannot be opened" in shown
    assert "has 5 bytes" in shown


def test_names_with_brackets_are_shown_as_they_are(tmp_path: Path) -> None:
    fill(tmp_path / "[red]store", 1, "a[bold]b")
    shown = run("inspect", tmp_path / "[red]store")
    assert "a[bold]b" in shown
    assert "[red]store" in shown


# verify


def test_verify_of_whole_stores_ends_well(data: Path) -> None:
    shown = run("verify", data)
    assert shown.count(": whole") == 2
    first, second = lines(run("verify", data, "--json"))
    assert (first["records"], second["records"]) == (30, 5)
    assert first["is_whole"] is second["is_whole"] is True
    assert first["damages"] == []


def test_verify_names_file_and_position_of_damage_and_ends_with_1(data: Path) -> None:
    path = damage(data / "broker-a")
    shown = run("verify", data, code=1)
    assert ": damaged" in shown
    assert f"damage: {path} at 0: a body" in shown
    first, second = lines(run("verify", data, "--json", code=1))
    assert second["is_whole"] is True
    assert first["damages"][0] == {
        "file": str(path),
        "position": 0,
        "what": "a body that does not have its checksum",
    }


# export


def test_export_prints_one_line_a_message_in_log_order(data: Path) -> None:
    messages = lines(run("export", data))
    assert [message["topic"] for message in messages] == ["orders"] * 30 + ["bills"] * 5
    assert base64.b64decode(messages[3]["body"]) == b"body 3"
    assert messages[3]["keys"] == ["k3"]


def test_export_takes_topics_limits_and_ranges(data: Path) -> None:
    messages = lines(run("export", data))
    assert lines(run("export", data, "--topic", "bills")) == messages[30:]
    assert lines(run("export", data, "--topic", "bills", "--topic", "orders")) == messages
    assert lines(run("export", data, "--limit", "32")) == messages[:32]
    assert lines(run("export", data, "--limit", "0")) == []
    start, end = (str(messages[number]["log_position"]) for number in (4, 9))
    part = run("export", data / "broker-a", "--from", start, "--to", end)
    assert lines(part) == messages[4:9]


def test_export_takes_times_with_and_without_a_zone(data: Path) -> None:
    messages = lines(run("export", data / "broker-a"))
    moment = datetime.fromtimestamp(messages[10]["store_timestamp"] / 1000, UTC)
    for text in (moment.isoformat(), moment.astimezone().replace(tzinfo=None).isoformat()):
        assert lines(run("export", data / "broker-a", "--from", text)) == messages[10:]
        assert lines(run("export", data / "broker-a", "--to", text)) == messages[:10]


def test_export_refuses_what_is_neither_position_nor_time(data: Path) -> None:
    result = CliRunner().invoke(app, ["store", "export", str(data), "--from", "yesterday"])
    assert isinstance(result.exception, InvalidArgument)
    assert "--from 'yesterday'" in str(result.exception)


def test_export_says_that_it_found_nothing(data: Path) -> None:
    result = CliRunner().invoke(app, ["store", "export", str(data), "--topic", "order"])
    assert (result.exit_code, result.stdout) == (0, "")
    assert "No message was found." in result.stderr
    result = CliRunner().invoke(app, ["store", "export", str(data), "--limit", "0"])
    assert (result.exit_code, result.stderr) == (0, "")


def test_export_to_a_file_prints_nothing(data: Path, tmp_path: Path) -> None:
    assert run("export", data, "--output", tmp_path / "out.jsonl") == ""
    assert lines((tmp_path / "out.jsonl").read_text()) == lines(run("export", data))


def test_export_of_a_damaged_store_prints_the_rest_and_ends_with_1(data: Path) -> None:
    path = damage(data / "broker-a")
    result = CliRunner().invoke(app, ["store", "export", str(data)])
    assert result.exit_code == 1
    assert f"{path} at 0:" in result.stderr
    found = [(message["topic"], message["log_position"]) for message in lines(result.stdout)]
    assert [topic for topic, _ in found] == ["orders"] * 29 + ["bills"] * 5
    assert ("orders", 0) not in found


@pytest.mark.parametrize("version", ["4.9.7", "5.5.0", "5.5.0-killed"])
def test_stores_of_apache_rocketmq_need_no_settings(tmp_path: Path, version: str) -> None:
    with tarfile.open(VECTORS / f"store-{version}.tar.gz") as archive:
        archive.extractall(tmp_path, **SAFE_EXTRACTION)
    assert "written by RocketMQ" in run("inspect", tmp_path)
    assert "whole" in run("verify", tmp_path)
    assert len(lines(run("export", tmp_path, "--topic", "golden-one"))) > 700


# As a process


def penstock(*arguments: str | Path, **options: Any) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "penstock", "store", *map(str, arguments)]
    return subprocess.run(command, capture_output=True, text=True, check=False, **options)


def test_a_wrong_directory_is_one_sentence_and_a_way_out(tmp_path: Path) -> None:
    done = penstock("verify", tmp_path)
    assert done.returncode == 1
    assert done.stderr.startswith(f"penstock: no store in {tmp_path}; expected")
    assert "Traceback" not in done.stderr


def test_a_reader_that_has_seen_enough_ends_the_export_quietly(tmp_path: Path) -> None:
    fill(tmp_path / "store", 2_000)
    command = f"{sys.executable} -m penstock store export {tmp_path / 'store'} | head -n 1"
    done = subprocess.run(command, shell=True, capture_output=True, text=True, check=True)
    assert len(done.stdout.splitlines()) == 1
    assert done.stderr == ""


def test_without_a_terminal_there_is_no_progress_bar(data: Path) -> None:
    assert penstock("verify", data).stderr == ""


def test_on_a_terminal_a_bar_tells_how_far_it_is(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("sys.stderr.isatty", lambda: True, raising=False)
    with output.progress(None, "verifying", after=0) as bar:
        bar.update(5, 10)
        assert bar.done == 5


@pytest.mark.parametrize("command", ["inspect", "verify", "export"])
def test_every_command_has_an_example_in_its_help(command: str) -> None:
    assert f"penstock store {command} " in run(command, "--help").partition("Example:")[2]


def test_importing_penstock_loads_no_tables_and_no_command_line() -> None:
    code = "import penstock, sys; print({'rich', 'click'} & set(sys.modules) or 'none')"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "none"


def test_repair_rebuilds_each_store_and_says_what_it_did(data: Path) -> None:
    for path in data.glob("*/consumequeue/*/0/0*"):
        with path.open("r+b") as file:
            file.write(b"\xff" * 40)
    run("verify", data, code=1)
    text = run("repair", data)
    assert "broker-a" in text
    assert "30 entries in 1 queue" in text
    run("verify", data)
    lines = [json.loads(line) for line in run("repair", data, "--json").splitlines()]
    assert [(line["name"], line["records"]) for line in lines] == [
        ("broker-a", 30),
        ("broker-b", 5),
    ]


def test_repair_refuses_a_damaged_log(data: Path) -> None:
    damage(data / "broker-a")
    result = CliRunner().invoke(app, ["store", "repair", str(data)])
    assert result.exit_code != 0
    assert "the log itself is damaged" in str(result.exception or result.output)
