"""What a newcomer does wrong in the first hour: each is one sentence with a way out."""

from __future__ import annotations

import errno
import json
import os
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.cli.running import PENSTOCK, fail, run, wait_for

from penstock.cli import error_reports
from penstock.errors import NameserverUnavailable, PenstockError
from penstock.testing.embedded import Embedded

ASKS_A_CLUSTER = [
    ["topic", "list"],
    ["topic", "create", "orders"],
    ["topic", "describe", "orders"],
    ["topic", "delete", "orders", "--yes"],
    ["group", "list"],
    ["group", "create", "billing"],
    ["group", "describe", "billing"],
    ["group", "lag", "billing"],
    ["group", "reset", "billing", "--to", "earliest", "--yes"],
    ["group", "delete", "billing", "--yes"],
    ["cluster", "overview"],
]


@pytest.mark.parametrize("arguments", ASKS_A_CLUSTER, ids=" ".join)
def test_an_address_without_a_listener(arguments: list[str]) -> None:
    said = fail(*arguments, "--namesrv", "127.0.0.1:1")
    assert "127.0.0.1:1" in said
    assert "`penstock up`" in said
    assert "--namesrv" in said
    # One hint, however many errors are behind it.
    assert said.count("try: ") == 1
    assert "?" not in said


@pytest.mark.parametrize("arguments", ASKS_A_CLUSTER, ids=" ".join)
def test_the_address_of_a_broker(arguments: list[str], cluster: Embedded) -> None:
    broker = cluster.admin.cluster()[0].address
    said = fail(*arguments, "--namesrv", broker)
    assert f"{broker} answers like a broker" in said
    assert "9876" in said


def test_tls_where_the_port_is_plain(cluster: Embedded) -> None:
    said = fail("topic", "list", "--namesrv", cluster.namesrv, "--tls")
    assert f"cannot connect to {cluster.namesrv}: " in said
    assert "does that port speak TLS? Try: without --tls" in said
    assert ": )" not in said
    assert "penstock up" not in said


@pytest.mark.parametrize("address", ["nonsense", "http://127.0.0.1:9876", "127.0.0.1:0", ";"])
def test_an_address_that_is_none(address: str) -> None:
    said = fail("topic", "list", "--namesrv", address)
    assert "127.0.0.1:9876" in said or "host:port" in said


def test_a_guess_is_asked_and_an_advice_is_to_be_tried() -> None:
    guess = PenstockError("no topic 'ordres'", hint="did you mean orders?")
    assert str(guess) == "no topic 'ordres'; did you mean orders?"
    advice = PenstockError("no topic 'x'", expected="a topic", hint="penstock topic list")
    assert str(advice) == "no topic 'x'; expected a topic; try: penstock topic list"


def test_a_name_that_does_not_resolve() -> None:
    assert "no-such-host.invalid:9876" in fail("topic", "list", "-n", "no-such-host.invalid:9876")


def test_a_port_where_something_else_listens() -> None:
    with socket.create_server(("127.0.0.1", 0)) as other:
        port = other.getsockname()[1]
        script = (
            "import socket, sys\n"
            f"listener = socket.socket(fileno={other.fileno()})\n"
            "while True:\n"
            "    peer, _ = listener.accept()\n"
            "    peer.sendall(b'HTTP/1.1 400 Bad Request\\r\\n\\r\\n')\n"
            "    peer.close()\n"
        )
        server = subprocess.Popen([sys.executable, "-c", script], pass_fds=[other.fileno()])
        try:
            said = fail("topic", "list", "--namesrv", f"127.0.0.1:{port}")
        finally:
            server.kill()
            server.wait()
    assert f"127.0.0.1:{port} answers like a web server" in said
    assert "9876" in said


def test_a_count_given_as_the_address_gets_a_hint_at_its_own_option() -> None:
    said = fail("tail", "orders", "-n", "20")
    assert "-n is short for --namesrv" in said
    assert "--last 20" in said


def test_what_the_system_refused_is_named_first() -> None:
    denied = PermissionError(errno.EACCES, "Permission denied", "/srv/data")
    assert error_reports.of_the_system(denied).startswith("/srv/data: permission denied; try: ")
    missing = FileNotFoundError(errno.ENOENT, "No such file or directory", "ordrs.txt")
    assert error_reports.of_the_system(missing).startswith("ordrs.txt: no such file or directory")
    assert error_reports.of_the_system(OSError("something else")) == "something else"


