"""What a schema of bodies gives, and the bodies of a batch as one column of structs."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final, NamedTuple, Protocol

import pyarrow as pa

from penstock.errors import MissingPackage

NULL_BODY: Final = "the body is null"
"""The reason for a body that is not there."""
Value = dict[str, Any] | None


class BodyPlan(NamedTuple):
    """How bodies become structs."""

    built: pa.StructType
    """The type that the values of ``parse`` are made into."""
    shown: pa.StructType
    """The type of the result, which ``built`` is cast to: Spark knows microseconds only."""
    parse: Callable[[bytes], dict[str, Any]]
    """The fields of a body; raises ``ValueError`` with the reason if it is none."""


class BodySchema(Protocol):
    """A schema of bodies. Small and easy to pickle: the plan is made where it is used."""

    def plan(self) -> BodyPlan: ...

    def __hash__(self) -> int: ...


def decode_bodies(plan: BodyPlan, bodies: pa.Array) -> tuple[pa.StructArray, pa.Array]:
    """The bodies as structs, null where they do not parse, and the reasons of those."""
    values: list[Value] = []
    reasons: list[str | None] = []
    for body in bodies.to_pylist():
        value, reason = _parsed(plan, body)
        values.append(value)
        reasons.append(reason)
    return _built(plan, values, reasons), pa.array(reasons, pa.string())


def _parsed(plan: BodyPlan, body: bytes | None) -> tuple[Value, str | None]:
    if body is None:
        return None, NULL_BODY
    try:
        return plan.parse(body), None
    except ValueError as error:
        return None, str(error)


def _built(plan: BodyPlan, values: list[Value], reasons: list[str | None]) -> pa.StructArray:
    try:
        return _column(plan, values)
    except (pa.ArrowException, ValueError, OverflowError):
        # One value is outside of what its column can hold. Find out which.
        for number, value in enumerate(values):
            try:
                _column(plan, [value])
            except (pa.ArrowException, ValueError, OverflowError) as error:
                values[number] = None
                reasons[number] = f"a value does not fit its column: {first_line(error)}"
        return _column(plan, values)


def _column(plan: BodyPlan, values: list[Value]) -> pa.StructArray:
    built = pa.array(values, plan.built)
    return built if plan.built == plan.shown else built.cast(plan.shown)


def first_line(error: BaseException) -> str:
    """The first line of an error with its type, which alone says little, and may be all."""
    text = str(error).strip().partition("\n")[0]
    name = type(error).__name__
    return f"{name}: {text}" if text and text != name else name


def missing(package: str, extra: str, what: str) -> MissingPackage:
    """The error for a body format whose package is not installed in this Python."""
    return MissingPackage(
        f"{what} needs {package}, which this Python does not have",
        hint=f"pip install 'penstock[{extra}]', also in the Python of the executors",
    )
