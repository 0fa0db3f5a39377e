"""Options as Spark hands them over, read one by one, and those that reading and writing share."""

from __future__ import annotations

import difflib
import json
import re
from collections.abc import Callable, Iterable, Mapping
from dataclasses import asdict, fields
from pathlib import Path
from typing import Final, TypeVar

from penstock.client.cluster_access import ClusterAccess
from penstock.errors import InvalidArgument, PenstockError
from penstock.remoting.tls import ClientTls

_T = TypeVar("_T")

ACCESS_OPTIONS: Final = (
    "namesrv",
    "accessKey",
    "secretKey",
    "securityToken",
    "tls",
    "namespace",
)
"""What every use of the format takes."""

SPARK_OPTIONS: Final = frozenset(
    name.lower()
    for name in (
        "checkpointLocation",
        "queryName",
        "outputMode",
        "triggerInterval",
        "asyncProgressTrackingEnabled",
        "asyncProgressTrackingCheckpointIntervalMs",
        "paths",
        "mergeSchema",
        "timeZone",
    )
)
"""Options that Spark itself puts among a source's or takes from there."""

_SECRET: Final = frozenset({"accesskey", "secretkey", "securitytoken"})
_TRUE = frozenset({"true", "1", "yes", "on"})
_FALSE = frozenset({"false", "0", "no", "off"})


class OptionReader:
    """The options a user wrote, by lower-case name, read one by one with their errors."""

    def __init__(
        self, options: Mapping[str, str], known: Iterable[str], purpose: str = "reading"
    ) -> None:
        self._given = {name.lower(): value for name, value in options.items()}
        check_names(self._given, known, purpose)

    def text(self, name: str) -> str | None:
        value = self._given.get(name.lower())
        return value if value is None else value.strip()

    @property
    def is_any(self) -> bool:
        """Whether anything was written at all."""
        return bool(self._given)

    def given(self, *names: str) -> list[str]:
        """Those of ``names`` that were written, in that order."""
        return [name for name in names if self.text(name) is not None]

    def boolean(self, name: str, default: bool) -> bool:
        text = self.text(name)
        if text is None:
            return default
        if text.lower() in _TRUE:
            return True
        if text.lower() in _FALSE:
            return False
        raise self.refused(name, "true or false")

    def integer(self, name: str, low: int, high: int = 2**63 - 1) -> int | None:
        text = self.text(name)
        if text is None:
            return None
        if re.fullmatch(r"[+-]?\d{1,19}", text) and low <= int(text) <= high:
            return int(text)
        top = "" if high == 2**63 - 1 else f" to {high}"
        raise self.refused(name, f"a whole number from {low}{top}")

    def checked(self, name: str, check: Callable[[str], _T]) -> _T | None:
        """What ``check`` makes of the text; its complaint is the option's."""
        text = self.text(name)
        if text is None:
            return None
        try:
            return check(text)
        except PenstockError as error:
            raise InvalidArgument(
                f"option {name}: {error.what}", expected=error.expected, hint=error.hint
            ) from error

    def refused(self, name: str, expected: str) -> InvalidArgument:
        """The error for the value of an option; a secret one is not repeated."""
        shown = "not usable" if name.lower() in _SECRET else f"{self.text(name)!r:.200}"
        return InvalidArgument(f"option {name} is {shown}", expected=expected)


def check_names(names: Iterable[str], known: Iterable[str], purpose: str) -> None:
    """Refuse a name that is neither ours nor Spark's, naming the nearest one."""
    spellings = {name.lower(): name for name in known}
    for name in names:
        if name in spellings or name in SPARK_OPTIONS or name.startswith(("spark.", "__")):
            continue
        near = difflib.get_close_matches(name, spellings, n=1, cutoff=0.5)
        raise InvalidArgument(
            f"unknown option {name!r} for {purpose} format penstock",
            expected=f"some of {', '.join(spellings.values())}",
            hint=f"option {spellings[near[0]]!r}" if near else None,
        )


def refuse_catalog_table(names: Iterable[str]) -> None:
    """Refuse ``CREATE TABLE ... USING penstock OPTIONS (...)``, whose options nobody would see.

    Spark asks for the schema with them, and with properties of the table such as its provider; when
    the table is read, it hands a Python source no options but those of the query.
    """
    if "provider" in names:
        raise InvalidArgument(
            "a table of a catalog, whose options Spark forgets",
            expected="CREATE TEMPORARY VIEW orders USING penstock OPTIONS (...)",
            hint="or a table with columns, CREATE TABLE orders (body BINARY) USING penstock, and "
            "the options at every use: SELECT * FROM orders WITH (topic = 'orders')",
        )


def parse_access(options: OptionReader) -> ClusterAccess:
    """The cluster to reach; the environment supplies options that are missing."""
    tls: ClientTls | bool | None = None
    if (text := options.text("tls")) is not None:
        tls = _tls(text) if text.startswith("{") else options.boolean("tls", False)
    return ClusterAccess.of(
        options.text("namesrv"),
        access_key=options.text("accessKey"),
        secret_key=options.text("secretKey"),
        security_token=options.text("securityToken"),
        tls=tls,
        namespace=options.text("namespace"),
    )


def access_options(access: ClusterAccess) -> dict[str, str]:
    """The options from which `parse_access` makes an equal value."""
    keywords = access.as_keywords()
    given = {
        "namesrv": access.addresses,
        "accessKey": keywords["access_key"],
        "secretKey": keywords["secret_key"],
        "securityToken": keywords["security_token"],
        # Always given: without it an executor would read its own environment.
        "tls": "false" if access.tls is None else _tls_text(access.tls),
        "namespace": access.namespace,
    }
    return {name: value for name, value in given.items() if value is not None}


def _tls(text: str) -> ClientTls:
    """TLS settings as a JSON object with the keywords of `ClientTls`."""
    known = {item.name: item.type for item in fields(ClientTls)}
    settings = json_object("tls", text, "true, false, or a JSON object of TLS settings")
    for name in settings:
        if name not in known:
            raise InvalidArgument(
                f"option tls has {name!r}", expected=f"some of {', '.join(known)}"
            )
    values = {
        name: Path(str(value)) if name.endswith("_file") and value is not None else value
        for name, value in settings.items()
    }
    return ClientTls(**values)  # type: ignore[arg-type]  # checked by use: TLS itself complains


def _tls_text(tls: ClientTls) -> str:
    given = {name: value for name, value in asdict(tls).items() if value is not None}
    return json.dumps(given, default=str)


def json_object(name: str, text: str, expected: str) -> dict[str, object]:
    """The JSON object that an option holds."""
    try:
        value = json.loads(text)
    except ValueError as error:
        raise InvalidArgument(f"option {name} is not JSON: {error}", expected=expected) from None
    if not isinstance(value, dict):
        raise InvalidArgument(f"option {name} is a JSON {type(value).__name__}", expected=expected)
    return value
