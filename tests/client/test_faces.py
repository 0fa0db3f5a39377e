"""`penstock` and `penstock.aio` have the same classes and methods; and what a type checker sees."""

from __future__ import annotations

import inspect
import subprocess
import sys
from pathlib import Path

import pytest

import penstock
from penstock import aio
from penstock.client.arguments import ConsumerOptions
from penstock.client.facades.push_consumer import PushConsumerFacade, PushConsumerKeywords

CLASSES = ("Producer", "PushConsumer", "PullConsumer", "SimpleConsumer")
PLAIN = {"PushConsumer": {"on"}, "SimpleConsumer": {"acknowledging"}}
"""Methods that are no coroutines in `aio`: a decorator, and one for ``async with``."""


def methods(kind: type) -> dict[str, inspect.Signature]:
    return {
        name: inspect.signature(method)
        for name, method in inspect.getmembers(kind, inspect.isfunction)
        if not name.startswith("_") or name == "__init__"
    }


@pytest.mark.parametrize("name", CLASSES)
def test_both_faces_have_the_same_methods_with_the_same_parameters(name: str) -> None:
    blocking, awaiting = methods(getattr(penstock, name)), methods(getattr(aio, name))
    assert blocking.keys() == awaiting.keys()
    for method, signature in blocking.items():
        expected = [(p.name, p.kind, p.default) for p in signature.parameters.values()]
        found = [(p.name, p.kind, p.default) for p in awaiting[method].parameters.values()]
        assert found == expected, f"{name}.{method}"


@pytest.mark.parametrize("name", CLASSES)
def test_every_method_of_aio_is_a_coroutine(name: str) -> None:
    kind = getattr(aio, name)
    plain = {
        method
        for method in methods(kind)
        if not inspect.iscoroutinefunction(getattr(kind, method)) and method != "__init__"
    }
    assert plain == PLAIN.get(name, set())
    assert inspect.iscoroutinefunction(kind.__aenter__)
    assert inspect.iscoroutinefunction(kind.__aexit__)


def test_type_checkers_know_every_keyword_of_a_push_consumer() -> None:
    declared = inspect.signature(PushConsumerFacade.__init__).parameters.values()
    named = {one.name for one in declared if one.kind is one.KEYWORD_ONLY}
    typed = PushConsumerKeywords.__optional_keys__ | {"batch_size"}
    assert named <= typed
    assert typed - named == ConsumerOptions.__optional_keys__


HANDLERS = """
import penstock
from penstock import ConsumeContext, ConsumeResult, StoredMessage, aio

one = penstock.PushConsumer("g")
also_one = penstock.PushConsumer("g", batch_size=1, orderly=True)
many = penstock.PushConsumer("g", batch_size=32)
async_one = aio.PushConsumer("g", start_from="first")
async_many = aio.PushConsumer("g", batch_size=32)

def of_one(message: StoredMessage) -> None: ...
def of_many(messages: list[StoredMessage]) -> None: ...
async def async_of_one(message: StoredMessage) -> None: ...
async def async_of_many(messages: list[StoredMessage]) -> None: ...
def in_context(message: StoredMessage, context: ConsumeContext) -> ConsumeResult:
    return ConsumeResult.SUCCESS

one.on("a")(of_one)
also_one.on("a")(in_context)
many.on("a")(of_many)
async_one.on("a")(async_of_one)
async_one.on("b")(of_one)
async_many.on("a")(async_of_many)
one.on("b")(lambda message: message.body)

@many.on("b")
def decorated(messages: list[StoredMessage]) -> int:
    return len(messages)

def started(consumer: penstock.PushConsumer) -> None:
    consumer.on("a")(of_one)
    consumer.on("b")(of_many)
"""
WRONG = """
one.on("x")(of_many)
many.on("x")(of_one)
async_one.on("x")(async_of_many)
async_many.on("x")(async_of_one)
one.on("x")(lambda: None)
"""


def test_mypy_knows_what_a_handler_gets(tmp_path: Path) -> None:
    pytest.importorskip("mypy")
    snippet = tmp_path / "handlers.py"
    right = len(HANDLERS.splitlines())
    snippet.write_text(HANDLERS + WRONG.lstrip())
    checked = subprocess.run(
        [
            sys.executable,
            *("-m", "mypy", "--strict", "--no-error-summary", "--hide-error-context"),
            *("--cache-dir", str(tmp_path / "cache"), "--follow-imports=silent", str(snippet)),
        ],
        capture_output=True,
        text=True,
        check=False,
    )
    lines = [int(line.split(":")[1]) for line in checked.stdout.splitlines() if " error: " in line]
    wrong = [right + 1 + n for n in range(len(WRONG.split("\n")) - 2)]
    assert sorted(set(lines)) == wrong, checked.stdout + checked.stderr
