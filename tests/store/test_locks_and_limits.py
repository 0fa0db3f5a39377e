"""One writer per store, any number of readers, and few open files however many queues."""

from __future__ import annotations

import subprocess
import sys
import textwrap
from collections.abc import Callable
from pathlib import Path

import pytest

from penstock.errors import LifecycleError, StoreDamaged, StoreLocked
from penstock.protocol.records.codec import decode_records
from penstock.store import OS_FILES, Draft, MessageStore, StoreConfig

OpenStore = Callable[..., MessageStore]
MakeDraft = Callable[..., Draft]


def run_python(program: str, *arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-c", textwrap.dedent(program), *arguments],
        capture_output=True,
        text=True,
        timeout=100,
        check=False,
    )


OPEN = """
import sys
from penstock.store import MessageStore
try:
    MessageStore(sys.argv[1]).open()
except Exception as error:
    print(type(error).__name__, error)
"""


def test_a_second_process_cannot_open_the_store(open_store: OpenStore) -> None:
    store = open_store()
    assert run_python(OPEN, store.root).stdout.startswith(
        "StoreLocked another process writes to store"
    )
    store.close()
    assert run_python(OPEN, store.root).stdout == ""


def test_the_same_process_cannot_open_it_twice(
    open_store: OpenStore, tmp_path: Path, make_draft: MakeDraft
) -> None:
    store = open_store()
    (tmp_path / "link").symlink_to(store.root)
    for root in (store.root, tmp_path / "link"):
        with pytest.raises(StoreLocked, match="held by this process"):
            MessageStore(root).open()
    # The refused attempts opened and closed nothing: the lock still keeps others out.
    assert "StoreLocked" in run_python(OPEN, store.root).stdout
    store.append(make_draft())
    store.write()


def test_the_lock_is_a_posix_record_lock_on_the_first_byte(open_store: OpenStore) -> None:
    store = open_store()
    path = Path(store.root) / "lock"
    assert path.read_bytes() == b"lock"
    # Reading the file closed a descriptor of it, which drops this process's locks on it:
    # that is why the store itself never opens the file a second time.
    store.close()
    store = MessageStore(store.root)
    store.open()
    try:
        program = """
        import fcntl, sys
        with open(sys.argv[1], "r+b") as file:
            for start in (0, 1):
                try:
                    fcntl.lockf(file, fcntl.LOCK_EX | fcntl.LOCK_NB, 1, start)
                    print("free")
                except OSError:
                    print("taken")
        """
        assert run_python(program, str(path)).stdout.split() == ["taken", "free"]
    finally:
        store.close()