@pytest.mark.parametrize(
    ("arguments", "meant"),
    [
        (["topc", "list"], "'topic'"),
        (["topic", "lst"], "'list'"),
        (["topic", "list", "--jsn"], "--json"),
        (["topic", "create", "orders", "--queue", "3"], "--queues"),
        (["up", "--dta", "here"], "--data"),
        (["contxt"], "'context'"),
        (["start"], "'up'"),
        (["serve"], "'up'"),
        (["run"], "'up'"),
        (["consume", "orders"], "'tail'"),
        (["listen", "orders"], "'tail'"),
        (["version"], "'--version'"),
        (["help"], "'--help'"),
        (["query", "orders", "--since", "1h"], "--from"),
        (["tail", "orders", "--lines", "5"], "--last"),
    ],
    ids=lambda part: " ".join(part) if isinstance(part, list) else part,
)
def test_a_typing_error_suggests_the_nearest(arguments: list[str], meant: str) -> None:
    said = fail(*arguments, code=2)
    assert f"Did you mean {meant}?" in said
    assert "--help" in said


@pytest.mark.parametrize(
    ("arguments", "named"),
    [
        (["zebra"], "'zebra'"),
        (["topic", "create"], "TOPIC"),
        (["group", "reset", "billing"], "--to"),
        (["topic", "create", "a", "--queues", "many"], "--queues"),
        (["topic", "create", "a", "--queues", "0"], "--queues"),
        (["topic", "create", "a", "--permission", "x"], "--permission"),
        (["topic", "list", "more"], "more"),
        (["topic", "list", "--namesrv"], "--namesrv"),
        (["up", "--brokers", "0"], "--brokers"),
    ],
    ids=lambda part: " ".join(part) if isinstance(part, list) else part,
)
def test_a_command_that_is_not_understood_says_where_to_look(
    arguments: list[str], named: str
) -> None:
    said = fail(*arguments, code=2)
    assert named in said
    assert "try: penstock" in said
    assert "--help" in said


@pytest.mark.parametrize(
    ("arguments", "way_out"),
    [
        (["--json", "topic", "list"], "penstock topic list --json"),
        (["topic", "--json", "list"], "penstock topic list --json"),
        (["--context", "staging", "topic", "list"], "penstock topic list --context NAME"),
        (["--namesrv", "one:1", "topic", "list"], "penstock topic list --namesrv HOST:PORT"),
        (["-n", "one:1", "topic", "list"], "penstock topic list --namesrv HOST:PORT"),
    ],
    ids=lambda part: " ".join(part) if isinstance(part, list) else "",
)
def test_an_option_before_its_command_gets_a_hint_where_it_belongs(
    arguments: list[str], way_out: str
) -> None:
    said = fail(*arguments, code=2)
    assert f"goes after the command; try: {way_out}\n" in said


@pytest.mark.parametrize("package", ["pyspark", "matplotlib"])
def test_a_demo_that_could_not_end_does_not_begin(
    package: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, package, None)
    monkeypatch.chdir(tmp_path)
    said = fail("demo")
    assert f"the demo needs {package}" in said
    assert "pip install 'penstock[spark,java,report]'" in said
    assert list(tmp_path.glob("*.html")) == []


@pytest.mark.parametrize("port", ["8082", "0"])
def test_a_console_that_was_asked_for_is_not_left_out(
    port: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "starlette", None)
    monkeypatch.chdir(tmp_path)
    said = fail("up", "--console", port)
    assert "pip install 'penstock[console]'" in said
    assert list(tmp_path.iterdir()) == []


def test_the_time_of_an_old_secret_is_not_ignored() -> None:
    said = fail("user", "rotate", "app", "--grace", "24h", "--namesrv", "127.0.0.1:1")
    assert "--grace needs --data" in said
    assert "penstock user rotate app --grace 24h --data DIR" in said


@pytest.mark.parametrize(
    ("reason", "way_out"),
    [
        ("ConnectionResetError: [Errno 104] Connection reset by peer", "try: --tls, with"),
        ("closed by the peer", "try: --tls, with"),
        ("protocol error", "try: `penstock up`"),
    ],
)
def test_a_server_that_hangs_up_may_take_only_tls(reason: str, way_out: str) -> None:
    error = NameserverUnavailable(
        "none of the name servers mq:9876 answered (connection to mq:9876 ended before "
        f"GET_BROKER_CLUSTER_INFO (request 1) was answered: {reason})"
    )
    said = error_reports.in_words(error)
    assert way_out in said
    assert said.count("try: ") == 1


