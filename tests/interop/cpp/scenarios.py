"""Runs scenarios with the C++ client, through its Python binding; prints a JSON line for each.

Usage: scenarios.py NAMESRV SUFFIX SCENARIO...; the topics exist, the key is in the environment.
"""

from __future__ import annotations

import json
import os
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from rocketmq.client import (  # type: ignore[import-not-found]
    Message,
    Producer,
    PushConsumer,
)

PATIENCE = 50.0
CHANNEL = "channel"  # part of the signed text of this client's own scheme
NAMESRV = ""


def connect(client: Any) -> Any:
    """Set the address and the key."""
    client.set_namesrv_addr(NAMESRV)
    key, secret = os.environ["INTEROP_ACCESS_KEY"], os.environ["INTEROP_SECRET_KEY"]
    client.set_session_credentials(key, secret, CHANNEL)
    return client


def producer(unique: str) -> Any:
    """A started producer."""
    made = connect(Producer(f"producer-{unique}"))
    made.start()
    return made


def send(sender: Any, topic: str, body: str) -> None:
    """Send one text and wait for its result."""
    message = Message(topic)
    message.set_body(body)
    sender.send_sync(message)


def signed(unique: str) -> str:
    """Send and receive with the right key."""
    topic, sender = f"topic-{unique}", producer(unique)
    got: list[str] = []
    lock = threading.Lock()

    def handle(message: Any) -> None:
        with lock:
            got.append(message.body.decode())

    wanted = [f"before-{number}" for number in range(10)]
    for body in wanted:
        send(sender, topic, body)
    consumer = connect(PushConsumer(f"group-{unique}"))
    consumer.subscribe(topic, handle)
    consumer.start()
    later = [f"after-{number}" for number in range(10)]
    for body in later:
        send(sender, topic, body)
    wanted += later
    deadline = time.monotonic() + PATIENCE
    while len(got) < len(wanted):
        if time.monotonic() > deadline:
            raise AssertionError(f"{len(got)} of {len(wanted)} messages arrived")
        time.sleep(0.02)
    if sorted(got) != sorted(wanted):
        raise AssertionError(f"received {sorted(got)}")
    return "20 sent, each received once"


def logged(text: str) -> str:
    """The first line of this process's log with the text.

    The client raises that it has no route; why the server refused to tell it is only in its log.
    """
    deadline = time.monotonic() + PATIENCE
    while time.monotonic() < deadline:
        for file in (Path.home() / "logs" / "rocketmq-cpp").glob(f"{os.getpid()}_*"):
            for line in file.read_text(errors="replace").splitlines():
                if text in line:
                    return line
        time.sleep(0.1)
    raise AssertionError(f"the log of the client has no line with {text!r}")


def wrong_key(unique: str) -> str:
    """A send with a wrong key; what the client says about it is judged by the harness."""
    sender = producer(unique)
    try:
        send(sender, f"topic-{unique}", "refused")
    except Exception as refusal:
        return f"{refusal}, because of: {logged('check signature')}"
    raise AssertionError("a message was sent with a wrong key")


SCENARIOS: dict[str, Callable[[str], str]] = {"cpp_signed": signed, "cpp_wrong_key": wrong_key}


def main() -> None:
    """Run the scenarios that the arguments name."""
    global NAMESRV
    NAMESRV, suffix, *names = sys.argv[1:]
    for name in names:
        began = time.monotonic()
        try:
            status, evidence = "pass", SCENARIOS[name](f"{name}-{suffix}")
        except Exception as error:
            status, evidence = "fail", f"{type(error).__name__}: {error}"
        spent = int((time.monotonic() - began) * 1000)
        found = {"scenario": name, "status": status, "evidence": evidence, "ms": spent}
        sys.stdout.write("\n" + json.dumps(found) + "\n")
        sys.stdout.flush()
    os._exit(0)  # shutting a consumer down can end the process, in the client's own code


if __name__ == "__main__":
    main()
