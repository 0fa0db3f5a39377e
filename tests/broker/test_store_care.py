"""How a broker looks after its store: it saves when idle, notices a loss, and tries again."""

from __future__ import annotations

import asyncio
import errno
import os
import shutil
from pathlib import Path

import pytest
from tests.support.asking import commit, committed, put_topic
from tests.support.stage import Stage, in_virtual_time

from penstock.broker import Broker
from penstock.errors import StoreDamaged, StoreLost
from penstock.protocol.codes import ResponseCode
from penstock.store import OS_FILES, SYNC_FLUSH, OsFiles
from penstock.store.note import load_state
from penstock.testing.eventually import eventually

OK = ResponseCode.SUCCESS


def flushed_by_note(broker: Broker) -> int:
    state = load_state(OS_FILES, broker.state.storage.store.root)
    assert state is not None
    return min(state.flushed_position, state.queue_position)


@pytest.mark.parametrize("flush", ["ASYNC_FLUSH", SYNC_FLUSH])
@in_virtual_time
async def test_an_idle_broker_saves_its_note(tmp_path: Path, flush: str) -> None:
    async with Stage(tmp_path) as stage:
        broker = await stage.broker(store={"flush_disk_type": flush})
        wire = await stage.connect(broker)
        await put_topic(wire, "T")
        for number in range(3):
            assert (await wire.send("T", b"%d" % number)).code == OK
        end = broker.state.storage.store.max_position
        assert flushed_by_note(broker) < end
        await stage.clock.sleep(7)
        assert flushed_by_note(broker) == end
        flushes = broker.state.storage.store.counts.flush_calls
        await stage.clock.sleep(60)
        assert broker.state.storage.store.counts.flush_calls == flushes, "once is enough"
        assert (await wire.send("T", b"more")).code == OK
        await stage.clock.sleep(7)
        assert flushed_by_note(broker) == broker.state.storage.store.max_position > end


@pytest.mark.parametrize("is_idle", [True, False])
@in_virtual_time
async def test_a_broker_ends_when_its_directory_is_taken_away(
    tmp_path: Path, is_idle: bool
) -> None:
    async with Stage(tmp_path) as stage:
        broker = await stage.broker()
        wire = await stage.connect(broker)
        await put_topic(wire, "T")
        root = tmp_path / "broker-a"
        shutil.rmtree(root)
        second = await stage.broker("broker-b", root=root)
        if not is_idle:
            await wire.send("T", b"too late")
        with pytest.raises(StoreLost, match="removed or replaced"):
            await asyncio.wait_for(broker.wait(), 30)
        # The tables of the first one did not go where those of the second one are.
        assert '"T"' not in (root / "config/topics.json").read_text()
        again = await stage.connect(second)
        await put_topic(again, "U")
        assert (await again.send("U", b"fine")).code == OK


class FewDescriptors(OsFiles):
    """Files of which one kind cannot be opened for now."""

    is_exhausted = False
    code = errno.EMFILE

    def open(self, path: str, *, write: bool = False) -> int:
        if self.is_exhausted and write and "consumequeue" in path:
            raise OSError(self.code, "injected", path)
        return super().open(path, write=write)


@pytest.mark.parametrize(
    ("code", "hint"), [(errno.EMFILE, "ulimit -n"), (errno.ENOSPC, "make room")]
)
@in_virtual_time
async def test_sends_refused_for_now_are_taken_again_within_seconds(
    tmp_path: Path, code: int, hint: str
) -> None:
    files = FewDescriptors()
    files.code = code
    async with Stage(tmp_path) as stage:
        broker = await stage.broker(files=files)
        wire = await stage.connect(broker)
        await put_topic(wire, "T")
        files.is_exhausted = True
        store = broker.state.storage.store
        for _ in range(300):
            await wire.send("T", b"x")
            if store.is_blocked:
                break
        refused = await wire.send("T", b"x")
        assert refused.code != OK
        assert hint in (refused.remark or "")
        await stage.clock.sleep(20)
        assert store.is_blocked
        files.is_exhausted = False
        await stage.clock.sleep(11)
        assert (await wire.send("T", b"x")).code == OK
        await eventually(lambda: store.max_offset("T", 0) > 200)