@pytest.mark.parametrize("flag", [["--queues", "many"], ["--queues=many"], ["-q", "many"]])
def test_a_refused_value_is_named(flag: list[str]) -> None:
    assert "Invalid value for '--queues' / '-q': 'many'" in fail(
        "topic", "create", "a", *flag, code=2
    )


def test_a_refusal_says_nothing_of_parsers() -> None:
    said = fail("topic", "create", "a", "--queues", "many", code=2)
    assert "for '--queues' / '-q': 'many' is not a whole number; try:" in said
    said = fail("up", "--flush", "sometimes", code=2)
    assert "for '--flush': 'sometimes' is not one of 'sync', 'async'" in said


def test_letters_that_the_terminal_lacks_are_shown_as_numbers() -> None:
    for arguments in (["context", "add", "\u2603", "--namesrv", "one:1"], ["context", "list"]):
        done = subprocess.run(
            [*PENSTOCK, *arguments],
            env={**os.environ, "PYTHONIOENCODING": "latin-1"},
            capture_output=True,
            timeout=60,
            check=False,
        )
        assert (done.returncode, b"Traceback" in done.stderr) == (0, False)
        assert b"\\u2603" in done.stdout


def test_control_characters_in_a_mistake_stay_out_of_the_terminal() -> None:
    done = run("\x1b[2J")
    assert done.code == 2
    assert "\x1b" not in done.err
    done = run("topic", "list", "--\x1b[2J")
    assert done.code == 2
    assert "\x1b" not in done.err


