"""``penstock bench``: how fast this machine sends and receives, against any broker."""

from __future__ import annotations

import contextlib
import functools
import sys
import tempfile
import uuid
from collections.abc import Iterator
from typing import TYPE_CHECKING

import click

from penstock.cli import output
from penstock.cli.commands import Number, command, option
from penstock.cli.output import Column, Table, json_flag
from penstock.cli.target import Target, on_cluster
from penstock.errors import PenstockError

if TYPE_CHECKING:
    from penstock.cli.bench_tests import Load, Measured

_START_SECONDS = 60.0


def _count(value: object) -> str:
    return f"{value:,.0f}" if isinstance(value, int | float) else str(value)


def _short(value: object) -> str:
    return f"{value:,.2f}" if isinstance(value, int | float) else str(value)


COLUMNS = (
    Column("test"),
    Column("messages", align="right", format=_count),
    Column("seconds", align="right", format=_short),
    Column("messages_per_second", "messages/s", align="right", format=_count),
    Column("megabytes_per_second", "MB/s", align="right", format=_short),
    Column("p50_ms", "p50 ms", align="right", format=_short),
    Column("p90_ms", "p90 ms", align="right", format=_short),
    Column("p99_ms", "p99 ms", align="right", format=_short),
    Column("max_ms", "max ms", align="right", format=_short),
)


@command
@functools.partial(on_cluster, default="a broker of its own")
@option("--messages", "-m", type=Number(at_least=1), default=10_000, help="Messages of each test.")
@option("--size", type=Number(at_least=8), default=128, help="Bytes of each body.")
@option("--queues", type=Number(at_least=1), default=8, help="Queues of the topic on each broker.")
@option(
    "--in-flight", type=Number(at_least=1), default=256, help="Sends that wait for answers at once."
)
@option(
    "--rate",
    type=Number(float, at_least=0.1),
    default=500,
    help="Messages a second of the end-to-end test.",
)
@json_flag
def bench(
    target: Target,
    messages: int,
    size: int,
    queues: int,
    in_flight: int,
    rate: float,
    as_json: bool,
) -> None:
    """Measure sends, receives and the latency between, with this client.

    Against the cluster of --namesrv, --context or NAMESRV_ADDR; without one, a broker is started in
    a process of its own on a temporary directory. A topic is made for it and deleted afterwards.
    Client and handlers share this process, as they do in most programs.

    Example: penstock bench --messages 50000 --size 1024
    """
    from penstock.cli import bench_tests

    load = bench_tests.Load(
        topic=f"penstock-bench-{uuid.uuid4().hex[:8]}",
        messages=messages,
        size=size,
        in_flight=in_flight,
        rate=rate,
    )
    is_given = bool(click.get_current_context().params.get("namesrv") or target.origin)
    with contextlib.ExitStack() as stack:
        where = target.namesrv
        if not is_given:
            own = stack.enter_context(_own_broker())
            target = Target.from_options(namesrv=own)
            where = "a broker of its own"
        admin = stack.enter_context(target.admin())
        admin.create_topic(load.topic, queues)
        try:
            results = _measure(target, load, as_json=as_json)
        finally:
            admin.delete_topic(load.topic)
            with contextlib.suppress(PenstockError):
                admin.delete_group(load.group)
    rows = [result.row(size) for result in results]
    if as_json:
        output.print_json({"broker": where, "body_bytes": size, "queues": queues, "results": rows})
        return
    output.show(
        Table(COLUMNS, rows, title=f"{size}-byte bodies, {queues} queues, {where}"), as_json=False
    )


def _measure(target: Target, load: Load, *, as_json: bool) -> list[Measured]:
    from penstock.cli import bench_tests

    results = []
    for test in bench_tests.TESTS:
        with output.progress(test.total(load), test.name, quiet=as_json) as bar:
            results.append(test.run(target.access, load, bar.advance))
    return results


@contextlib.contextmanager
def _own_broker() -> Iterator[str]:
    """A name server and a broker in another process; the address."""
    from penstock.runtime.child_process import ChildProcess, ProcessFailed

    with tempfile.TemporaryDirectory(prefix="penstock-bench-") as directory:
        ports = ("--nameserver-port", "0", "--broker-port", "0")
        process = ChildProcess(
            [sys.executable, "-m", "penstock", "up", "--data", directory, *ports]
        )
        with process:
            try:
                ready = process.wait_for_line(r"^ready namesrv=(\S+)", timeout=_START_SECONDS)
            except ProcessFailed as error:
                raise PenstockError(
                    f"no broker could be started: {error}",
                    hint="start one with `penstock up` and give its address: --namesrv",
                ) from error
            yield ready[1]
            process.terminate()