def test_a_lock_of_another_program_is_respected(tmp_path: Path) -> None:
    root = tmp_path / "store"
    root.mkdir()
    program = """
    import fcntl, sys
    file = open(sys.argv[1], "w+b")
    fcntl.lockf(file, fcntl.LOCK_EX | fcntl.LOCK_NB, 1, 0)
    print("held", flush=True)
    sys.stdin.read()
    """
    arguments = [sys.executable, "-c", textwrap.dedent(program), str(root / "lock")]
    with subprocess.Popen(
        arguments, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as holder:
        assert holder.stdout is not None
        assert holder.stdout.readline() == "held\n"
        with pytest.raises(StoreLocked, match="try: stop that broker"):
            MessageStore(root).open()
        holder.communicate("")
    with MessageStore(root):
        pass


def test_the_lock_ends_with_the_process(tmp_path: Path) -> None:
    program = OPEN + "\nimport os, signal\nos.kill(os.getpid(), signal.SIGKILL)"
    assert run_python(program, str(tmp_path / "store")).returncode == -9
    with MessageStore(tmp_path / "store") as store:
        assert store.recovery is not None


def test_unlocking_lets_the_next_one_in(tmp_path: Path) -> None:
    path = str(tmp_path / "lock")
    token = OS_FILES.lock(path)
    with pytest.raises(BlockingIOError):
        OS_FILES.lock(path)
    OS_FILES.unlock(token)
    token = OS_FILES.lock(path)
    OS_FILES.unlock(token)


def test_readers_take_no_lock_and_write_nothing(
    open_store: OpenStore, make_draft: MakeDraft
) -> None:
    store = open_store()
    for number in range(50):
        store.append(make_draft("orders", 0, bytes([number]) * 200, KEYS=f"k-{number}"))
    store.write()
    before = {
        path: path.stat().st_mtime_ns for path in Path(store.root).rglob("*") if path.is_file()
    }
    reader = MessageStore.open_readonly(store.root)
    assert not reader.is_writable
    assert reader.max_offset("orders", 0) == 50
    (hit,) = reader.query("orders", "k-49").slices
    assert decode_records(bytes(hit))[0].body[0] == 49
    after = {
        path: path.stat().st_mtime_ns for path in Path(store.root).rglob("*") if path.is_file()
    }
    assert after == before
    reader.close()


def test_a_reader_follows_a_live_store(open_store: OpenStore, make_draft: MakeDraft) -> None:
    store = open_store()
    reader = MessageStore.open_readonly(store.root)
    assert reader.max_offset("orders", 0) == 0
    total = 0
    for _ in range(5):
        for _ in range(17):
            store.append(make_draft("orders", 0, bytes(300), KEYS=f"k-{total}"))
            total += 1
        store.write()
        store.flush(thorough=total % 2 == 0)
        assert reader.refresh() == 17
        assert reader.max_offset("orders", 0) == total
        assert len(reader.query("orders", f"k-{total - 1}").slices) == 1
        found = reader.read("orders", 0, total - 5, max_count=5)
        assert [r.queue_offset for r in decode_records(b"".join(found.slices))] == list(
            range(total - 5, total)
        )[: found.count]
    assert reader.refresh() == 0
    reader.close()
    with pytest.raises(LifecycleError, match="open for writing"):
        store.refresh()


def test_a_reader_needs_a_directory(tmp_path: Path) -> None:
    with pytest.raises(StoreDamaged, match="does not exist"):
        MessageStore.open_readonly(tmp_path / "nothing")


MANY_TOPICS = """
import os, resource, sys
from penstock.store import Draft, MessageStore, StoreConfig
resource.setrlimit(resource.RLIMIT_NOFILE, (128, 128))
config = StoreConfig(
    mapped_file_size_commit_log=65536, mapped_file_size_consume_queue=200,
    max_hash_slot_num=10, max_index_num=4000, open_log_segments=32, open_queue_segments=32,
)
topics = int(sys.argv[2])
for round_number in range(2):
    with MessageStore(sys.argv[1], config) as store:
        for _ in range(2):
            for number in range(topics):
                store.append(Draft(f"topic-{number}", 0, b"x"))
            store.write()
            store.flush(thorough=round_number == 0)
        counts = {store.read(f"topic-{number}", 0, 0).count for number in range(topics)}
        print(counts, len(os.listdir("/proc/self/fd")) < 110)
"""


def test_more_topics_than_open_files_work(tmp_path: Path) -> None:
    done = run_python(MANY_TOPICS, str(tmp_path / "store"), "600")
    assert done.stdout.splitlines() == ["{2} True", "{4} True"], done.stderr


def test_maps_of_segments_are_bounded(open_store: OpenStore, make_draft: MakeDraft) -> None:
    config = StoreConfig(
        mapped_file_size_commit_log=4096,
        mapped_file_size_consume_queue=200,
        max_hash_slot_num=10,
        max_index_num=40,
        open_log_segments=3,
        open_queue_segments=2,
    )
    store = open_store(config)
    for number in range(200):
        store.append(make_draft("orders", number % 5, bytes(500)))
    store.write()
    store.flush(thorough=True)
    store.write()
    held = []
    for number in range(200):
        result = store.read("orders", number % 5, number // 5, max_count=1)
        held.append(result.slices[0])
        assert len(store.commit_log._maps) <= 3
        assert len(store.queue_table._shared.maps) <= 2
    # Slices outlive the maps they were taken from.
    assert [decode_records(bytes(view))[0].queue_offset for view in held] == [
        number // 5 for number in range(200)
    ]


def test_a_writer_killed_at_any_moment_leaves_every_written_message(tmp_path: Path) -> None:
    program = """
    import os, sys
    from penstock.store import Draft, MessageStore, StoreConfig
    store = MessageStore(sys.argv[1], StoreConfig(mapped_file_size_commit_log=65536))
    store.open()
    number = 0
    while True:
        for _ in range(7):
            key = b"KEYS\\x01k-%d\\x02" % number
            store.append(Draft("orders", number % 3, b"%d" % number, key))
            number += 1
        store.write()
        os.write(1, b"%d\\n" % number)
    """
    with subprocess.Popen(
        [sys.executable, "-c", textwrap.dedent(program), str(tmp_path / "store")],
        stdout=subprocess.PIPE,
    ) as writer:
        assert writer.stdout is not None
        lines = [writer.stdout.readline() for _ in range(200)]
        writer.kill()
        lines += writer.stdout.readlines()
    acknowledged = int([line for line in lines if line.endswith(b"\n")][-1])
    with MessageStore(tmp_path / "store") as store:
        assert store.recovery is not None
        assert store.recovery.kind == "crash"
        found: dict[int, bytes] = {}
        for queue_id in range(3):
            offset = 0
            while offset < store.max_offset("orders", queue_id):
                result = store.read("orders", queue_id, offset)
                for record in decode_records(b"".join(result.slices)):
                    assert record.queue_offset == offset
                    found[int(record.body)] = record.properties
                    offset += 1
        assert sorted(found) == list(range(len(found)))
        assert len(found) >= acknowledged > 0
        for number in range(0, len(found), 97):
            assert len(store.query("orders", f"k-{number}").slices) == 1