@pytest.fixture
def silent() -> Iterator[str]:
    """An address that takes connections and never answers."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        yield f"127.0.0.1:{server.getsockname()[1]}"


def test_ctrl_c_in_the_middle_ends_with_130_and_no_traceback(silent: str) -> None:
    asking = subprocess.Popen(
        [*PENSTOCK, "topic", "list", "--namesrv", silent],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    port = int(silent.rpartition(":")[2])
    wait_for(lambda: _has_connected(asking.pid, port))
    asking.send_signal(signal.SIGINT)
    out, err = asking.communicate(timeout=60)
    assert (asking.returncode, out, err) == (130, "", "")


def test_ctrl_c_before_anything_was_loaded_is_no_traceback() -> None:
    code = (
        "import sys\n"
        "class Pressed:\n"
        "    def find_spec(self, name, path=None, target=None):\n"
        "        if name == 'click': raise KeyboardInterrupt\n"
        "sys.meta_path.insert(0, Pressed())\n"
        "from penstock.__main__ import main\n"
        "main()\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, timeout=60, check=False
    )
    assert (done.returncode, done.stdout, done.stderr) == (130, b"", b"")


def _has_connected(pid: int, port: int) -> bool:
    """Whether the process has a connection to the port of this machine."""
    wanted = f":{port:04X}"
    sockets = {
        fields[9]
        for line in Path(f"/proc/{pid}/net/tcp").read_text().splitlines()[1:]
        if (fields := line.split())[2].endswith(wanted) and fields[3] == "01"
    }
    own = {
        link.readlink().name.removeprefix("socket:[").removesuffix("]")
        for link in Path(f"/proc/{pid}/fd").iterdir()
        if link.is_symlink()
    }
    return bool(sockets & own)


def test_ctrl_c_at_a_question_changes_nothing(cluster: Embedded) -> None:
    import pty

    cluster.admin.create_topic("asked-about", 1)
    master, terminal = pty.openpty()
    asking = subprocess.Popen(
        [*PENSTOCK, "topic", "delete", "asked-about"],
        stdin=terminal,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    with asking:
        try:
            assert asking.stderr is not None
            shown = ""
            while "?" not in shown:
                shown += asking.stderr.read(1)
            rest = _press_ctrl_c_until_it_ends(asking)
        finally:
            asking.kill()
            os.close(terminal)
            os.close(master)
    assert asking.returncode == 130
    assert "Traceback" not in shown + rest
    assert "asked-about" in cluster.admin.topics()


def _press_ctrl_c_until_it_ends(asking: subprocess.Popen[str]) -> str:
    """Interrupt as a user does, again when nothing happens; return the rest of stderr.

    A signal that arrives just before the interpreter enters read() is noticed only when the
    read returns, so one Ctrl-C can go unseen on a busy machine.
    """
    for _ in range(30):
        asking.send_signal(signal.SIGINT)
        try:
            return asking.communicate(timeout=2)[1]
        except subprocess.TimeoutExpired:
            continue
    pytest.fail("the command did not end at Ctrl-C")


def test_a_reader_that_has_seen_enough_is_no_error(cluster: Embedded) -> None:
    for arguments in (["topic", "list", "--internal", "--names"], ["topic", "list", "--internal"]):
        reader, writer = os.pipe()
        os.close(reader)
        done = subprocess.run(
            [*PENSTOCK, *arguments], stdout=writer, stderr=subprocess.PIPE, timeout=60, check=False
        )
        os.close(writer)
        assert done.stderr == b""
        assert done.returncode == 0


def test_help_into_a_closed_pipe_is_no_error() -> None:
    reader, writer = os.pipe()
    os.close(reader)
    done = subprocess.run(
        [*PENSTOCK, "--help"], stdout=writer, stderr=subprocess.PIPE, timeout=60, check=False
    )
    os.close(writer)
    assert (done.returncode, done.stderr) == (0, b"")


def test_an_error_without_a_class_keeps_its_code() -> None:
    reader, writer = os.pipe()
    os.close(reader)
    done = subprocess.run(
        [*PENSTOCK, "zebra"], stdout=writer, stderr=writer, timeout=60, check=False
    )
    os.close(writer)
    assert done.returncode == 2


def test_a_full_disk_is_one_sentence() -> None:
    with open("/dev/full", "w") as full:  # noqa: PTH123
        done = subprocess.run(
            [*PENSTOCK, "--help"],
            stdout=full,
            stderr=subprocess.PIPE,
            text=True,
            timeout=60,
            check=False,
        )
    assert done.returncode == 1
    assert "No space left" in done.stderr
    assert "Traceback" not in done.stderr


def test_errors_of_ours_are_reported_and_bugs_are_not_hidden(
    capsys: pytest.CaptureFixture[str],
) -> None:
    assert error_reports.report(PenstockError("it broke", hint="mend it")) == 1
    assert capsys.readouterr().err == "penstock: it broke; try: mend it\n"
    assert error_reports.report(PermissionError(13, "Permission denied", "/root/x")) == 1
    assert "penstock: /root/x: permission denied; try: " in capsys.readouterr().err
    assert not issubclass(KeyError, error_reports.EXPECTED)


@pytest.mark.parametrize(
    ("arguments", "kind", "code"),
    [
        (["topic", "list", "--namesrv", "127.0.0.1:1"], "NameserverUnavailable", 1),
        (["topic", "list", "--namesrv", "nonsense"], "InvalidArgument", 1),
        (["topic", "list", "--intrenal"], "NoSuchOption", 2),
        (["store", "verify", "/not/there"], "InvalidArgument", 1),
    ],
    ids=lambda part: " ".join(part) if isinstance(part, list) else "",
)
def test_a_program_that_asks_for_json_gets_its_errors_as_json(
    arguments: list[str], kind: str, code: int
) -> None:
    plain = run(*arguments)
    done = run(*arguments, "--json")
    assert (done.code, done.out) == (code, "")
    [line] = done.err.splitlines()
    said = json.loads(line)
    assert set(said) == {"error", "message", "exit_code"}
    assert (said["error"], said["exit_code"]) == (kind, code)
    assert plain.err == f"penstock: {said['message']}\n"


def test_json_that_is_a_message_is_no_wish_for_json() -> None:
    said = fail("send", "orders", "--namesrv", "nonsense", "--", "--json")
    assert "host:port" in said


@pytest.mark.parametrize("address", ["nonsense", "127.0.0.1:1", "127.0.0.1:1;nonsense"])
def test_a_default_address_is_reported_with_its_origin(
    address: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("NAMESRV_ADDR", address)
    assert fail("topic", "list").startswith("penstock: NAMESRV_ADDR: ")
    assert "NAMESRV_ADDR: " not in fail("topic", "list", "--namesrv", "127.0.0.1:2")
    # What is wrong with something else has nothing to do with the address.
    assert "NAMESRV_ADDR: " not in fail("topic", "create", "bad name", "--namesrv", address)


def test_a_body_that_begins_with_a_dash_gets_a_hint_where_it_belongs() -> None:
    assert "'-5' (a value that begins with - goes after --)" in fail("send", "orders", "-5", code=2)


@pytest.mark.parametrize(
    ("arguments", "expected"),
    [
        (["topic", "create", "orders", "--queues", "0"], "expected at least 1"),
        (["up", "--nameserver-port", "99999"], "expected at most 65535"),
        (["send", "orders", "x", "--rate", "-1"], "expected at least 0.001"),
    ],
    ids=lambda part: " ".join(part) if isinstance(part, list) else "",
)
def test_a_number_out_of_range_is_reported_with_the_range(
    arguments: list[str], expected: str
) -> None:
    said = fail(*arguments, code=2)
    assert expected in said