# Tables


async def stopped_broker(tmp_path: Path) -> Path:
    """The directory of a broker that stopped with a committed offset."""
    async with Stage(tmp_path) as stage:
        broker = await stage.broker()
        wire = await stage.connect(broker)
        await put_topic(wire, "T")
        for _ in range(5):
            await wire.send("T", b"x")
        assert (await commit(wire, "g", "T", 4)).code == OK
    return tmp_path / "broker-a" / "config"


async def test_a_key_without_a_group_is_left_out(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    config = await stopped_broker(tmp_path)
    path = config / "consumerOffset.json"
    path.write_text(path.read_text().replace('"T@g"', '"T@g":{0:3},"nothing":{0:99},"@x"'))
    (config / "consumerOffset.json.sum").unlink()
    async with Stage(tmp_path) as stage:
        broker = await stage.broker()
        wire = await stage.connect(broker)
        assert await committed(wire, "g", "T") == 3
    assert "offsets without topic or group are left out key='nothing'" in caplog.text


async def test_a_damaged_table_without_a_backup_stops_the_start(tmp_path: Path) -> None:
    config = await stopped_broker(tmp_path)
    path = config / "consumerOffset.json"
    (config / "consumerOffset.json.bak").unlink(missing_ok=True)
    path.write_text("{" + path.read_text())
    for _ in range(2):
        async with Stage(tmp_path) as stage:
            with pytest.raises(StoreDamaged, match="and there is no backup"):
                await stage.broker()


@pytest.mark.parametrize("is_ours", [True, False])
async def test_a_flipped_digit_of_an_offset_does_not_count(tmp_path: Path, is_ours: bool) -> None:
    config = await stopped_broker(tmp_path)
    path = config / "consumerOffset.json"
    text, times = path.read_text(), path.stat()
    (config / "consumerOffset.json.bak").unlink(missing_ok=True)
    path.write_text(text.replace("0:4", "0:5"))
    # Rot changes bytes, but no times.
    os.utime(path, ns=(times.st_atime_ns, times.st_mtime_ns))
    assert path.read_text() != text
    if is_ours:
        async with Stage(tmp_path) as stage:
            with pytest.raises(StoreDamaged, match="changed, but not by this program"):
                await stage.broker()
        return
    # After another program used the store, its tables count as they are.
    checkpoint = tmp_path / "broker-a/checkpoint"
    os.utime(checkpoint, (1_600_000_000, 1_600_000_000))
    async with Stage(tmp_path) as stage:
        wire = await stage.connect(await stage.broker())
        assert await committed(wire, "g", "T") == 5


async def test_offsets_beyond_the_end_are_moved_back_and_saved(tmp_path: Path) -> None:
    config = await stopped_broker(tmp_path)
    path = config / "consumerOffset.json"
    path.write_text(path.read_text().replace("0:4", "0:77"))
    (config / "consumerOffset.json.sum").unlink()
    async with Stage(tmp_path) as stage:
        wire = await stage.connect(await stage.broker())
        assert await committed(wire, "g", "T") == 5
    # Without a commit since: the next start must not meet the old one again, when there are more.
    assert "0:5" in path.read_text()


async def test_a_send_to_a_new_topic_is_refused_while_the_topic_cannot_be_saved(
    tmp_path: Path,
) -> None:
    async with Stage(tmp_path) as stage:
        broker = await stage.broker()
        wire = await stage.connect(broker)
        # Root may write anywhere, so a directory in place of the file is the way to make it fail.
        table = tmp_path / "broker-a/config/topics.json"
        await put_topic(wire, "before")
        table.unlink()
        table.mkdir()
        (table / "in-the-way").touch()
        answer = await asyncio.wait_for(wire.send("new", b"message"), 20)
        assert answer.code != OK
        assert "would be lost by a restart" in (answer.remark or "")
        shutil.rmtree(table)
        assert (await asyncio.wait_for(wire.send("new", b"again"), 20)).code == OK
