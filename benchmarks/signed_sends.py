"""Sends per second of a broker with users, over a plain connection, signed, and signed over TLS.

Both brokers are `penstock up`, one without and one with ``--auth --tls auto --tls-mode
permissive``. The load generator (`load`) runs in this process, on the other core; requests are
encoded, and signed, beforehand, so that the figures are about the broker.

    python -m benchmarks.signed_sends [--full]
"""

from __future__ import annotations

import os
import ssl
import tempfile
from pathlib import Path
from typing import Final

from benchmarks.effort import QUICK, Effort, Figures, at_least, median, ratio
from benchmarks.load import Measured, ask_successfully, load
from benchmarks.processes import ServerProcess, broker
from benchmarks.requests import send, sends
from benchmarks.script import main

from penstock.protocol import acl
from penstock.protocol.commands import Command, encode_command
from penstock.remoting.loop import run as run_loop

TOPIC: Final = "bench-sends"
QUEUES: Final = (0, 1, 2, 3)
USER, SECRET = "admin", "secret-of-the-benchmark"
BODY_BYTES: Final = 128
IN_FLIGHT: Final = (32, 256)
TARGET: Final = 0.85
_DISTINCT: Final = 1024


def signed(command: Command) -> Command:
    """The request with the signature of the benchmark's user."""
    command.ext = {**(command.ext or {}), **acl.sign(command.ext, command.body, USER, SECRET)}
    return command


def run(effort: Effort = QUICK) -> Figures:
    """Measure; every figure is the median of interleaved rounds."""
    plain_ring = [encode_command(one) for one in sends(TOPIC, QUEUES, BODY_BYTES, _DISTINCT)]
    signed_ring = [
        encode_command(signed(one)) for one in sends(TOPIC, QUEUES, BODY_BYTES, _DISTINCT)
    ]
    with tempfile.TemporaryDirectory(prefix="penstock-bench-") as home:
        secret = Path(home) / "secret"
        secret.write_text(SECRET)
        # The context of the administrator is saved there, not in the user's own home.
        os.environ["XDG_CONFIG_HOME"] = home
        with (
            broker() as open_to_all,
            broker(
                *("--auth", "--admin-secret-file", str(secret)),
                *("--tls", "auto", "--tls-mode", "permissive"),
            ) as guarded,
        ):
            run_loop(ask_successfully(open_to_all.port, [send(TOPIC, 0, BODY_BYTES, 0)]))
            run_loop(ask_successfully(guarded.port, [signed(send(TOPIC, 0, BODY_BYTES, 0))]))
            rounds: dict[int, dict[str, list[Measured]]] = {
                in_flight: {"plain": [], "signed": [], "signed over TLS": []}
                for in_flight in IN_FLIGHT
            }
            for _ in range(effort.rounds):
                for in_flight, ways in rounds.items():
                    for way, measured in ways.items():
                        server = open_to_all if way == "plain" else guarded
                        ring = plain_ring if way == "plain" else signed_ring
                        measured.append(_measure(server, ring, in_flight, effort, way))
    rows = [
        {
            "in_flight": in_flight,
            "way": way,
            "per_second": median([one.per_second for one in measured]),
            "server_microseconds": median([one.server_microseconds for one in measured], 2),
            **ratio(
                [one.per_second for one in measured], [one.per_second for one in ways["plain"]]
            ),
        }
        for in_flight, ways in rounds.items()
        for way, measured in ways.items()
    ]
    reached = [row["ratio"] for row in rows if row["way"] == "signed"]
    return {
        "benchmark": "signed_sends",
        "body_bytes": BODY_BYTES,
        "scenarios": rows,
        "targets": [at_least("signed single sends beside plain ones", TARGET, min(reached))],
    }


def _measure(
    server: ServerProcess, ring: list[bytes], in_flight: int, effort: Effort, way: str
) -> Measured:
    context = None
    if way.endswith("TLS"):
        context = ssl.create_default_context()
        context.check_hostname = False
        # The figure is about the cost of encryption, not about trust.
        context.verify_mode = ssl.CERT_NONE
    return run_loop(load(server, ring, in_flight=in_flight, seconds=effort.seconds, tls=context))


if __name__ == "__main__":
    main(run)
